"""Why a role ends: exit codes, the cause that wins, and the faults that become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from primebeaker.errors import PrimeBeakerError

__all__ = ["Cause", "ExitCode", "RoleFault"]


class ExitCode(IntEnum):
    """Exit codes of a role, beside those of its children."""

    DONE = 0
    MISTAKE = 2
    PEER_FAILED = 90
    ENDED_UNEXPECTEDLY = 91
    SHUTDOWN_REQUESTED = 92
    BARRIER_TIMEOUT = 93
    NOT_READY = 94
    PEER_LOST = 95
    SUPERSEDED = 96
    STALLED = 97
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first thing that went wrong (or right), as every status file and last log line names it.

    Attributes:
        code: The exit code it gives.
        cause: A word: ``process``, ``unexpected-end``, ``peer``, ``mistake``, ``timeout``, ``signal``…
        message: One line.
        process: The process it is about, empty when it is about none.
        detail: More lines for the log, such as the last lines of the process's output.
    """

    code: int
    cause: str
    message: str
    process: str = ""
    detail: tuple[str, ...] = ()

    def as_json(self, *, rank: int, role: str, ended_at: str) -> dict[str, Any]:
        """The content of a status file."""
        return {
            "rank": rank,
            "role": role,
            "code": self.code,
            "cause": self.cause,
            "process": self.process,
            "message": self.message,
            "ended_at": ended_at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, code: int) -> Cause:
        """The cause another rank wrote, with the code it gives here."""
        return cls(
            code=code,
            cause=str(value.get("cause", "peer")),
            message=str(value.get("message", "")),
            process=str(value.get("process", "")),
        )


class RoleFault(PrimeBeakerError):
    """A fault that ends the role with a documented code."""

    def __init__(self, code: ExitCode, cause: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = int(code)
        self.cause = Cause(code=int(code), cause=cause, message=str(self))

    def with_code(self, code: int, detail: tuple[str, ...] = ()) -> RoleFault:
        """This fault with the exit code of a program, and more lines for the log."""
        self.exit_code = code
        self.cause = replace(self.cause, code=code, detail=detail)
        return self
