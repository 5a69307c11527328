"""Time from a child's death until the supervisor's caller acts on it, while four other children talk."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from measure import report

from primebeaker.supervision import ChildSpec, Console, Supervisor

REPEATS = 20
TALKER = "import time\nwhile True:\n    print('line ' * 10, flush=True)\n    time.sleep(0.001)"
# Says on its way out, on the same monotonic clock, when it dies.
DYING = "import os, sys, time\ntime.sleep(0.05)\nos.write(1, repr(time.monotonic()).encode())\nos._exit(7)"


def spec(name: str, program: str, prefix: str | None = None) -> ChildSpec:
    argv = [sys.executable, "-S", "-c", program]
    return ChildSpec(name=name, argv=argv, env=dict(os.environ), cwd=Path.cwd(), console_prefix=prefix)


async def run() -> list[float]:
    delays = []
    async with Supervisor(console=Console(os.open(os.devnull, os.O_WRONLY))) as supervisor:
        for number in range(4):
            supervisor.start(spec(f"talker{number}", TALKER, f"[{number}] "))
        for number in range(REPEATS):
            child = supervisor.start(spec(f"dying{number}", DYING))
            await child.wait()
            acted = time.monotonic()
            await asyncio.sleep(0.01)
            delays.append(acted - float(child.last_lines()[-1] if child.last_lines() else acted))
            await supervisor.end_child(child, grace=0)
    return delays


if __name__ == "__main__":
    measured = asyncio.run(run())
    report("child's death to action", statistics.median(measured), "s", 0.5, worst=round(max(measured), 4))
