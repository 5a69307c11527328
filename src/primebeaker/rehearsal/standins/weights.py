"""The weight group between trainer and inference, with the real one's ranks, port and time-out.

The trainer listens; every engine joins with as many ranks as it has GPUs, starting at the offset the orchestrator
gave it.  Only when all ranks of ``inference_world_size`` have joined does anything move, so a wrong world size hangs
here as it does in the real group, until the time-out tells who was missing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import NamedTuple

from primebeaker.errors import ExternalError, UserError
from primebeaker.rehearsal.standins.channel import Channel, listen

__all__ = ["EngineSide", "TrainerSide", "WeightGroup"]


class WeightGroup(NamedTuple):
    """Where the group meets and how large it is."""

    host: str
    port: int
    inference_ranks: int
    timeout: float


class TrainerSide:
    """The sender, on the trainer's rank 0.

    Raises:
        UserError: The port cannot be used.
    """

    def __init__(self, group: WeightGroup) -> None:
        self._group = group
        self._server = listen(group.host if group.host != "localhost" else "127.0.0.1", group.port)
        self._engines: list[Channel] = []

    def wait_for_all(self) -> None:
        """Wait until every inference rank has joined.

        Raises:
            ExternalError: Some did not within the time-out, or one joined twice or outside the group.
        """
        joined: set[int] = set()
        deadline = time.monotonic() + self._group.timeout
        expected = self._group.inference_ranks
        while len(joined) < expected:
            self._server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                channel = Channel(self._server.accept()[0])
            except TimeoutError:
                raise ExternalError(
                    f"weight group: {len(joined)} of {expected} inference ranks joined within {self._group.timeout:g} s"
                ) from None
            hello = channel.receive(10.0)
            ranks = set(range(hello["offset"], hello["offset"] + hello["ranks"]))
            if hello["world"] != expected or not ranks or max(ranks) >= expected or ranks & joined:
                raise ExternalError(
                    f"weight group: an engine joined with ranks {sorted(ranks)} of {hello['world']}, "
                    f"but the trainer expects {expected} and has {sorted(joined)}"
                )
            joined |= ranks
            self._engines.append(channel)

    def send(self, weights: bytes) -> None:
        """Send the weights to every engine and wait until all have them."""
        payload = base64.b64encode(weights).decode()
        for engine in self._engines:
            engine.send(payload)
        for engine in self._engines:
            engine.receive(self._group.timeout)


class EngineSide:
    """The receiver, in an engine. Made by :meth:`join`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def join(cls, group: WeightGroup, *, offset: int, ranks: int) -> EngineSide:
        """Join with ``ranks`` ranks from ``offset``, trying until the trainer listens.

        Raises:
            UserError: The trainer did not listen within the group's time-out.
        """
        deadline = time.monotonic() + group.timeout
        while True:
            try:
                reader, writer = await asyncio.open_connection(group.host, group.port, limit=2**26)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise UserError(f"weight group: nobody listens at {group.host}:{group.port}") from error
                await asyncio.sleep(0.1)
        hello = {"offset": offset, "ranks": ranks, "world": group.inference_ranks}
        writer.write(json.dumps(hello).encode() + b"\n")
        await writer.drain()
        return cls(reader, writer)

    async def receive(self) -> bytes:
        """The next weights.

        Raises:
            ExternalError: The trainer went away.
        """
        try:
            line = await self._reader.readline()
        except OSError as error:
            raise ExternalError(f"weight group: the trainer went away: {error}") from error
        if not line:
            raise ExternalError("weight group: the trainer closed the connection")
        self._writer.write(b"true\n")
        await self._writer.drain()
        return base64.b64decode(json.loads(line))

    def close(self) -> None:
        """Leave the group."""
        self._writer.close()
