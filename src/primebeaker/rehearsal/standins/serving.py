"""Serve a Starlette app on a socket that is already bound, ending at once on TERM."""

from __future__ import annotations

import contextlib
import socket

import uvicorn
from starlette.applications import Starlette

__all__ = ["serve"]


async def serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until the process ends.

    Signals are left alone: TERM ends the process at once, as it has nothing to save.
    """
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    server.capture_signals = contextlib.nullcontext
    await server.serve(sockets=[listener])
