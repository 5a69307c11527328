"""What the end of a child means for its role: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from primebeaker.roles.causes import Cause, ExitCode

__all__ = ["ChildEnd", "ExitPolicy"]


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """A child that ended by itself.

    Attributes:
        name: Its name.
        code: Its exit code, 128 + n when signal n ended it.
        log: Its log file.
        last_lines: The end of its output.
    """

    name: str
    code: int
    log: Path | None = None
    last_lines: Sequence[str] = ()


@dataclass
class ExitPolicy:
    """Decides for one role.

    Attributes:
        rank: For messages.
        finishing: Children whose clean end is the run's (trainer and orchestrator, an SFT trainer, ``rl``).
        done: Those that have ended with 0.
        complete: The run is complete: whatever ends now, ends rightly.
    """

    rank: int
    finishing: frozenset[str]
    done: set[str] = field(default_factory=set)
    complete: bool = False

    def judge(self, end: ChildEnd) -> Cause | Literal["drain", "finished"] | None:
        """A cause to go down, ``drain`` after the first clean end, ``finished`` after the last, else None."""
        if self.complete:
            return None
        if end.name in self.finishing and end.code == 0:
            self.done.add(end.name)
            return "finished" if self.done == self.finishing else "drain"
        where = f"; last lines of {end.log}:" if end.log is not None and end.last_lines else ""
        if end.code == 0:
            return Cause(
                code=ExitCode.ENDED_UNEXPECTEDLY,
                cause="unexpected-end",
                process=end.name,
                message=f"{end.name} on rank {self.rank} ended unexpectedly with 0{where}",
                detail=tuple(end.last_lines),
            )
        return Cause(
            code=end.code,
            cause="process",
            process=end.name,
            message=f"{end.name} on rank {self.rank} ended with {end.code}{where}",
            detail=tuple(end.last_lines),
        )

    def drained_too_long(self, seconds: float) -> Cause:
        """The cause when the last one does not follow the first clean end."""
        missing = ", ".join(sorted(self.finishing - self.done))
        return Cause(
            code=ExitCode.ENDED_UNEXPECTEDLY,
            cause="drain",
            process=missing,
            message=f"{missing} on rank {self.rank} did not end within {seconds:g} s of {', '.join(sorted(self.done))}",
        )
