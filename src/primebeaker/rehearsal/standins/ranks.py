"""The meeting of a trainer's ranks, where the real one uses NCCL collectives over torch's store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from primebeaker.errors import ExternalError, UserError
from primebeaker.rehearsal.standins.channel import Channel, connect, listen

__all__ = ["Ranks", "World", "world_of"]

_MEETING_SECONDS = 60.0


@dataclass(frozen=True)
class World:
    """A worker's place, as torchrun tells it by the environment."""

    rank: int
    local_rank: int
    size: int
    address: str
    port: int


def world_of(environment: Mapping[str, str] | None = None) -> World:
    """The place torchrun gave this worker.

    Raises:
        UserError: A variable is missing or out of range.
    """
    environment = os.environ if environment is None else environment
    numbers: dict[str, int] = {}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
        value = environment.get(name, "")
        if not value.isdigit():
            raise UserError(f"{name} = {value!r}: torchrun sets it to a whole number")
        numbers[name] = int(value)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise UserError(f"RANK = {numbers['RANK']}: expected less than WORLD_SIZE = {numbers['WORLD_SIZE']}")
    return World(
        numbers["RANK"],
        numbers["LOCAL_RANK"],
        numbers["WORLD_SIZE"],
        environment.get("MASTER_ADDR", "127.0.0.1"),
        numbers["MASTER_PORT"],
    )


class Ranks:
    """All ranks of one trainer; rank 0 listens, the others connect.

    Raises:
        UserError: Rank 0 cannot listen at the master's port.
        ExternalError: Not all ranks came within a minute.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._others: dict[int, Channel] = {}
        if world.size == 1:
            return
        if world.rank:
            self._master = connect(world.address, world.port, _MEETING_SECONDS)
            self._master.send(world.rank)
            return
        server = listen("0.0.0.0", world.port)  # noqa: S104  ranks of other nodes connect
        server.settimeout(_MEETING_SECONDS)
        try:
            while len(self._others) < world.size - 1:
                channel = Channel(server.accept()[0])
                self._others[int(channel.receive(_MEETING_SECONDS))] = channel
        except TimeoutError:
            came = len(self._others) + 1
            raise ExternalError(f"{came} of {world.size} ranks met within {_MEETING_SECONDS:g} s") from None
        finally:
            server.close()

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank, to everybody; also a barrier."""
        if self.world.size == 1:
            return [value]
        if self.world.rank:
            self._master.send(value)
            return list(self._master.receive())
        values = [value, *(self._others[rank].receive() for rank in sorted(self._others))]
        for channel in self._others.values():
            channel.send(values)
        return values

    def share(self, value: Any) -> Any:
        """Rank 0's value, to everybody."""
        return self.gather(value if self.world.rank == 0 else None)[0]
