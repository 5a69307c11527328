"""What a running role costs: CPU over some seconds at the default poll, and resident memory; and its start-up.

Usage: ``role_idle.py [SECONDS]``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from measure import command, python_pass, report

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "roles"))

from role_harness import topology

CLOCK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def memory(pid: int) -> float:
    """Greatest resident memory so far, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as directory:
        env = {"PRIMEBEAKER_POLL_SECONDS": "1.0"}
        with topology(Path(directory) / "run", gpus=8, cp=4, env=env) as run:
            roles = run.start()
            run.up()
            time.sleep(8)
            before = [cpu_seconds(role.process.pid) for role in roles]
            time.sleep(seconds)
            shares = [(cpu_seconds(role.process.pid) - was) / seconds for role, was in zip(roles, before, strict=True)]
            peaks = [memory(role.process.pid) for role in roles]
    report("role idle CPU (leader of 2, 12 engines, poll 1 s)", max(shares) * 100, "% of a core", 1.0)
    report("role memory, greatest", max(peaks), "MiB", 60, leader=round(peaks[0], 1), follower=round(peaks[1], 1))
    start = command([sys.executable, "-c", "import primebeaker.roles.run"]).seconds
    bare = python_pass()
    report("role start-up (imports)", start, "s", None, ratio=round(start / bare, 2))


if __name__ == "__main__":
    main()
