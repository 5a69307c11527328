"""Run one program in a session of its own and wait for it, whatever signals reach us meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from primebeaker.errors import Interrupted

__all__ = ["Finished", "end_group", "ending_on_signals", "run_detached"]

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Finished:
    """How a program ended; ``code`` is None when it was given up."""

    code: int | None
    stdout: str
    stderr: str


def run_detached(
    command: Sequence[str],
    *,
    stdin: str,
    environment: Mapping[str, str],
    limit: float,
    hurry: Callable[[], bool] = lambda: False,
    patience: float = 60.0,
) -> Finished:
    """Run ``command`` in its own session, where a Ctrl-C of our terminal does not reach it.

    Args:
        command: The program and its arguments.
        stdin: Its whole input.
        environment: Its whole environment.
        limit: Seconds it may take.
        hurry: Whether we have been asked to end; from then on the program has ``patience`` seconds.
        patience: See ``hurry``.

    Returns:
        Its exit code and output; its group is killed and the code None when it took too long.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        text=True,
        errors="replace",
        start_new_session=True,
    )
    deadline = time.monotonic() + limit
    hurried = False
    try:
        pending: str | None = stdin
        while True:
            try:
                stdout, stderr = process.communicate(pending, timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pending = None
            else:
                return Finished(process.returncode, stdout, stderr)
            if not hurried and hurry():
                hurried = True
                deadline = min(deadline, time.monotonic() + patience)
            if time.monotonic() > deadline:
                end_group(process)
                stdout, stderr = process.communicate()
                return Finished(None, stdout, stderr)
    except BaseException:
        end_group(process)
        process.wait()
        raise


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a program that leads a session, with everything it started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that everything is cleaned up as after a Ctrl-C.

    Outside the main thread signals stay as they are.
    """

    def end(number: int, frame: FrameType | None) -> None:
        interrupted = Interrupted(f"ended by {signal.Signals(number).name}")
        interrupted.exit_code = 128 + number
        raise interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
