"""A rehearsal's folder, its programs, and ports of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from primebeaker.rehearsal.programs import install_programs
from primebeaker.rehearsal.settings import RehearsalSettings

SECONDS = 60.0


def wait_until(condition, what: str, seconds: float = SECONDS):
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds:g} s")


def carriers(mark: str) -> list[str]:
    """Living processes whose environment holds ``mark``: whatever a rehearsal in that folder left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in (entry / "environ").read_bytes() and state not in "ZX":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@dataclass
class Stage:
    """Starts stand-ins as a replica would."""

    directory: Path
    settings: RehearsalSettings = field(default_factory=RehearsalSettings)
    started: list[subprocess.Popen] = field(default_factory=list)

    def __post_init__(self):
        self.bin = install_programs(self.directory / "bin")
        self.write(self.settings)

    def write(self, settings: RehearsalSettings) -> None:
        settings.write(self.directory / "rehearsal")

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "PRIMEBEAKER_LOCAL_ENGINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self.settings.environment(self.directory / "rehearsal"),
            **more,
        }

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [str(self.bin / words[0]), *words[1:]],
            env=self.environment(**environment),
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, **environment: str) -> tuple[int, str]:
        """The exit code and output of a program run to its end."""
        process = self.start(*words, **environment)
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output

    def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()
    assert wait_until(lambda: not carriers(str(tmp_path)), "the end of every process") is True
