"""Ctrl-C while the program starts or ends: one line at most, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# Sends the signal with the n-th import after the command line's own first one, whatever time that takes.
AT_IMPORT = """
import os, signal, sys

left = [{number}]


def seen(event, arguments):
    if event == "import" and (left[1:] or arguments[0] == "primebeaker.cli.app"):
        left[1:] = [True]
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), signal.SIGINT)


sys.addaudithook(seen)
"""
AT_EXIT = """
import atexit, os, signal, time

atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(30)))
"""


def start(folder: Path, hook: str, **settings: object) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(hook)
    return subprocess.run(
        [sys.executable, "-c", "from primebeaker.cli import entry_point; entry_point()", "--version"],
        env=os.environ | {"PYTHONPATH": f"{folder}:{SOURCE}"},
        capture_output=True,
        text=True,
        timeout=60,
        **settings,
    )


@pytest.mark.parametrize("number", [0, 1, 2, 4, 8, 16, 32, 64, 100])
def test_an_interrupted_start_is_one_line(tmp_path: Path, number: int) -> None:
    done = start(tmp_path, AT_IMPORT.format(number=number))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "primebeaker: error: interrupted\n")


def test_an_interrupted_end_shows_nothing(tmp_path: Path) -> None:
    done = start(tmp_path, AT_EXIT)
    assert done.returncode == -signal.SIGINT
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_program_started_with_the_signal_ignored_goes_on(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = start(tmp_path, AT_IMPORT.format(number=2), preexec_fn=ignore)
    assert (done.returncode, done.stderr) == (0, "")
