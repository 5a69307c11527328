"""LiteRegistry's own Python or terminal server for a rehearsal: the real service, on a port the system gives.

Around it stands the one thing a fault needs: for a while it can answer 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from primebeaker.errors import UserError
from primebeaker.rehearsal.faults import parse_faults
from primebeaker.rehearsal.settings import DIRECTORY, is_rehearsal, load_settings
from primebeaker.rehearsal.standins.program import parse

__all__ = ["SERVICES", "Outage", "Window"]

_HOST = "127.0.0.1"
_HEARTBEAT_SECONDS = 2
_WORKERS = 2
SERVICES = ("python", "terminal")


class Window(NamedTuple):
    """An outage: the file whose appearance starts it, and how long it lasts."""

    struck: Path
    seconds: float

    @property
    def is_now(self) -> bool:
        """Whether it has started and is not over."""
        try:
            return time.time() - self.struck.stat().st_mtime < self.seconds
        except FileNotFoundError:
            return False


class Outage:
    """An ASGI application that answers 503 in its windows, and else what the service says."""

    def __init__(self, app: Any, windows: Sequence[Window]) -> None:
        self._app = app
        self._windows = windows

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one connection."""
        if scope["type"] != "http" or not any(window.is_now for window in self._windows):
            await self._app(scope, receive, send)
            return
        body = b'{"error": "a fault of the rehearsal"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main(words: list[str]) -> int:
    """Serve one tool until TERM."""
    arguments = parse(words, dict.fromkeys(("--service", "--registry", "--directory"), "value"))
    name, directory = arguments.one("--service"), Path(arguments.one("--directory"))
    if name not in SERVICES:
        raise UserError(f"--service = {name!r}: expected one of {', '.join(SERVICES)}")
    if not is_rehearsal():
        raise UserError("this serves rehearsals")
    faults = parse_faults(load_settings({DIRECTORY: str(directory)}).faults)
    windows = [
        Window(directory / f"struck-{number}", float(fault.values["seconds"]))
        for number, fault in enumerate(faults)
        if fault.what == "tool-outage" and fault.values["name"] == name
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((_HOST, 0))
        server = _server(name, arguments.one("--registry"), listener.getsockname()[1])
        config = uvicorn.Config(Outage(server.app, windows), log_level="warning", access_log=False)
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
    return 0


def _server(name: str, registry: str, port: int) -> Any:
    """LiteRegistry's server, which registers at its start."""
    common = {"host": _HOST, "port": port, "registry": registry, "heartbeat_interval": _HEARTBEAT_SECONDS}
    server: Any
    if name == "python":
        from literegistry.services.code_server import StatelessCodeExecutorConfig, StatelessCodeExecutorServer

        config = StatelessCodeExecutorConfig(**common, pool_size=_WORKERS)
        # Its workers are forks: what is loaded here is loaded once, and before anybody waits for an answer.
        for name in config.default_tools:
            with contextlib.suppress(ImportError):
                importlib.import_module(config.tool_specs.get(name, name).partition(":")[0])
        server = StatelessCodeExecutorServer(config)
    else:
        from literegistry.services.terminal_server import TerminalPipelineServer, TerminalServerConfig

        server = TerminalPipelineServer(TerminalServerConfig(**common))
    # By default it registers under the host's name, which need not lead anywhere on a laptop.
    server.url = f"http://{_HOST}"
    return server


if __name__ == "__main__":
    # The workers of the Python server import this module anew and must not serve themselves.
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"tool service: {error}")
