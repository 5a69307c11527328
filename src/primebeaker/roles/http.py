"""Small HTTP requests with limits on everything, without a heavy client library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

__all__ = ["Answer", "fetch", "fetch_json", "in_thread"]

_MOST_BYTES = 4 * 1024 * 1024


class Answer(NamedTuple):
    """An HTTP answer; ``status`` 0 means that there was none, and ``body`` says why."""

    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """For messages: the status, or why there is none."""
        return f"HTTP {self.status}" if self.status else self.body.decode("utf-8", "replace")


async def fetch(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    connect: float = 3.0,
    total: float = 10.0,
) -> Answer:
    """One request in a daemon thread.

    Args:
        url: ``http`` or ``https``.
        method: The method.
        body: JSON content, if any.
        headers: More headers.
        connect: Seconds for the connection.
        total: Seconds for everything; then the answer is "timed out".
    """
    try:
        async with asyncio.timeout(total + 1):
            return await in_thread(lambda: _request(url, method, body, headers or {}, connect, total))
    except TimeoutError:
        return Answer(0, b"timed out")


async def in_thread[T](function: Callable[[], T]) -> T:
    """Run in a daemon thread; the threads of the default executor would hold up the exit of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, value))

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except Exception as caught:
            error = caught
        # The loop is closed when the process is on its way out.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=work, name="blocking", daemon=True).start()
    return await future


async def fetch_json(url: str, *, connect: float = 3.0, total: float = 10.0) -> tuple[Answer, Any]:
    """A GET whose body is JSON; None where it is not."""
    answer = await fetch(url, connect=connect, total=total)
    try:
        return answer, json.loads(answer.body)
    except ValueError:
        return answer, None


def _request(
    url: str, method: str, body: bytes | None, headers: dict[str, str], connect: float, total: float
) -> Answer:
    # Many roles never ask anybody.
    import http.client

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=connect)
    try:
        connection.connect()
        if isinstance(connection.sock, socket.socket):
            connection.sock.settimeout(total)
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        sent = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, body=body, headers={"Connection": "close", **sent, **headers})
        response = connection.getresponse()
        return Answer(response.status, response.read(_MOST_BYTES))
    except TimeoutError:
        return Answer(0, b"timed out")
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return Answer(0, reason.lower().encode())
    finally:
        connection.close()
