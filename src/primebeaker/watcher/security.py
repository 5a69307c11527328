"""What stands between the network and the pages: methods, host, token, headers. Pure ASGI."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

__all__ = ["HEADERS", "Guard"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_COOKIE = "primebeaker_watcher"
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_LINE_LIMIT = 8 * 2**10
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/\s]+)(?::\d+)?")


@dataclass
class Guard:
    """Refuses what must not reach the pages, and adds the security headers to every answer.

    Attributes:
        application: What is guarded.
        hosts: Names that the ``Host`` header may have, besides those of the loopback interface.
        token: The secret every request but ``/health`` must bring; None asks for none.
    """

    application: Application
    hosts: frozenset[str] = frozenset()
    token: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                extra = [pair for pair in HEADERS if pair[0] not in present]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(guarded, *refusal)
            return
        location = self._login(scope)
        if location is not None and self.token is not None:
            cookie = f"{_COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            headers = [(b"location", location.encode("latin-1", "ignore")), (b"set-cookie", cookie.encode())]
            await guarded({"type": "http.response.start", "status": 303, "headers": headers})
            await guarded({"type": "http.response.body", "body": b""})
            return
        await self.application(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _LINE_LIMIT:
            return 400, "the request line is longer than 8 KiB"
        if method not in ("GET", "HEAD") and not (method == "POST" and path == "/api/scan"):
            return 405, f"{method} is not allowed"
        match = _HOST.fullmatch(headers.get("host", ""))
        if match is None or match[1].lower() not in _LOCAL | self.hosts:
            return 403, "this Host is not served; start with --allowed_host=NAME to allow it"
        if path.startswith("/api") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "requests of other sites are refused"
        if method == "POST" and headers.get("origin", "").partition("://")[2] != headers.get("host"):
            return 403, "a scan is only started from these pages"
        if self.token is not None and path != "/health" and not self._is_known(headers, scope):
            return 401, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN once"
        return None

    def _is_known(self, headers: dict[str, str], scope: Scope) -> bool:
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        given += [value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "token"]
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except Exception:
            morsel = None
        given.append(morsel.value if morsel else "")
        token = (self.token or "").encode()
        # No short cut: the time must not tell which of them was right.
        return sum(hmac.compare_digest(value.encode("utf-8", "replace"), token) for value in given) > 0

    def _login(self, scope: Scope) -> str | None:
        """Where to go on without the token in the URL."""
        if self.token is None or b"token=" not in scope["query_string"]:
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" for name, _ in pairs):
            return None
        query = urlencode([(name, value) for name, value in pairs if name != "token"])
        path = "/" + bytes(scope.get("raw_path", b"/")).decode("latin-1").lstrip("/")
        return path + (f"?{query}" if query else "")


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
