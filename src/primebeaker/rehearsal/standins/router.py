"""Stand-in for ``vllm-router``: one HTTP front for all engines, with sessions kept on one worker.

Passes every request on to a healthy worker as it comes, streams included; ``x-session-id`` always leads to the same
worker as long as that one is healthy.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from primebeaker.errors import ExternalError, UserError
from primebeaker.rehearsal.standins.channel import listen
from primebeaker.rehearsal.standins.program import Arguments, FlagKind, log, parse, run
from primebeaker.rehearsal.standins.serving import serve

FLAGS: Mapping[str, FlagKind] = {
    "--worker-urls": "list",
    "--request-id-headers": "list",
    **dict.fromkeys(
        ("--policy", "--host", "--port", "--prometheus-port", "--worker-startup-timeout-secs"),
        "value",
    ),
}
POLICIES = ("consistent_hash", "round_robin", "random", "cache_aware", "power_of_two")
_LOOK_SECONDS = 0.5
#: Headers that belong to one connection and are not passed on.
_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


class Router:
    """The workers, which of them answer, and the way to one of them."""

    def __init__(self, workers: list[str], header: str, client: httpx.AsyncClient) -> None:
        self.workers = workers
        self.healthy: set[str] = set()
        self.requests = 0
        self._header = header
        self._client = client
        self._turn = itertools.count()

    def app(self) -> Starlette:
        """The client-facing application."""
        everything = Route("/{path:path}", self.forward, methods=["GET", "POST", "PUT", "DELETE", "OPTIONS"])
        return Starlette(routes=[Route("/health", self.health), everything])

    def metrics_app(self) -> Starlette:
        """The application behind the metrics port."""
        return Starlette(routes=[Route("/metrics", self.metrics)])

    async def health(self, request: Request) -> Response:
        """200 when all workers are healthy."""
        missing = sorted(set(self.workers) - self.healthy)
        return JSONResponse({"unhealthy": missing}, status_code=503 if missing else 200)

    async def metrics(self, request: Request) -> Response:
        """The counters, in Prometheus' text form."""
        return PlainTextResponse(f"router_requests_total {self.requests}\nrouter_active_workers {len(self.healthy)}\n")

    async def watch(self, startup_timeout: float) -> None:
        """Keep looking which workers are healthy.

        Raises:
            ExternalError: Not all were within the start-up time.
        """
        deadline = time.monotonic() + startup_timeout
        started = False
        while True:
            answers = await asyncio.gather(*(self._is_healthy(worker) for worker in self.workers))
            self.healthy = {worker for worker, well in zip(self.workers, answers, strict=True) if well}
            if not started and len(self.healthy) == len(self.workers):
                started = True
                log(f"all {len(self.workers)} workers are healthy")
            if not started and time.monotonic() > deadline:
                missing = sorted(set(self.workers) - self.healthy)
                raise ExternalError(f"workers not healthy within {startup_timeout:g} s: {', '.join(missing)}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _is_healthy(self, worker: str) -> bool:
        try:
            return (await self._client.get(f"{worker}/health", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    def choose(self, session: str | None) -> str | None:
        """The worker of a session (any one without a session), or None when none is healthy."""
        if not self.healthy:
            return None
        if session is None:
            healthy = sorted(self.healthy)
            return healthy[next(self._turn) % len(healthy)]
        # Highest random weight: a worker that goes away moves its own sessions only.
        return max(self.healthy, key=lambda worker: hashlib.sha256(f"{session}\0{worker}".encode()).digest())

    async def forward(self, request: Request) -> Response:
        """Pass a request on to its worker and the answer back."""
        worker = self.choose(request.headers.get(self._header))
        if worker is None:
            return JSONResponse({"error": {"message": "no healthy worker"}}, status_code=503)
        self.requests += 1
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        url = f"{worker}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
        outgoing = self._client.build_request(request.method, url, headers=headers, content=await request.body())
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            return JSONResponse({"error": {"message": f"{worker}: {error}"}}, status_code=502)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        return StreamingResponse(_chunks(answer), status_code=answer.status_code, headers=kept)


async def _chunks(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def main(words: list[str]) -> int:
    """Serve the router."""
    arguments = parse(words, FLAGS)
    policy = arguments.one("--policy", "cache_aware")
    if policy not in POLICIES:
        raise UserError(f"--policy = {policy!r}: expected one of {', '.join(POLICIES)}")
    workers = [url.rstrip("/") for url in arguments.values.get("--worker-urls", [])]
    for worker in workers:
        parts = urlsplit(worker)
        if parts.scheme != "http" or not parts.hostname or parts.path:
            raise UserError(f"--worker-urls {worker}: expected http://host:port")
    if not workers:
        raise UserError("--worker-urls: expected at least one worker")
    if len(set(workers)) != len(workers):
        raise UserError("--worker-urls: a worker is named twice")
    asyncio.run(_serve(arguments, workers))
    return 0


async def _serve(arguments: Arguments, workers: list[str]) -> None:
    host, port = arguments.one("--host", "127.0.0.1"), arguments.number("--port", 30000)
    listener, metrics_listener = listen(host, port), listen(host, arguments.number("--prometheus-port", 29000))
    timeout = float(arguments.number("--worker-startup-timeout-secs", 600))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5.0), limits=limits) as client:
        router = Router(workers, arguments.one("--request-id-headers", "x-session-id"), client)
        log(f"routing port {port} to {len(workers)} workers")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(router.app(), listener))
            tasks.create_task(serve(router.metrics_app(), metrics_listener))
            tasks.create_task(router.watch(timeout))


if __name__ == "__main__":
    run("vllm-router", main)
