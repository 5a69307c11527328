"""LiteRegistry's own Podman server and affinity gateway, with a stand-in for the ``podman`` program below them.

Routes, schemas, limits, error texts, capacity and idle reaper are LiteRegistry's code.  What stands in is the program that
starts containers: either the script beside this file, whose containers are real isolated process trees, or (for load) a
function that answers at once (:class:`AnsweringBackend`).  Faults are injected in front of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from aiohttp import web
from literegistry.affinity import StrictAffinityBindingStore
from literegistry.gateway import GatewayRequestError
from literegistry.gateway.affinity import StrictAffinityGateway
from literegistry.http import HTTPResponseError
from literegistry.kvstore import KeyValueStore
from literegistry.services.podman import (
    CompletedPodmanCommand,
    PodmanAffinityConfig,
    PodmanAffinityService,
    PodmanSessionBackend,
    create_app,
)
from starlette.requests import Request

_JSON = {"content-type": "application/json"}

PROGRAM = Path(__file__).with_name("podman")


class Fault(NamedTuple):
    """What happens to one request.

    Args:
        status: It gets this HTTP status instead of being served.
        served: Whether it is served all the same before the connection is dropped.
        dropped: Whether the connection is dropped.
        hangs: Whether it is never answered; served first when ``served``.
        seconds: How long it waits before it is served.
        changes: Keys of the reply that are replaced.
    """

    status: int | None = None
    served: bool = False
    dropped: bool = False
    hangs: bool = False
    seconds: float = 0.0
    changes: Mapping[str, Any] = {}


NO_FAULT = Fault()
DROPPED_BEFORE = Fault(dropped=True)
DROPPED_AFTER = Fault(dropped=True, served=True)
HANGING = Fault(hangs=True)
HANGING_AFTER = Fault(hangs=True, served=True)


def http_error(status: int) -> Fault:
    """Answer with an HTTP error."""
    return Fault(status=status)


class ScriptBackend(PodmanSessionBackend):
    """Containers made by the program beside this file."""

    def __init__(self, home: Path, **config: Any) -> None:
        super().__init__(PodmanAffinityConfig(podman_binary=str(PROGRAM), **config))
        self._podman_env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "FAKE_PODMAN_HOME": str(home)}


#: Answers a command: from container id, command and stdin to (stdout, exit code).
Answering = Callable[[str, str, str], tuple[str, int]]


class AnsweringBackend(PodmanSessionBackend):
    """No containers: a function answers every command at once."""

    def __init__(self, answer: Answering, **config: Any) -> None:
        super().__init__(PodmanAffinityConfig(**config))
        self._answer = answer
        self.running: dict[str, str] = {}

    async def _run(self, args: list[str], *, stdin: bytes = b"", timeout: float | None = None) -> Any:
        verb, words = args[2], args[3:]
        stdout, code = "", 0
        if verb == "run":
            stdout = secrets.token_hex(32)
            self.running[stdout] = words[words.index("--") + 1]
        elif verb == "exec":
            container = words[words.index("/bin/bash") - 1]
            stdout, code = self._answer(container, words[-1], stdin.decode())
        elif verb == "rm":
            self.running.pop(words[-1], None)
        elif verb == "ps":
            stdout = "\n".join(self.running)
        return CompletedPodmanCommand(tuple(args), code, stdout.encode(), b"")


class MemoryStore(KeyValueStore):
    """Where the gateway keeps its bindings."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    async def set(self, key: str, value: bytes | str, ttl_seconds: float | None = None) -> bool:
        self._values[key] = value.encode() if isinstance(value, str) else value
        return True

    async def delete(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    async def exists(self, key: str) -> bool:
        return key in self._values

    async def keys(self) -> list[str]:
        return list(self._values)


class OneServer:
    """The registry that the gateway asks: one Podman server."""

    URI = "http://podman.invalid"

    async def models(self, force: bool = False) -> dict[str, Any]:
        return {"podman": [{"server_id": "podman-1", "uri": self.URI}]}

    async def sample_servers(self, service: str, n: int = 1, force: bool = False) -> list[tuple[str, float]]:
        return [(self.URI, 1.0)]


class InProcessTransport:
    """From the gateway to the Podman server's own application, without a network between them."""

    def __init__(self, app: Any) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=OneServer.URI, timeout=None)

    async def post(self, service: str, server_uri: str, endpoint: str, payload: dict[str, Any], retry: Any) -> Any:
        reply = await self._client.post(f"/{endpoint}", content=json.dumps(payload), headers=_JSON)
        if reply.status_code >= 400:
            raise HTTPResponseError(reply.status_code, reply.json(), server_uri)
        return reply.json()

    async def close(self) -> None:
        await self._client.aclose()


class PodmanService:
    """The service on a loopback port, in its own thread and event loop.

    Args:
        backend: What runs containers.
        faults: From the route's last part and the request's body to what happens to it.
        port: 0 lets the system choose.
    """

    def __init__(
        self,
        backend: PodmanSessionBackend,
        faults: Callable[[str, dict[str, Any]], Fault] = lambda route, body: NO_FAULT,
        port: int = 0,
    ) -> None:
        self.backend = backend
        self.faults = faults
        #: The route's last part and body of every request, in order.
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keeps_requests = True
        self.in_flight = self.most_in_flight = 0
        self.url = ""
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> PodmanService:
        self._thread.start()
        self.url = self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def run(self, work: Awaitable[Any]) -> Any:
        """Run a coroutine in the service's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)  # type: ignore[arg-type]

    @property
    def containers(self) -> list[str]:
        """The ids of the containers there are."""
        return self.run(self.backend.owned_container_ids())

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return len(self._runner.server.connections) if self._runner.server else 0

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """The bodies of the requests to a route."""
        return [body for name, body in self.requests if name == route]

    async def _start(self) -> str:
        self._transport = InProcessTransport(create_app(PodmanAffinityService(self.backend), None))
        bindings = StrictAffinityBindingStore(MemoryStore())
        gateway = StrictAffinityGateway(OneServer(), bindings, transport=self._transport)
        self._handlers = {"handshake": gateway.handshake, "podman": gateway.podman, "close": gateway.close}
        self._reaper = asyncio.ensure_future(self.backend.janitor_loop())
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/affinity/{route}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _stop(self) -> None:
        self._reaper.cancel()
        await self._runner.cleanup()
        await self.backend.cleanup()
        await self._transport.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer_one(request)
        finally:
            self.in_flight -= 1

    async def _answer_one(self, request: web.Request) -> web.StreamResponse:
        route, raw = request.match_info["route"], await request.read()
        body = json.loads(raw)
        if self.keeps_requests:
            self.requests.append((route, body))
        fault = self.faults(route, body)
        if fault.status is not None:
            return web.json_response({"error": f"injected {fault.status}"}, status=fault.status)
        reply = None
        await asyncio.sleep(fault.seconds)
        if fault.served or not (fault.dropped or fault.hangs):
            reply = await self._served(route, raw)
        if fault.hangs:
            with contextlib.suppress(ConnectionError):
                while request.transport is not None and not request.transport.is_closing():
                    await asyncio.sleep(0.05)
        if fault.hangs or fault.dropped:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        assert reply is not None
        if fault.changes:
            return web.json_response({**json.loads(reply.body), **fault.changes})
        return reply

    async def _served(self, route: str, raw: bytes) -> Any:
        """What the gateway answers, errors told as its own application tells them."""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw, "more_body": False}

        scope = {"type": "http", "method": "POST", "path": f"/affinity/{route}", "headers": [], "query_string": b""}
        try:
            found = await self._handlers[route](Request(scope, receive))
        except GatewayRequestError as error:
            body = error.response_body or {"error": str(error), "status": "failed"}
            return web.json_response(dict(body), status=error.status_code)
        except HTTPResponseError as error:
            return web.json_response(error.body, status=error.status)
        return web.Response(body=bytes(found.body), content_type="application/json", status=found.status_code)
