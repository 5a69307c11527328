"""What a running role looks for in the rendezvous directory: a failing, silent or replaced peer, a stop, the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.roles.causes import Cause, ExitCode
from primebeaker.roles.fence import judge_epoch
from primebeaker.roles.files import SharedFiles
from primebeaker.roles.rendezvous import Epoch, MemberScan, Paths, ended_before_start, named_ranks
from primebeaker.roles.topology import Member

__all__ = ["Complete", "Silence", "Watch"]

_OWN_PAUSE_SECONDS = 5.0
_LEADER_DONE_SECONDS = 60.0


@dataclass(frozen=True)
class Complete:
    """Found instead of a cause: the leader declared the run complete.

    Attributes:
        declared: ``complete.json`` was seen; else only that the leader ended with 0, a minute ago.
    """

    declared: bool = True


@dataclass
class Silence:
    """How long each peer has shown no new heartbeat, on this process's own monotonic clock.

    A pause of this process itself (it was stopped, or its file system hung) never counts against a peer.

    Attributes:
        limit: Seconds until a peer counts as lost; 0 switches the watch off.
    """

    limit: float
    clock: Callable[[], float] = time.monotonic
    _beats: dict[int, tuple[object, float]] = field(default_factory=dict)
    _last_look: float | None = None

    def look(self, beats: Mapping[int, object]) -> list[int]:
        """The peers that count as lost after this look."""
        now = self.clock()
        if self._last_look is not None and now - self._last_look > _OWN_PAUSE_SECONDS:
            self._beats = {rank: (beat, now) for rank, (beat, _) in self._beats.items()}
        self._last_look = now
        lost = []
        for rank, beat in beats.items():
            known = self._beats.get(rank)
            if known is None or known[0] != beat:
                self._beats[rank] = (beat, now)
            elif self.limit and now - known[1] > self.limit:
                lost.append(rank)
        return lost


class Watch:
    """One look a tick, after the start.

    Args:
        files: File access.
        paths: The files.
        epoch: The epoch this process belongs to.
        members: Its members.
        rank: This rank; rank 0 watches everybody, the others watch it.
        instance: This process.
        heartbeat_timeout: Seconds of silence; 0 is never.
        scan: The leader's view of the member files.
        leader_ends_last: The leader ends with 0 only when the run is complete, so that its status says so too.
        clock: Seconds on this process's monotonic clock.
    """

    def __init__(
        self,
        files: SharedFiles,
        paths: Paths,
        epoch: Epoch,
        members: tuple[Member, ...],
        *,
        rank: int,
        instance: str,
        heartbeat_timeout: float,
        scan: MemberScan,
        leader_ends_last: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._paths = paths
        self._epoch = epoch
        self._members = {member.rank: member for member in members}
        self._rank = rank
        self._instance = instance
        self._scan = scan
        self._silence = Silence(heartbeat_timeout, clock)
        self._leader_ends_last = leader_ends_last
        self._clock = clock
        self._leader_done: float | None = None
        self._unreadable_shutdowns = 0
        #: Newest known member files (all on the leader, the leader's elsewhere).
        self.peers: dict[int, Mapping[str, Any]] = {}
        #: Exit codes of ranks that have ended (leader only).
        self.statuses: dict[int, Mapping[str, Any]] = {}

    async def look(self) -> Cause | Complete | None:
        """What ends this role, if anything does."""
        # First of all: a process that was stopped for a while must notice a newer start before anything else.
        found = (
            await self._replaced()
            or await self._look_at_members()
            or await self._look_at_epoch()
            or self._ended_member()
        )
        # It may have been stopped in the midst of this very look.
        return (await self._replaced() or found) if isinstance(found, Cause) else found

    async def _replaced(self) -> Cause | None:
        value = await self._files.read(self._paths.epoch_file)
        return judge_epoch(value, self._epoch, rank=self._rank, instance=self._instance)

    def _ended_member(self) -> Cause | None:
        """A peer that failed on its way through the barrier could leave nothing but its member file."""
        for rank, value in self.peers.items():
            if rank != self._rank and value.get("phase") == "ended" and value.get("code"):
                return ended_before_start(rank, value)
        return None

    async def _look_at_members(self) -> Cause | None:
        if self._rank == 0:
            self.peers = dict(await self._scan.look())
        else:
            leader = await self._files.read(self._paths.member(0))
            if leader is not None:
                self.peers = {0: leader}
        others = {rank: value for rank, value in self.peers.items() if rank != self._rank}
        for rank, value in others.items():
            if value.get("instance") != self._members[rank].instance:
                return Cause(
                    code=ExitCode.PEER_LOST,
                    cause="peer",
                    message=f"rank {rank} on {value.get('host')} was restarted without the others",
                )
        lost = self._silence.look({rank: value.get("beat") for rank, value in others.items()})
        if lost and not await self._have_ended(lost):
            hosts = ", ".join(self._members[rank].host for rank in lost[:3])
            return Cause(
                code=ExitCode.PEER_LOST,
                cause="peer",
                message=f"{named_ranks(lost)} ({hosts}) gave no sign of life for {self._silence.limit:g} s",
            )
        return None

    async def _have_ended(self, ranks: list[int]) -> bool:
        """Ended ranks are silent by right."""
        return self._rank == 0 and all(rank in self.statuses for rank in ranks)

    async def _look_at_epoch(self) -> Cause | Complete | None:
        directory = self._paths.epoch(self._epoch.epoch)
        listing = await self._files.listing(directory)
        if "complete.json" in listing:
            return Complete()
        if "shutdown.json" in listing:
            return await self._shutdown(await self._files.read(directory / "shutdown.json"))
        if self._rank == 0:
            if self._paths.stop_request.name in await self._files.listing(self._paths.root):
                return Cause(
                    code=ExitCode.SHUTDOWN_REQUESTED,
                    cause="request",
                    message=f"an operator asked for a stop ({self._paths.stop_request})",
                )
            return await self._look_at_statuses()
        return await self._look_at_leader_status() if "status" in listing else None

    async def _look_at_leader_status(self) -> Cause | Complete | None:
        """How the leader ended, where neither ``shutdown.json`` nor ``complete.json`` can be seen (yet)."""
        value = await self._files.read(self._paths.status(self._epoch.epoch, 0))
        if value is None:
            return None
        if value.get("code") != 0:
            return peer_failure(value)
        if not self._leader_ends_last:
            return None
        now = self._clock()
        if self._leader_done is None:
            self._leader_done = now
        return Complete(declared=False) if now - self._leader_done > _LEADER_DONE_SECONDS else None

    async def _look_at_statuses(self) -> Cause | None:
        directory = self._paths.epoch(self._epoch.epoch) / "status"
        for name in await self._files.listing(directory):
            rank = name.removesuffix(".json")
            if not rank.isdigit() or int(rank) in self.statuses or int(rank) == self._rank:
                continue
            value = await self._files.read(directory / name)
            if value is None:
                continue
            self.statuses[int(rank)] = value
            if value.get("code") != 0:
                return peer_failure(value)
        return None

    async def _shutdown(self, value: Mapping[str, Any] | None) -> Cause | None:
        if value is not None:
            return peer_failure(value)
        self._unreadable_shutdowns += 1
        if self._unreadable_shutdowns < 3:
            return None
        return Cause(code=ExitCode.PEER_FAILED, cause="peer", message="a peer ended (its reason cannot be read)")


def peer_failure(value: Mapping[str, Any]) -> Cause:
    """The cause of a role whose peer ended; an operator's stop keeps its code everywhere."""
    requested = value.get("code") == ExitCode.SHUTDOWN_REQUESTED
    return Cause.from_json(value, code=ExitCode.SHUTDOWN_REQUESTED if requested else ExitCode.PEER_FAILED)
