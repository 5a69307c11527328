"""From the death of one process to the last process of the topology gone: real roles, stub programs, two replicas.

Prints one JSON line each for the role's reaction, the start of the other replica's shutdown, and the end of everything.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measure import report

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "roles"))

from role_harness import topology

GRACE = 10
REPEATS = 5


def one(process: str) -> tuple[float, float, float]:
    """Seconds until the own role reacts, the other one does, and nothing is left. Default poll, default grace."""
    env = {"PRIMEBEAKER_POLL_SECONDS": "1.0", "PRIMEBEAKER_GRACE_SECONDS": str(GRACE)}
    with tempfile.TemporaryDirectory() as directory, topology(Path(directory) / "run", env=env) as run:
        run.order(0, "trainer", "yes", ".ignore-term")
        leader, follower = run.start()
        run.up()
        # Polls have reached their ceiling.
        time.sleep(8)
        victim = run.record(1, process)["pid"]
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)

        def until(condition) -> float:
            while not condition():
                time.sleep(0.01)
            return time.monotonic() - began

        reacted = until(lambda: "shutting down" in follower.text)
        other = until(lambda: "shutting down" in leader.text)
        run.codes(60)
        gone = until(lambda: not run.alive())
    return reacted, other, gone


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS
    measured = [one("engine0") for _ in range(repeats)]
    reacted, other, gone = (statistics.median(column) for column in zip(*measured, strict=True))
    worst = [round(max(column), 2) for column in zip(*measured, strict=True)]
    report("death of a child, acted on by its role", reacted, "s", 0.5, worst=worst[0])
    report("death of a child, other replica starts down (poll 1 s)", other, "s", 3, worst=worst[1])
    report(f"death of a child, nothing left (grace {GRACE} s, trainer ignores TERM)", gone, "s", 20, worst=worst[2])


if __name__ == "__main__":
    main()
