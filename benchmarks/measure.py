"""What the benchmark scripts share: run a command repeatedly, take medians, print one JSON object.

Each figure of the project is one script beside this file; it prints ``{"name", "value", "unit", "bound", …}``.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """Median wall seconds, median CPU seconds (user and system) and greatest resident memory (MiB) of a command."""

    seconds: float
    mebibytes: float
    cpu: float


def command(
    argv: Sequence[str], *, repeats: int = 9, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Run:
    """Run ``argv`` to its end ``repeats`` times (after one warm-up), output thrown away."""
    seconds: list[float] = []
    memory: list[float] = []
    cpu: list[float] = []
    for index in range(repeats + 1):
        start = time.perf_counter()
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env, cwd=cwd
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(argv)} ended with {process.returncode}")
        if index:
            seconds.append(time.perf_counter() - start)
            memory.append(usage.ru_maxrss / 1024)
            cpu.append(usage.ru_utime + usage.ru_stime)
    return Run(statistics.median(seconds), max(memory), statistics.median(cpu))


def python_pass(repeats: int = 9) -> float:
    """Median wall seconds of ``python -c pass``: what every start-up figure is compared with."""
    return command([sys.executable, "-c", "pass"], repeats=repeats).seconds


def own_memory() -> float:
    """Greatest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name: str, value: float, unit: str, bound: float | None = None, **more: Any) -> None:
    """Print one figure as JSON. ``bound`` is the greatest value the project allows itself (None: no bound)."""
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "bound": bound, **more}))
