"""Waiting for what real processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from primebeaker.supervision.processes import look_up


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process of this pid runs (a zombie does not)."""
    process = look_up(pid)
    return process is not None and process.alive


def read_pid(path: Path) -> int:
    """The pid a test process left in a file, once it is there."""
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def command_line(pid: int) -> bytes:
    """A process's arguments; nothing when it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
