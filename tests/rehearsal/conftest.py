"""A home for the engine and the examples' root, for rehearsals with real processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh engine home; afterwards no process that belongs to it is left."""
    folder = tmp_path / "engine"
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_HOME", str(folder))
    monkeypatch.chdir(ROOT)
    yield folder
    assert left_over(folder) == []


def left_over(home: Path) -> list[str]:
    """What is still there once the engine's own supervisor has had time to leave."""
    deadline = time.monotonic() + 10
    while (found := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def processes_of(home: Path) -> list[str]:
    """Command lines of the processes whose environment names this engine home."""
    found = []
    for pid in pids_of(home):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def pids_of(home: Path) -> list[int]:
    """The processes whose environment names this engine home, this one left out."""
    found = []
    mark = f"PRIMEBEAKER_LOCAL_HOME={home}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
