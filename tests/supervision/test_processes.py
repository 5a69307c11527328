"""The process table is read right, and a pid that has a new owner is never signalled."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from primebeaker.supervision import processes
from primebeaker.supervision.processes import MARKER, descendants, look_up, marked, send_signal, snapshot

from ..waiting import until


@pytest.fixture
def sleeper():
    """``sh`` with a ``sleep`` below it."""
    process = subprocess.Popen(["sh", "-c", "sleep 3600; :"], env={**os.environ, MARKER: "outer.1/abc.10"})
    until(lambda: descendants([process.pid], snapshot()))
    yield process
    for child in descendants([process.pid], snapshot()):
        send_signal(child, signal.SIGKILL)
    process.kill()
    process.wait()


def test_a_process_is_looked_up(sleeper: subprocess.Popen[bytes]):
    process = look_up(sleeper.pid)
    assert process is not None
    assert (process.pid, process.ppid, process.pgid) == (sleeper.pid, os.getpid(), os.getpgid(sleeper.pid))
    assert process.alive
    assert look_up(2**22 + 1) is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]):
    sleeper.kill()
    until(lambda: (process := look_up(sleeper.pid)) is not None and not process.alive)


def test_a_program_name_with_spaces_and_parentheses_is_read_right(tmp_path: Path):
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "3600"]) as running:
        process = look_up(running.pid)
        running.kill()
    assert process is not None
    assert process.ppid == os.getpid()


def test_a_reused_pid_is_never_signalled(sleeper: subprocess.Popen[bytes]):
    process = look_up(sleeper.pid)
    assert process is not None
    assert not send_signal(process._replace(start=process.start + "0"), signal.SIGKILL)
    assert sleeper.poll() is None
    assert send_signal(process, signal.SIGKILL)
    assert sleeper.wait() == -9


@pytest.mark.parametrize(("mark", "found"), [("outer", 2), ("outer.1", 2), ("abc", 2), ("abc.1", 0), ("bc", 0)])
def test_marked_processes_are_found_by_whole_words(sleeper: subprocess.Popen[bytes], mark: str, found: int):
    table = snapshot()
    own = {process.pid: process for process in descendants([os.getpid()], table)}
    assert len(marked(mark, own)) == found


def test_the_table_of_ps_agrees(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch):
    """Systems without /proc are asked through ``ps``: same tree, and the identity check works there too."""
    expected = look_up(sleeper.pid)
    children = {process.pid for process in descendants([sleeper.pid], snapshot())}
    monkeypatch.setattr(processes, "HAS_PROC", False)
    process = look_up(sleeper.pid)
    assert process is not None
    assert expected is not None
    assert process[:3] == expected[:3]
    assert process.alive
    assert {process.pid for process in descendants([sleeper.pid], snapshot())} == children
    monkeypatch.setattr(processes.sys, "platform", "darwin")
    assert not send_signal(process._replace(start="Thu Jan  1 00:00:00 1970"), signal.SIGKILL)
    assert send_signal(process, signal.SIGKILL)
    assert sleeper.wait() == -9
