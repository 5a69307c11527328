"""JSON lines over TCP: how stand-ins meet where the real programs use NCCL, ZMQ or torch's store."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from primebeaker.errors import ExternalError, UserError

__all__ = ["Channel", "connect", "free_port", "listen"]


class Channel:
    """One connection that carries JSON values, a line each."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._stream = connection.makefile("rb")

    def send(self, value: Any) -> None:
        """Send one value.

        Raises:
            ExternalError: The other side is gone.
        """
        try:
            self._connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise ExternalError(f"the other side went away: {error}") from error

    def receive(self, timeout: float | None = None) -> Any:
        """The next value.

        Raises:
            ExternalError: The other side is gone, sent something else, or sent nothing for ``timeout`` seconds.
        """
        self._connection.settimeout(timeout)
        try:
            line = self._stream.readline()
            if line:
                return json.loads(line)
        except (OSError, ValueError) as error:
            raise ExternalError(f"no answer from the other side: {error}") from error
        raise ExternalError("the other side closed the connection")

    def close(self) -> None:
        """Close it."""
        self._stream.close()
        self._connection.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: The port is in use.
    """
    if not 0 < port < 65536:
        raise UserError(f"port {port}: expected 1 to 65535")
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
        server.listen(1024)
    except OSError as error:
        server.close()
        raise UserError(f"port {port} of {host} cannot be used: {error.strerror}") from error
    return server


def connect(host: str, port: int, timeout: float) -> Channel:
    """Connect, trying again until the other side listens.

    Raises:
        ExternalError: Nobody listened for ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return Channel(socket.create_connection((host, port), timeout=3))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ExternalError(f"nobody listens at {host}:{port} after {timeout:g} s ({error})") from error
            time.sleep(0.1)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
