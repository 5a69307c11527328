"""The web application: pages, the JSON interface, live events.

ASGI target ``primebeaker.watcher.app:app`` (index from ``WATCHER_DATABASE``, default ``watcher.sqlite3``) and factory
:func:`create_app`.  Importing this module opens nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as WebRoute

from primebeaker.errors import PrimeBeakerError, UserError
from primebeaker.watcher import pages
from primebeaker.watcher.api import ROUTES, Context, NotFoundError, PlainText, Route, openapi
from primebeaker.watcher.assets import asset_url, assets
from primebeaker.watcher.database import open_reader, read_version, reading
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.lists import generation_of
from primebeaker.watcher.locking import is_scanning
from primebeaker.watcher.metrics import Curves
from primebeaker.watcher.parameters import check_parameters
from primebeaker.watcher.security import Guard
from primebeaker.watcher.wandb_fetch import REQUEST_SECONDS, Fetcher, Wanted

__all__ = ["Server", "app", "create_app"]

_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 1.0
_MOST_CLIENTS = 50
_RESPONSE_LIMIT = 10 * 2**20
_REMEMBERED = 128
_REMEMBERED_BYTES = 16 * 2**20
_REVALIDATE = "private, no-cache"


class Server:
    """What the handlers share.

    Attributes:
        database: The index.
        base: The path under which everything is served, without a trailing slash.
        scan: Starts a scan now; None when scans are not this server's business.
    """

    def __init__(
        self,
        database: Path,
        *,
        base: str = "",
        scan: Callable[[], bool] | None = None,
        wandb_secret: str | None = None,
    ) -> None:
        self.database = database
        self.base = base
        self.scan = scan
        self.metrics = Curves.beside(database)
        assert self.metrics.store is not None
        self.fetcher = Fetcher(self.metrics.store, wandb_secret)
        self.clients = 0
        self._answers: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def remember(self, generation: int, name: str, make: Callable[[], bytes]) -> bytes:
        """An answer that depends on the index alone: made once a generation, the oldest are forgotten."""
        key = (generation, name)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = make()
        with self._lock:
            if key not in self._answers:
                self._answers[key] = answer
                self._size += len(answer)
            while self._size > _REMEMBERED_BYTES or len(self._answers) > _REMEMBERED:
                self._size -= len(self._answers.popitem(last=False)[1])
        return answer


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _encoded(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = value if isinstance(value, bytes) else _encoded(value)
    if len(body) > _RESPONSE_LIMIT:
        return JSONResponse({"detail": "the answer exceeds 10 MiB; ask for a smaller limit"}, 422)
    return Response(body, status, dict(headers or {}), "application/json")


def _tag(generation: int, request: Request, more: str = "") -> str:
    text = f"{generation}|{request.url.path}|{request.url.query}|{request.headers.get('hx-request', '')}|{more}"
    return f'W/"{hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=10).hexdigest()}"'


def _given(request: Request) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        given.setdefault(name, []).append(value)
    return given


def _api(server: Server, route: Route) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        query = check_parameters(route.parameters, _given(request))
        with reading(server.database) as connection:
            generation = generation_of(connection)
            more = str(id(server.metrics)) if "metrics" in route.path else ""
            tag = _tag(generation, request, more)
            headers = {"ETag": tag, "Cache-Control": _REVALIDATE, "Vary": "Accept-Encoding"}
            if not more and request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            context = Context(connection, query, request.path_params, server.metrics)
            if more or route.path.endswith("/config"):
                answer = route.handler(context)
            else:
                answer = server.remember(generation, tag, lambda: _encoded(route.handler(context)))
        if isinstance(answer, PlainText):
            return Response(answer.encode("utf-8", "backslashreplace"), 200, headers, "text/plain; charset=utf-8")
        if more:
            digest = hashlib.blake2b(json.dumps(answer, sort_keys=True).encode(), digest_size=10).hexdigest()
            headers["ETag"] = f'W/"{digest}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
        return _json(answer, 200, headers)

    return handle


def _curves(server: Server, route: Route) -> Callable[[Request], Any]:
    """A route whose values may have to be fetched first: it waits without a thread, so that other pages stay fast."""
    answer = _api(server, route)

    def due(request: Request) -> list[Wanted]:
        if route.wanted is None:
            return []
        try:
            query = check_parameters(route.parameters, _given(request))
            with reading(server.database) as connection:
                context = Context(connection, query, request.path_params, server.metrics)
                return server.fetcher.due(route.wanted(context))
        except (PrimeBeakerError, NotFoundError):
            # The route itself says so.
            return []

    async def handle(request: Request) -> Response:
        wanted = await asyncio.to_thread(due, request)
        if wanted:
            await asyncio.wait([asyncio.wrap_future(server.fetcher.submit(wanted))], timeout=REQUEST_SECONDS)
        return await asyncio.to_thread(answer, request)

    return handle


def _page(server: Server, page: pages.Page) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        try:
            with reading(server.database) as connection:
                generation = generation_of(connection)
                tag = _tag(generation, request, pages.VERSION)
                headers = {"ETag": tag, "Cache-Control": _REVALIDATE, "Vary": "Accept-Encoding, HX-Request"}
                if request.headers.get("if-none-match") == tag:
                    return Response(status_code=304, headers=headers)
                query = check_parameters(page.parameters, _given(request))
                context = Context(connection, query, request.path_params, server.metrics)
                frame = pages.Frame(server.base, request.url.path, request.url.query, generation)
                text = server.remember(
                    generation, tag, lambda: page.render(context, frame).encode("utf-8", "backslashreplace")
                )
        except NotFoundError as error:
            return Response(pages.problem(server.base, "Not found", str(error)), 404, media_type="text/html")
        except DatabaseUnusableError as error:
            return Response(
                pages.problem(server.base, "The index cannot be used", str(error)), 503, media_type="text/html"
            )
        except UserError as error:
            if not server.database.exists():
                return Response(pages.no_database(server.base, server.database), 503, media_type="text/html")
            return Response(pages.problem(server.base, "Not understood", str(error)), 422, media_type="text/html")
        return Response(text, 200, headers, "text/html; charset=utf-8")

    return handle


def _health(server: Server) -> Callable[[Request], Response]:
    def handle(_request: Request) -> Response:
        answer: dict[str, Any] = {
            "ok": False,
            "database": str(server.database),
            "schema_version": None,
            "generation": None,
            "scan_running": is_scanning(server.database),
        }
        try:
            with reading(server.database) as connection:
                answer["schema_version"] = read_version(connection)
                answer["generation"] = generation_of(connection)
                answer["ok"] = True
        except PrimeBeakerError:
            return _json(answer, 503)
        return _json(answer)

    return handle


def _progress(connection: sqlite3.Connection, database: Path) -> tuple[int, dict[str, Any]]:
    """The generation, and how far a running scan is (a rebuild writes elsewhere, so it has no numbers)."""
    if not is_scanning(database):
        return generation_of(connection), {"running": False}
    row = connection.execute(
        "SELECT files_seen, files_parsed FROM scans WHERE status = 'running' ORDER BY id DESC LIMIT 1"
    ).fetchone()
    numbers = {"files_seen": row[0], "files_parsed": row[1]} if row else {}
    return generation_of(connection), {"running": True, **numbers}


def _events(server: Server) -> Callable[[Request], Any]:
    async def stream(request: Request) -> AsyncIterator[str]:
        server.clients += 1
        connection: Any = None
        last: tuple[int, dict[str, Any]] | None = None
        quiet = 0.0
        try:
            while not await request.is_disconnected():
                try:
                    if connection is None:
                        connection = await asyncio.to_thread(open_reader, server.database)
                    now = await asyncio.to_thread(_progress, connection, server.database)
                except Exception:
                    if connection is not None:
                        connection.close()
                    connection, now = None, last or (-1, {"running": False})
                if last is None or now[0] != last[0]:
                    yield f"event: generation\ndata: {now[0]}\n\n"
                if last is not None and now[1] != last[1]:
                    yield f"event: scan\ndata: {json.dumps(now[1])}\n\n"
                last = now
                quiet += _POLL_SECONDS
                if quiet >= _HEARTBEAT_SECONDS:
                    quiet = 0.0
                    yield ": heartbeat\n\n"
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            server.clients -= 1
            if connection is not None:
                connection.close()

    async def handle(request: Request) -> Response:
        if set(request.query_params) - {"since"}:
            raise UserError(f"unknown parameter {next(iter(set(request.query_params) - {'since'}))}")
        if server.clients >= _MOST_CLIENTS:
            return _json({"detail": f"{_MOST_CLIENTS} clients are listening already"}, 429)
        return StreamingResponse(stream(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return handle


def _scan(server: Server) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        if request.method != "POST":
            return _json({"detail": "expected POST"}, 405)
        if server.scan is None:
            return _json({"detail": "scans are started with --scan_interval only"}, 404)
        started = server.scan()
        return _json({"detail": "asked for" if started else "a scan is running"}, 202 if started else 409)

    return handle


def _asset(request: Request) -> Response:
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404, "no such asset")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset.content, 200, headers, asset.media_type)


def _error(_request: Request, error: Exception) -> Response:
    if isinstance(error, NotFoundError):
        return _json({"detail": str(error)}, 404)
    if isinstance(error, DatabaseUnusableError):
        return _json({"detail": str(error)}, 503)
    if isinstance(error, UserError):
        return _json({"detail": str(error)}, 503 if "does not exist" in str(error) else 422)
    if isinstance(error, HTTPException):
        return _json({"detail": error.detail or "refused"}, error.status_code)
    return _json({"detail": "internal fault"}, 500)


def create_app(
    *,
    database: str | Path | None = None,
    base_path: str = "/",
    hosts: frozenset[str] = frozenset(),
    token: str | None = None,
    scan: Callable[[], bool] | None = None,
    wandb_secret: str | None = None,
) -> Guard:
    """The ASGI application.

    Args:
        database: The index; by default that of ``WATCHER_DATABASE``, at the first request.
        base_path: Path under which everything is served.
        hosts: Further names the ``Host`` header may have.
        token: What every request must bring.
        scan: Starts a scan; False when one is running.
        wandb_secret: Name of the Beaker secret that holds the W&B key, when WANDB_API_KEY is not set.
    """
    base = "/" + base_path.strip("/") if base_path.strip("/") else ""
    chosen = Path(database) if database is not None else Path(os.environ.get("WATCHER_DATABASE", "watcher.sqlite3"))
    server = Server(Path.cwd() / chosen, base=base, scan=scan, wandb_secret=wandb_secret)
    routes: list[BaseRoute] = [
        WebRoute(route.path, _curves(server, route) if route.wanted else _api(server, route)) for route in ROUTES
    ]
    routes += [WebRoute(page.path, _page(server, page)) for page in pages.PAGES]
    description = openapi()
    routes += [
        WebRoute("/health", _health(server)),
        WebRoute("/api/openapi.json", lambda _request: _json(description)),
        WebRoute("/api/events", _events(server)),
        WebRoute("/api/scan", _scan(server), methods=["GET", "POST"]),
        WebRoute("/assets/{name}", _asset),
        WebRoute("/watcher.js", lambda _request: RedirectResponse(base + asset_url("watcher.js"), 307)),
        WebRoute("/favicon.ico", lambda _request: RedirectResponse(base + asset_url("favicon.svg"), 307)),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((NotFoundError, PrimeBeakerError, HTTPException, Exception), _error)
    inner = Starlette(routes=[Mount(base, routes=routes)] if base else routes, exception_handlers=handlers)
    return Guard(GZipMiddleware(inner, minimum_size=1024), hosts=hosts, token=token)


class _Lazy:
    """The ASGI target: made at the first connection, so that an import reads no environment and opens no file."""

    def __init__(self) -> None:
        self._made: Guard | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one connection."""
        if self._made is None:
            self._made = create_app()
        await self._made(scope, receive, send)


app = _Lazy()
