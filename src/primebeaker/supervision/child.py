"""What to start, and what was started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from primebeaker.supervision.output import LogOptions
from primebeaker.supervision.processes import Process, send_signal, snapshot

__all__ = ["Child", "ChildSpec", "Exit"]

_TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to start.

    Attributes:
        name: How the child is called in messages; unique within its supervisor.
        argv: Program and arguments. A bare program name is looked up on the ``PATH`` of ``env``.
        env: The whole environment; the supervisor adds its mark.
        cwd: Working directory.
        log: Its log file, or None.
        console_prefix: Copy its lines to the console with this prefix; None keeps them off the console.
        strip_torchrun_prefix: Remove torchrun's ``[trainer0]:`` from the console copy.
        wave: Children of lower waves are ended first.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: LogOptions | None = None
    console_prefix: str | None = None
    strip_torchrun_prefix: bool = False
    wave: int = 0


class Exit(NamedTuple):
    """How a child ended."""

    #: Its exit code, 128 + n when signal n ended it.
    code: int
    #: The signal that ended it, or None.
    signal: int | None
    #: ``time.monotonic()`` of the moment it was noticed.
    at: float


class Child:
    """A started child. Made by :meth:`Supervisor.start`."""

    def __init__(self, spec: ChildSpec, process: subprocess.Popen[bytes], identity: Process, mark: str) -> None:
        self.spec = spec
        #: Its pid and start time; it leads its own session and process group.
        self.identity = identity
        self.mark = mark
        self.exit: Exit | None = None
        #: Whether it ended before anybody asked it to.
        self.ended_by_itself = False
        #: Whether this supervisor has asked it to end.
        self.ending = False
        self._process = process
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._reaped = False
        # Whether no process of its group is left, so that the group's number may belong to anybody.
        self._gone = False

    @property
    def name(self) -> str:
        """The name of its spec."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group and session."""
        return self.identity.pid

    async def wait(self) -> Exit:
        """How it ended, once it has."""
        return await asyncio.shield(self._ended)

    def last_lines(self) -> list[str]:
        """Its last lines of output, at most 20."""
        return [line.decode("utf-8", "replace") for line in self._tail]

    def signal(self, number: signal.Signals) -> None:
        """Signal what is left of its process group."""
        if self._gone:
            return
        if self._reaped:
            for process in self._members(snapshot()):
                send_signal(process, number)
            return
        # As long as the leader is not reaped, its pid and so its group's number cannot belong to anybody else.
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def _members(self, table: Mapping[int, Process]) -> list[Process]:
        """The living processes of its group."""
        leader = table.get(self.pid)
        if self._gone or (leader is not None and leader.start != self.identity.start):
            return []
        return [row for row in table.values() if row.alive and row.pgid == self.pid]
