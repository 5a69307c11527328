"""Whether this process may still write: a newer start of the topology takes that right away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from primebeaker.roles.causes import Cause, ExitCode, RoleFault
from primebeaker.roles.files import SharedFiles
from primebeaker.roles.rendezvous import Epoch, Paths

__all__ = ["Fence", "judge_epoch"]

_FRESH_SECONDS = 2.0


def judge_epoch(value: Mapping[str, Any] | None, mine: Epoch, *, rank: int, instance: str) -> Cause | None:
    """What the current ``epoch.json`` means for a process of epoch ``mine``.

    A newer one by another leader that names this very process comes from a leader that was restarted alone; one that
    names another process in its place means that this process is superseded.
    """
    if value is None:
        return None
    current = Epoch.from_json(value)
    if current.leader_instance == mine.leader_instance or current.number < mine.number:
        return None
    if rank != 0 and current.members.get(rank) == instance:
        return Cause(
            code=ExitCode.PEER_LOST, cause="peer", message="the leader (rank 0) was restarted without the others"
        )
    return superseded(f"epoch {current.epoch} of another leader replaced epoch {mine.epoch}")


def superseded(reason: str) -> Cause:
    """The cause of a process that a newer start has replaced."""
    return Cause(code=ExitCode.SUPERSEDED, cause="superseded", message=f"superseded by a newer start: {reason}")


class Fence:
    """Checked before every write of a shared file, so that a process that was stopped for a while writes nothing.

    Args:
        files: File access; this fence becomes its guard.
        paths: The rendezvous files.
        rank: This rank.
        instance: This process.
    """

    def __init__(self, files: SharedFiles, paths: Paths, rank: int, instance: str) -> None:
        self._files = files
        self._paths = paths
        self._rank = rank
        self._instance = instance
        self._checked = time.monotonic()
        self.epoch: Epoch | None = None
        files.before_write = self.check

    async def check(self) -> None:
        """Refuse when a newer start took over.

        Raises:
            RoleFault: With code 96 (or 95 when only the leader was restarted).
        """
        if time.monotonic() - self._checked < _FRESH_SECONDS:
            return
        member = await self._files.read(self._paths.member(self._rank))
        if member is not None and member.get("instance") != self._instance and member.get("beat"):
            self._refuse(superseded(f"rank {self._rank} is now another process"))
        if self.epoch is not None:
            value = await self._files.read(self._paths.epoch_file)
            self._refuse(judge_epoch(value, self.epoch, rank=self._rank, instance=self._instance))
        self._checked = time.monotonic()

    def _refuse(self, cause: Cause | None) -> None:
        if cause is not None:
            fault = RoleFault(ExitCode(cause.code), cause.cause, cause.message)
            raise fault
