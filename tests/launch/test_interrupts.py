"""The command line killed at each step of a submit: no half-written file, no orphan, and it says what may exist."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def wait_until(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def gone(pid: int) -> bool:
    """Whether a process has ended; one that is only waiting to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def start(beaker, toml, mount):
    """Start a submit in a process of its own."""
    started = []

    def run(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "primebeaker", "rl", "submit", f"--toml={toml('rl')}", f"--mount-path={mount}", "--launch-id=l1", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    ("step", "said", "left"),
    [
        ("account whoami", "interrupted during the pre-flight; nothing was written or created", set()),
        ("secret list", "interrupted during the pre-flight; nothing was written or created", set()),
        ("experiment create", "interrupted: the experiment tiny-rl may exist; look with 'beaker workspace experiments ai2/oe-agents'", {".json", ".toml"}),
    ],
)  # fmt: skip
def test_killed_while_beaker_hangs(start, beaker, mount, step, said, left, number) -> None:
    beaker.answer(step, sleep=600)
    process = start()
    wait_until(lambda: beaker.called(*step.split()))
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said in err
        assert len(err.splitlines()) == 1
    wait_until(lambda: all(gone(pid) for pid in beaker.pids))
    written = [path for path in (mount / "primebeaker").rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == left
    assert not any(path.name.startswith(".") for path in written)
    assert len(beaker.called("experiment", "create")) == bool(left)


def test_the_creating_child_and_what_it_started_are_ended(start, beaker) -> None:
    beaker.answer("experiment create", sleep=600, child=True)
    process = start("--skip-preflight")
    wait_until(lambda: beaker.pids)
    (pid,) = beaker.pids
    group = lambda: [  # noqa: E731
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and not gone(int(entry.name)) and _group_of(int(entry.name)) == pid
    ]
    wait_until(lambda: len(group()) == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    wait_until(lambda: group() == [])


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def test_interrupted_before_anything_began(start, beaker) -> None:
    process = start()
    wait_until(lambda: beaker.calls)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err
