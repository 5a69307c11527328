"""Run docker, beaker, pip and build scripts: output streams to stderr, and the child ends when we do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from primebeaker.beaker.process import end_with_parent, plain_text
from primebeaker.errors import ExternalError
from primebeaker.redaction import Redactor

__all__ = ["Ended", "stream"]

_MOST_LINES = 40
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Ended:
    """How a streamed program ended."""

    code: int
    #: All of stdout.
    stdout: str
    #: The last lines of stdout and stderr together, oldest first.
    tail: tuple[str, ...]

    @property
    def message(self) -> str:
        """The last lines as one text, credentials masked."""
        return Redactor()("\n".join(self.tail)) or f"exit code {self.code}, no output"


def stream(
    argv: Sequence[str],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program to its end, however long it takes, and pass its output on to stderr line by line.

    Args:
        argv: Program and arguments.
        directory: Where it runs; by default here.
        environment: Its whole environment; by default ours.

    Raises:
        ExternalError: It cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=directory,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
    except OSError as error:
        raise ExternalError(f"{argv[0]} cannot be run: {error.strerror or error}") from error
    tail: deque[str] = deque(maxlen=_MOST_LINES)
    stdout: list[str] = []
    readers = [
        threading.Thread(target=_pass_on, args=(process.stdout, tail, stdout), daemon=True),
        threading.Thread(target=_pass_on, args=(process.stderr, tail, None), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        for reader in readers:
            # A grandchild that keeps the pipe open must not hold us up.
            reader.join(5)
    return Ended(code, "".join(stdout), tuple(tail))


def _pass_on(pipe: IO[str], tail: deque[str], kept: list[str] | None) -> None:
    for line in pipe:
        if kept is not None:
            kept.append(line)
        shown = plain_text(line.rstrip("\n"))
        if shown:
            tail.append(shown)
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()


def _end(process: subprocess.Popen[str]) -> None:
    for number, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            return
