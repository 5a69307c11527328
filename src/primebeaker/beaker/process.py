"""Run outside programs: bounded in time, never orphaned, output without colours.

Every child is the leader of a session of its own, is ended together with what it started, and (on Linux) dies with
this process even when this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from primebeaker.errors import ExternalError
from primebeaker.redaction import Redactor

__all__ = [
    "Completed",
    "child_options",
    "end_group",
    "end_with_parent",
    "plain_text",
    "run",
    "run_attached",
    "run_together",
]

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_GRACE_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Completed:
    """How one program ended. ``code`` is None when its time limit passed and it was ended."""

    argv: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str

    @property
    def timed_out(self) -> bool:
        """Whether the time limit passed."""
        return self.code is None

    @property
    def message(self) -> str:
        """What the program had to say: stderr, else stdout, on one line, credentials masked."""
        text = self.stderr.strip() or self.stdout.strip()
        return Redactor(_own_credentials())(" ".join(text.split()))

    @property
    def first_line(self) -> str:
        """The first line of :attr:`message`'s source."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return Redactor(_own_credentials())(lines[0].strip()) if lines else ""


def run(argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> Completed:
    """Run one program to its end, stdin closed.

    Args:
        argv: Program and arguments.
        timeout: Seconds after which it is ended.
        environment: Variables on top of this process's.

    Raises:
        ExternalError: The program does not exist or cannot be started.
        KeyboardInterrupt: Interrupted; the program has been ended.
    """
    return run_together([argv], timeout=timeout, environment=environment)[0]


def run_together(
    commands: Sequence[Sequence[str]], *, timeout: float, environment: Mapping[str, str] | None = None
) -> list[Completed]:
    """Run several programs at the same time, each within ``timeout`` seconds; results in the order given."""
    running: list[_Running] = []
    deadline = time.monotonic() + timeout
    try:
        for argv in commands:
            running.append(_start(argv, environment))
        return [child.finish(deadline) for child in running]
    finally:
        for child in running:
            child.close()


def run_attached(argv: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Run one program to its end, its output on ours, and return its exit code (128 + n for signal n).

    Raises:
        ExternalError: The program does not exist or cannot be started.
    """
    try:
        process = subprocess.Popen(list(argv), **child_options(environment))  # type: ignore[call-overload]
    except OSError as error:
        raise ExternalError(f"{argv[0]} cannot be run: {error.strerror or error}") from error
    try:
        code: int = process.wait()
    except BaseException:
        end_group(process)
        raise
    return code if code >= 0 else 128 - code


def plain_text(text: str) -> str:
    """``text`` without terminal colours and other escape sequences."""
    return _ANSI.sub("", text)


def end_group(process: subprocess.Popen[bytes], *, grace: float = _GRACE_SECONDS) -> None:
    """End a child and everything in its session: TERM, and KILL after ``grace`` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    # A grandchild may outlive the leader and keep the group alive.


def child_options(environment: Mapping[str, str] | None) -> dict[str, object]:
    """The Popen arguments every child of ours has."""
    return {
        "stdin": subprocess.DEVNULL,
        "start_new_session": True,
        "preexec_fn": end_with_parent(),
        "env": {**os.environ, "NO_COLOR": "1", "CLICOLOR": "0", "TERM": "dumb", **(environment or {})},
    }


@functools.cache
def end_with_parent() -> Callable[[], None] | None:
    """What a child calls before it becomes another program, so that it is killed when its parent dies (Linux)."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # The parent died before the call above.
            os.kill(os.getpid(), signal.SIGKILL)

    return arm


@dataclass
class _Running:
    argv: tuple[str, ...]
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def finish(self, deadline: float) -> Completed:
        try:
            code: int | None = self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            end_group(self.process)
            code = None
        return Completed(self.argv, code, _text_of(self.stdout), _text_of(self.stderr))

    def close(self) -> None:
        if self.process.poll() is None:
            end_group(self.process)
        self.stdout.close()
        self.stderr.close()


def _start(argv: Sequence[str], environment: Mapping[str, str] | None) -> _Running:
    # Files, not pipes: a grandchild that keeps a pipe open could make us wait for ever.
    stdout, stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by _Running
    try:
        process = subprocess.Popen(
            list(argv),
            stdout=stdout,
            stderr=stderr,
            **child_options(environment),  # type: ignore[call-overload]
        )
    except OSError as error:
        stdout.close()
        stderr.close()
        raise ExternalError(f"{argv[0]} cannot be run: {error.strerror or error}") from error
    return _Running(tuple(argv), process, stdout, stderr)


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return plain_text(stream.read().decode("utf-8", "replace"))


def _own_credentials() -> list[str]:
    return [os.environ[name] for name in ("BEAKER_TOKEN", "WANDB_API_KEY", "HF_TOKEN") if os.environ.get(name)]
