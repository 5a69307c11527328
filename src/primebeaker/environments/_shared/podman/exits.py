"""The end of a process: its containers are closed on SIGTERM, SIGINT and at exit, without the rollouts' event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from primebeaker.environments._shared.podman.book import close_entries, unclosed_entries

__all__ = ["close_before_exit", "watch_exits"]

logger = logging.getLogger("primebeaker.environments")

#: Seconds that the end of a process may be held up.
EXIT_SECONDS = 9.0
_HURRY_SECONDS = 1.0

_closing = threading.Lock()
_at_exit = False


def watch_exits() -> None:
    """Close the containers of this process before whatever SIGTERM, SIGINT and the end of the interpreter do now.

    Signals are only watched when this is called in the main thread.  Called again, it wraps handlers that somebody
    put in its place in the meantime.
    """
    global _at_exit
    if not _at_exit:
        atexit.register(close_before_exit)
        _at_exit = True
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if not isinstance(before, _Closing):
            signal.signal(number, _Closing(before))


class _Closing:
    """A signal handler that closes all containers, then does what was to be done before."""

    def __init__(self, before: Callable[[int, FrameType | None], Any] | int | None) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        close_before_exit()
        if callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def close_before_exit() -> None:
    """Close all containers of this process in parallel, within :data:`EXIT_SECONDS`."""
    entries = unclosed_entries()
    # A second signal while the first one is served must not wait for it.
    if not entries or not _closing.acquire(blocking=False):
        return
    try:

        async def close() -> None:
            # What is left then is told below.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(close_entries(entries), EXIT_SECONDS)

        _run_beside(close)
    except Exception as error:
        logger.warning("closing containers at exit: %s", type(error).__name__)
    finally:
        _closing.release()
        for entry in entries:
            # Whoever tries again, the event loop's own clean-up, must not hold the process up as long once more.
            entry.hurry = _HURRY_SECONDS
    left = [entry.container[:12] for entry in entries if not entry.closed]
    if left:
        logger.warning("%d containers could not be deleted at exit: %s", len(left), ", ".join(left))


def _run_beside(work: Callable[[], Any]) -> None:
    """Run a coroutine function to its end, also from within a running event loop, which stands still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work())
        return
    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    thread.join(EXIT_SECONDS + 1)
