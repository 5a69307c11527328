"""``python -m primebeaker.rehearsal.standins.services KIND``: serve one stand-in until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from primebeaker.rehearsal.standins.services.apps import APPS, Setting

_HEARTBEAT_SECONDS = 10.0


def main(words: list[str] | None = None) -> int:
    """Serve; returns the exit code."""
    parser = argparse.ArgumentParser(prog="primebeaker.rehearsal.standins.services")
    parser.add_argument("kind", choices=[*APPS])
    parser.add_argument("--name", required=True, help="the name it registers under")
    parser.add_argument("--registry", required=True, help="LiteRegistry URI")
    parser.add_argument("--folder", required=True, type=Path, help="a folder of its own; calls.jsonl there counts")
    parser.add_argument("--corpus", type=Path, help="JSONL corpus of the real service")
    given = parser.parse_args(words)
    given.folder.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = APPS[given.kind](Setting(given.name, given.corpus, given.folder, f"http://127.0.0.1:{port}"))
    _serve(_counted(app, given.folder / "calls.jsonl"), listener, given.registry, given.name, given.kind)
    return 0


def _serve(app: Any, listener: socket.socket, registry: str, name: str, kind: str) -> None:
    import uvicorn
    from literegistry import ServerRegistry, get_kvstore

    port = listener.getsockname()[1]
    entry = ServerRegistry(store=get_kvstore(registry))
    metadata = {"model_path": name, "host": "127.0.0.1", "port": port, "backend": "rehearsal stand-in", "kind": kind}

    @contextlib.asynccontextmanager
    async def registered() -> AsyncIterator[None]:
        await entry.register_server("http://127.0.0.1", port, metadata)

        async def beat() -> None:
            while True:
                await asyncio.sleep(_HEARTBEAT_SECONDS)
                await entry.heartbeat("http://127.0.0.1", port)

        beating = asyncio.create_task(beat())
        try:
            yield
        finally:
            beating.cancel()
            await entry.deregister()

    async def run() -> None:
        server = uvicorn.Server(uvicorn.Config(app, log_level="info", access_log=False))
        async with registered():
            sys.stdout.write(f"stand-in {kind} serves {name} on port {port}\n")
            sys.stdout.flush()
            await server.serve(sockets=[listener])

    asyncio.run(run())


def _counted(app: Any, calls: Path) -> Any:
    """The application, with one line in ``calls`` for each request of a client."""

    async def counting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        async def noted(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and not scope["path"].startswith("/upstream/"):
                with calls.open("a") as lines:
                    lines.write(json.dumps({"path": scope["path"], "status": message["status"]}) + "\n")
            await send(message)

        await app(scope, receive, noted if scope["type"] == "http" else send)

    return counting


if __name__ == "__main__":
    sys.exit(main())
