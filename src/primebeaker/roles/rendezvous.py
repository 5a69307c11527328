"""How the replicas of one start find each other, and nothing of an earlier start can be taken for them.

Every process has a random ``instance``.  (1) Each rank writes its member file.  (2) The leader publishes an epoch that
names the instance of every rank, and a new one whenever an instance changes before the start.  (3) A rank whose own
instance is named acknowledges.  (4) When all have, the leader writes ``start.json``.  Files of an earlier start name
other instances, so nothing has to be cleaned first.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.roles.causes import Cause, ExitCode, RoleFault
from primebeaker.roles.clock import utc_now
from primebeaker.roles.files import Entry, Glimpse, SharedFiles
from primebeaker.roles.plan import check_schema
from primebeaker.roles.polling import Poll
from primebeaker.roles.topology import Member, Slice

__all__ = ["EPOCH_SCHEMA", "MEMBER_SCHEMA", "Epoch", "MemberFile", "MemberScan", "Paths", "Rendezvous"]

MEMBER_SCHEMA = "primebeaker.member/v1"
EPOCH_SCHEMA = "primebeaker.epoch/v1"
_START = "start.json"
_KEPT_EPOCHS = 5
_BEFORE_START = frozenset({"dirs", "setup", "programs", "assemble"})
_MOST_NAMED = 10
_PROGRESS_SECONDS = 30.0


@dataclass(frozen=True)
class Paths:
    """The files below ``RENDEZVOUS_DIR``."""

    root: Path

    @property
    def members(self) -> Path:
        """One file a rank."""
        return self.root / "members"

    @property
    def acks(self) -> Path:
        """One acknowledgement a rank."""
        return self.root / "acks"

    @property
    def epochs(self) -> Path:
        """One directory an epoch."""
        return self.root / "epochs"

    @property
    def epoch_file(self) -> Path:
        """The current epoch."""
        return self.root / "epoch.json"

    @property
    def stop_request(self) -> Path:
        """An operator's request for an orderly stop."""
        return self.root / "shutdown.requested"

    def member(self, rank: int) -> Path:
        """The member file of a rank."""
        return self.members / f"{rank}.json"

    def ack(self, rank: int) -> Path:
        """The acknowledgement of a rank."""
        return self.acks / f"{rank}.json"

    def epoch(self, epoch: str) -> Path:
        """The directory of an epoch."""
        return self.epochs / epoch

    def status(self, epoch: str, rank: int) -> Path:
        """How a rank ended in an epoch."""
        return self.epochs / epoch / "status" / f"{rank}.json"

    def early_log(self, rank: int) -> Path:
        """Events of a role that ended before it might write into the output directory."""
        return self.root / "logs" / f"rank_{rank}.jsonl"

    def create(self) -> None:
        """Make the directories."""
        for directory in (self.members, self.acks, self.epochs):
            directory.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One start of the topology."""

    epoch: str
    number: int
    leader_instance: str
    members: Mapping[int, str]

    def as_json(self) -> dict[str, Any]:
        """The content of ``epoch.json``."""
        return {
            "schema": EPOCH_SCHEMA,
            "epoch": self.epoch,
            "number": self.number,
            "leader_instance": self.leader_instance,
            "members": {str(rank): instance for rank, instance in self.members.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Epoch:
        """Read it.

        Raises:
            UserError: Another schema version.
        """
        check_schema(value, EPOCH_SCHEMA, "epoch.json")
        return cls(
            epoch=value["epoch"],
            number=value["number"],
            leader_instance=value["leader_instance"],
            members={int(rank): instance for rank, instance in value["members"].items()},
        )


@dataclass(kw_only=True)
class MemberFile:
    """This rank's member file; ``beat`` grows while the process lives."""

    rank: int
    instance: str
    host: str
    job_id: str | None = None
    ip: str | None = None
    phase: str = ""
    slice: Slice = field(default_factory=lambda: Slice(0, 0))
    backend_port: int = 0
    probe_port: int = 0
    engines_ready: int = 0
    beat: int = 0
    code: int = 0
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """Its content."""
        ended = {"code": self.code, "message": self.message} if self.phase == "ended" else {}
        return {
            "schema": MEMBER_SCHEMA,
            "rank": self.rank,
            "instance": self.instance,
            "host": self.host,
            "ip": self.ip,
            "job_id": self.job_id,
            "phase": self.phase,
            "slice": {"start": self.slice.start, "count": self.slice.count},
            "backend_port": self.backend_port,
            "probe_port": self.probe_port,
            "engines_ready": self.engines_ready,
            "beat": self.beat,
            "updated_at": utc_now(),
            **ended,
        }


class RankFiles:
    """The leader's view of a directory with one file a rank: lists it, and reopens only what was replaced."""

    def __init__(self, files: SharedFiles, directory: Path, nodes: int) -> None:
        self._files = files
        self._directory = directory
        self._nodes = nodes
        self._seen: dict[str, Entry] = {}
        self._values: dict[int, Mapping[str, Any]] = {}

    async def look(self) -> dict[int, Mapping[str, Any]]:
        """The newest known content of every rank's file."""
        for name, (entry, data) in (await self._files.changed(self._directory, self._seen)).items():
            rank = name.removesuffix(".json")
            if not rank.isdigit() or int(rank) >= self._nodes:
                continue
            value = self._files.understood(self._directory / name, data)
            if value is not None:
                self._seen[name] = entry
                self._values[int(rank)] = value
        return self._values


class MemberScan(RankFiles):
    """The leader's view of ``members/``."""

    def __init__(self, files: SharedFiles, paths: Paths, nodes: int) -> None:
        super().__init__(files, paths.members, nodes)
        self._checked: dict[int, Mapping[str, Any]] = {}

    async def look(self) -> dict[int, Mapping[str, Any]]:
        """The newest known member files.

        Raises:
            UserError: One has another schema version.
        """
        members = await super().look()
        for rank, value in members.items():
            if self._checked.get(rank) is not value:
                check_schema(value, MEMBER_SCHEMA, str(self._directory / f"{rank}.json"))
                self._checked[rank] = value
        return members


class _Glance(NamedTuple):
    leader: Mapping[str, Any] | None
    epoch: Epoch | None
    started: tuple[Member, ...] | None


class Rendezvous:
    """One rank's side of the protocol up to the start.

    Args:
        paths: The files.
        files: File access.
        me: This rank's member file; published by the caller before and while this runs.
        nodes: Replicas of the topology.
        poll: Ceiling of the pauses between looks, in seconds.
        timeout: Seconds until the assembly counts as failed.
        say: Takes progress lines.
    """

    def __init__(
        self,
        paths: Paths,
        files: SharedFiles,
        me: MemberFile,
        *,
        nodes: int,
        poll: float,
        timeout: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._paths = paths
        self._files = files
        self._me = me
        self._nodes = nodes
        self._poll = poll
        self._timeout = timeout
        self._say = say
        self._acknowledged: Epoch | None = None
        self._epoch_is_there = False
        # What a follower asked for last, and saw.
        self._seen: tuple[tuple[int, Path], Glimpse] | None = None
        self.scan = MemberScan(files, paths, nodes)

    async def assemble(self) -> tuple[Epoch, tuple[Member, ...]]:
        """Pass the barrier.

        Returns:
            The epoch, and its members by rank.

        Raises:
            RoleFault: Not all arrived in time, or the file system does not answer (93), or a newer leader exists (96).
        """
        if self._me.rank == 0:
            return await self._lead()
        return await self._follow()

    async def _lead(self) -> tuple[Epoch, tuple[Member, ...]]:
        poll = Poll(self._poll)
        epoch: Epoch | None = None
        alive: dict[int, str] = {}
        ready: dict[int, Mapping[str, Any]] = {}
        acks = AckScan(self._files, self._paths, self._nodes)
        said = (0, time.monotonic())
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    members = await self.scan.look()
                    self._refuse_ended(members, alive)
                    ready = _arrived(members)
                    instances = {rank: str(value["instance"]) for rank, value in sorted(ready.items())}
                    if len(ready) != said[0] or time.monotonic() - said[1] > _PROGRESS_SECONDS:
                        said = (len(ready), time.monotonic())
                        self._say(f"assemble: {len(ready)} of {self._nodes} ranks have arrived")
                    whole = len(ready) == self._nodes
                    if whole and (epoch is None or dict(epoch.members) != instances):
                        epoch = await self._publish(instances, epoch)
                        poll.reset()
                    if whole and epoch is not None and await acks.complete(epoch):
                        return epoch, await self._start(epoch, ready)
                    await poll.sleep()
        except TimeoutError:
            raise self._late(ready, acks, epoch) from None

    async def _start(self, epoch: Epoch, ready: Mapping[int, Mapping[str, Any]]) -> tuple[Member, ...]:
        started = tuple(Member.from_json(ready[rank]) for rank in range(self._nodes))
        await self._files.write(
            self._paths.epoch(epoch.epoch) / _START,
            {"epoch": epoch.epoch, "members": [member.as_json() for member in started]},
        )
        return started

    def _refuse_ended(self, members: Mapping[int, Mapping[str, Any]], alive: dict[int, str]) -> None:
        """A rank seen on its way to the start that then ended has failed; others that ended are of an earlier start."""
        for rank, value in members.items():
            if value.get("phase") in _BEFORE_START:
                alive[rank] = str(value["instance"])
            elif value.get("phase") == "ended" and alive.get(rank) == value["instance"]:
                cause = ended_before_start(rank, value)
                raise RoleFault(ExitCode(cause.code), cause.cause, cause.message)

    async def _publish(self, instances: Mapping[int, str], own: Epoch | None) -> Epoch:
        current = await self._files.read(self._paths.epoch_file)
        number = max(own.number if own else 0, int(current["number"]) if current else 0) + 1
        epoch = Epoch(
            epoch=f"{number}-{secrets.token_hex(4)}",
            number=number,
            leader_instance=self._me.instance,
            members=dict(instances),
        )
        directory = self._paths.epoch(epoch.epoch)
        await self._files.run(lambda: (directory / "status").mkdir(parents=True, exist_ok=True))
        await self._files.write(self._paths.epoch_file, epoch.as_json())
        await self._acknowledge(epoch)
        await self._files.run(self._forget_old_epochs)
        return epoch

    def _forget_old_epochs(self) -> None:
        def number(path: Path) -> int:
            head = path.name.partition("-")[0]
            return int(head) if head.isdigit() else -1

        known = sorted((path for path in self._paths.epochs.iterdir() if number(path) >= 0), key=number)
        for path in known[:-_KEPT_EPOCHS]:
            shutil.rmtree(path, ignore_errors=True)

    async def _acknowledge(self, epoch: Epoch) -> None:
        await self._files.write(self._paths.ack(self._me.rank), {"epoch": epoch.epoch, "instance": self._me.instance})
        self._acknowledged = epoch

    async def _follow(self) -> tuple[Epoch, tuple[Member, ...]]:
        poll = Poll(self._poll)
        alive: dict[int, str] = {}
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    leader, epoch, started = await self._glance(poll)
                    self._refuse_ended({0: leader} if leader else {}, alive)
                    known = self._acknowledged
                    named = epoch is not None and epoch.members.get(self._me.rank) == self._me.instance
                    # What was read may be old: a smaller number is never news.
                    if named and epoch is not None and (known is None or epoch.number > known.number):
                        await self._acknowledge(epoch)
                        self._say(f"assemble: acknowledged epoch {epoch.epoch}")
                        poll.reset()
                    # What was found belongs to the epoch acknowledged before this look.
                    if started is not None and known is not None and known is self._acknowledged:
                        return known, started
        except TimeoutError:
            waiting = "has not started the epoch" if self._acknowledged else "(rank 0) has not listed it"
            raise self._timed_out(f"rank {self._me.rank} waited {self._timeout:g} s: the leader {waiting}") from None

    async def _glance(self, poll: Poll) -> _Glance:
        """The leader's member file, the epoch, and whether it has started, once one of them may have changed."""
        # Asking again and again for a name that is not there makes network file systems remember its absence.
        reads = [self._paths.member(0), *([self._paths.epoch_file] if self._epoch_is_there else [])]
        known = self._acknowledged
        directory = self._paths.epoch(known.epoch) if known is not None else self._paths.root
        asked = (len(reads), directory)
        after = self._seen[1] if self._seen is not None and self._seen[0] == asked else None
        seen = await self._files.glance(reads, directory, after=after, pause=poll.pause)
        self._seen = (asked, seen)
        values = [self._files.understood(*pair) for pair in zip(reads, seen.contents, strict=True)]
        if known is None:
            self._epoch_is_there = self._paths.epoch_file.name in seen.names
        start = await self._files.read(directory / _START) if known is not None and _START in seen.names else None
        started = tuple(Member.from_json(member) for member in start["members"]) if start is not None else None
        epoch = values[1] if len(values) > 1 else None
        return _Glance(values[0], Epoch.from_json(epoch) if epoch is not None else None, started)

    def _late(self, ready: Mapping[int, object], acks: AckScan, epoch: Epoch | None) -> RoleFault:
        missing = [rank for rank in range(self._nodes) if rank not in ready]
        what = "have not arrived"
        if not missing and epoch is not None:
            missing, what = acks.missing(epoch), "have not acknowledged"
        return self._timed_out(f"{named_ranks(missing)} of {self._nodes} {what}")

    def _timed_out(self, what: str) -> RoleFault:
        return RoleFault(ExitCode.BARRIER_TIMEOUT, "timeout", f"assembly: {what}{self._files.hanging()}")


class AckScan(RankFiles):
    """The leader's view of ``acks/``."""

    def __init__(self, files: SharedFiles, paths: Paths, nodes: int) -> None:
        super().__init__(files, paths.acks, nodes)

    async def complete(self, epoch: Epoch) -> bool:
        """Whether every rank has acknowledged this epoch."""
        await self.look()
        return not self.missing(epoch)

    def missing(self, epoch: Epoch) -> list[int]:
        """The ranks that have not."""
        return [
            rank
            for rank in range(self._nodes)
            if self._values.get(rank, {}).get("epoch") != epoch.epoch
            or self._values[rank].get("instance") != epoch.members[rank]
        ]


def ended_before_start(rank: int, value: Mapping[str, Any]) -> Cause:
    """The cause of a role whose peer ended on its way to the start."""
    reason = value.get("message") or "no reason given"
    return Cause(
        code=ExitCode.PEER_FAILED,
        cause="peer",
        message=f"rank {rank} on {value.get('host')} ended before the start: {reason}",
    )


def named_ranks(ranks: Sequence[int]) -> str:
    """``ranks 3, 7``: at most ten, then a count."""
    shown = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"


def _arrived(members: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The members that wait at the barrier; one that runs belongs to an earlier start, and will notice it is alone."""
    return {rank: value for rank, value in members.items() if value.get("phase") == "assemble" and value.get("ip")}


async def publish(files: SharedFiles, paths: Paths, me: MemberFile, lock: asyncio.Lock) -> None:
    """Write this rank's member file; one write at a time, so that the newest content wins."""
    async with lock:
        me.beat += 1
        await files.write(paths.member(me.rank), me.as_json())
