"""One line a request on standard error: method, path, status, time.  Never a query string, never a header."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["AccessLog"]

_WAITING = 10_000
_PATH_LENGTH = 300


class AccessLog:
    """An ASGI application that logs what another one answers.

    A thread of its own writes, so that whoever does not read standard error never holds the server up; lines beyond
    ten thousand waiting ones are dropped.

    Args:
        application: What is logged.
        stream: Where to; standard error by default.
    """

    def __init__(self, application: Callable[..., Awaitable[None]], stream: TextIO | None = None) -> None:
        self._application = application
        self._stream = stream or sys.stderr
        self._lines: queue.Queue[str] = queue.Queue(_WAITING)
        threading.Thread(target=self._write, name="access-log", daemon=True).start()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._application(scope, receive, noting)
        finally:
            self._put(scope["method"], scope["path"], status, time.monotonic() - began)

    def _put(self, method: str, path: str, status: int, seconds: float) -> None:
        # A path may hold line ends and terminal codes; as text of an ASCII literal it is harmless.
        shown = path[:_PATH_LENGTH].encode("unicode_escape").decode("ascii")
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(f"{moment} {method} {shown} {status} {1000 * seconds:.0f} ms\n")

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):
                return
