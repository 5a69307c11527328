"""Can the peers be reached at the addresses they published?

Asked once before any process starts: a wrong address would otherwise show as a hang inside torchrun or NCCL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from primebeaker.roles.causes import ExitCode, RoleFault
from primebeaker.roles.topology import Member

__all__ = ["Listener", "reach"]

_CONNECT_SECONDS = 3.0
_TRIES = 3
_PAUSE_SECONDS = 0.2
_KNOCKING_SECONDS = 60.0


class Listener:
    """A port that only accepts and closes connections."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        #: The port the system chose.
        self.port: int = server.sockets[0].getsockname()[1]

    @classmethod
    async def open(cls) -> Listener:
        """Listen on every interface."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        return cls(await asyncio.start_server(accept, "0.0.0.0", 0))  # noqa: S104  peers on other nodes knock

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    async def close_later(self) -> None:
        """Stop listening when every peer has had its time to knock."""
        try:
            await asyncio.sleep(_KNOCKING_SECONDS)
        finally:
            self.close()


async def reach(members: Sequence[Member], rank: int) -> None:
    """Connect to the leader; the leader connects to everybody.

    Raises:
        RoleFault: A peer cannot be reached (93); names both hosts and the address.
    """
    me = next(member for member in members if member.rank == rank)
    targets = [member for member in members if member.rank != rank and (rank == 0 or member.rank == 0)]
    await asyncio.gather(*(_knock(me, target) for target in targets))


async def _knock(me: Member, target: Member) -> None:
    reason = ""
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(target.ip, target.probe_port)
            writer.close()
            return
        except TimeoutError:
            reason = f"no answer within {_CONNECT_SECONDS:g} s"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    raise RoleFault(
        ExitCode.BARRIER_TIMEOUT,
        "unreachable",
        f"rank {me.rank} on {me.host} cannot reach rank {target.rank} on {target.host} "
        f"at {target.ip}:{target.probe_port}: {reason}",
        hint="set PRIMEBEAKER_NODE_IP to an address that peers can reach",
    )
