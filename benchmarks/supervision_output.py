"""Lines a second that one child may write through the supervisor to log and console, and the supervisor's memory."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from measure import own_memory, report

from primebeaker.supervision import ChildSpec, Console, LogOptions, Supervisor

LINES = 500_000


async def run(folder: Path) -> float:
    async with Supervisor(console=Console(os.open(os.devnull, os.O_WRONLY))) as supervisor:
        program = f"for i in range({LINES}): print('a line of a training log with some numbers', i)"
        log = LogOptions(folder / "x.log")
        started = time.perf_counter()
        child = supervisor.start(
            ChildSpec(
                name="busy",
                argv=[sys.executable, "-S", "-c", program],
                env=dict(os.environ),
                cwd=folder,
                log=log,
                console_prefix="[busy] ",
            )
        )
        await child.wait()
        await supervisor.shut_down(grace=0)
        seconds = time.perf_counter() - started
    with (folder / "x.log").open("rb") as stream:
        written = sum(1 for _ in stream)
    if written != LINES:
        sys.exit(f"{written} of {LINES} lines are in the log")
    return LINES / seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rate = asyncio.run(run(Path(folder)))
    report("supervised output", rate, "lines/s", None, least=10_000, memory_mib=round(own_memory(), 1))
