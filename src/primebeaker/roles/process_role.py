"""The frame every role runs in: phases, children, the first cause, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

from primebeaker.errors import PrimeBeakerError
from primebeaker.roles.causes import Cause, ExitCode, RoleFault
from primebeaker.roles.commands import ProcessSpec
from primebeaker.roles.events import EventLog
from primebeaker.roles.managed import ManagedServices
from primebeaker.roles.policy import ChildEnd, ExitPolicy
from primebeaker.supervision import Child, ChildSpec, LogOptions, StopSignals, Supervisor

__all__ = ["DONE", "ProcessRole", "cause_of"]

DONE = Cause(code=ExitCode.DONE, cause="complete", message="complete")
_COORDINATION_MISTAKE, _COORDINATION_LATE = 2, 3


def cause_of(error: BaseException) -> Cause:
    """The cause a fault of the script stands for."""
    if isinstance(error, RoleFault):
        return error.cause
    if isinstance(error, PrimeBeakerError):
        lines = str(error).splitlines()
        code = ExitCode.MISTAKE if error.exit_code == 3 else error.exit_code
        return Cause(code=code, cause="mistake", message=lines[0] if lines else "", detail=tuple(lines[1:]))
    if isinstance(error, OSError) and error.filename is not None:
        return Cause(code=ExitCode.MISTAKE, cause="mistake", message=f"{error.filename}: {error.strerror or error}")
    return Cause(code=1, cause="internal", message=f"internal fault ({type(error).__name__}: {error})")


async def _nothing() -> Cause:
    """The script of a role that was refused before it began."""
    return DONE


class ProcessRole:
    """Starts children in phases and ends them all, whatever happens first.

    Subclasses write :meth:`script`; it returns the cause of a good end, or raises.

    Args:
        rank: This rank.
        supervisor: Starts and ends the children; its ``on_exit`` is :meth:`child_ended`.
        events: Where everything is told.
        env: The environment children get; the role changes it in its phases.
        cwd: Their working directory.
        finishing: Children whose clean end is the run's.
    """

    def __init__(
        self,
        *,
        rank: int,
        supervisor: Supervisor,
        events: EventLog,
        env: dict[str, str],
        cwd: Path,
        finishing: frozenset[str],
    ) -> None:
        self.rank = rank
        self.supervisor = supervisor
        self.events = events
        self.env = env
        self.cwd = cwd
        self.policy = ExitPolicy(rank, finishing)
        self.grace = 10.0
        self.drain_timeout = 1800.0
        self.managed: ManagedServices | None = None
        self.phase_name = ""
        self.finished = asyncio.Event()
        self.cause: Cause | None = None
        #: What started the end of the whole topology: a peer's cause where that came first.
        self.first_cause: Cause | None = None
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._waits: set[str] = set()
        self._followers = 0

    async def script(self) -> Cause:
        """What the role does from its start to a good end."""
        raise AssertionError("a role has a script")

    async def run(self, signals: StopSignals) -> int:
        """Run to the end; returns the exit code. Nothing that was started is alive then."""
        script = asyncio.ensure_future(self.script() if self.cause is None else _nothing())
        stop = asyncio.ensure_future(signals.wait())
        ended = asyncio.ensure_future(self._ended.wait())
        await asyncio.wait({script, stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        if self.cause is None and stop.done():
            number = stop.result()
            self.end(Cause(code=128 + number, cause="signal", message=f"{number.name} received in {self.phase_name}"))
        if self.cause is None:
            error = script.exception()
            self.end(cause_of(error) if error is not None else script.result())
        for task in (script, stop, ended, *self._tasks):
            task.cancel()
        await asyncio.wait({script, stop, ended, *self._tasks}, timeout=1.0)
        assert self.cause is not None
        await self.finish(self.cause)
        if self.managed is not None:
            await self.managed.stop(self.events.say)
        return int(self.cause.code)

    def end(self, cause: Cause) -> None:
        """Name a cause; the first one wins, later ones are only listed."""
        if self.cause is None:
            self.cause = self.first_cause = cause
            self._ended.set()
        elif cause.code != 0:
            self._followers += 1
            if self._followers <= 5:
                self.events.say(f"afterwards: {cause.message}")

    async def finish(self, cause: Cause) -> None:
        """End the children; subclasses tell their peers too."""
        self.tell(cause)
        await self.supervisor.shut_down(0 if cause.code == ExitCode.SUPERSEDED else self.grace)

    def tell(self, cause: Cause) -> None:
        """Say why the role ends."""
        if cause.cause == "mistake" and cause.code != ExitCode.PEER_FAILED:
            for line in (cause.message, *cause.detail):
                sys.stderr.write(f"primebeaker: error: {self.events.redact(line)}\n")
            sys.stderr.flush()
        if cause.code != 0:
            self.events.say(f"shutting down with exit code {int(cause.code)}: {cause.message}")
            for line in cause.detail:
                self.events.say(f"  {line}")
        details = {"code": int(cause.code), "cause": cause.cause, "process": cause.process, "message": cause.message}
        self.events.event("shutdown" if cause.code else "complete", **details)

    @contextlib.asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """One phase: told at its start and end, with its duration."""
        started = time.monotonic()
        self.phase_name = name
        self.events.say(f"{name}: started")
        self.events.event("phase", phase=name, state="started")
        await self.phase_changed()
        yield
        seconds = round(time.monotonic() - started, 3)
        self.events.say(f"{name}: done after {seconds:.1f} s")
        self.events.event("phase", phase=name, state="done", seconds=seconds)

    async def phase_changed(self) -> None:
        """A subclass publishes the phase."""

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the script; its fault ends the role."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self.end(cause_of(error))

        self._tasks.append(asyncio.create_task(guarded()))

    def start(self, spec: ProcessSpec, *, wave: int, epoch: str = "") -> Child:
        """Start one of the run's processes."""
        for directory in spec.directories:
            directory.mkdir(parents=True, exist_ok=True)
        header = f"=== {time.strftime('%Y-%m-%dT%H:%M:%S%z')} epoch {epoch} {spec.name} ==="
        child = self.supervisor.start(
            ChildSpec(
                name=spec.name,
                argv=spec.argv,
                env=spec.env,
                cwd=self.cwd,
                log=LogOptions(path=spec.log, header=header),
                console_prefix=f"[{spec.name}] ",
                strip_torchrun_prefix=spec.name == "trainer",
                wave=wave,
            )
        )
        self.events.event("process_started", process=spec.name, pid=child.pid, log=str(spec.log))
        self.events.say(f"started {spec.name} (pid {child.pid}), log {spec.log}")
        return child

    async def run_helper(
        self, name: str, argv: tuple[str, ...], env: Mapping[str, str], *, show: bool = True
    ) -> tuple[int, list[str]]:
        """Run a short-lived program of ours to its end; returns its exit code and last lines.

        It is ended when the wait for it is cancelled.
        """
        self._waits.add(name)
        child = self.supervisor.start(
            ChildSpec(
                name=name, argv=argv, env=env, cwd=self.cwd, console_prefix=f"[{name}] " if show else None, wave=0
            )
        )
        ended = await child.wait()
        return ended.code, child.last_lines()

    async def require_helper(self, name: str, argv: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Run a wait of ``primebeaker.coordination``.

        Raises:
            RoleFault: It found a mistake (2), or was not ready in time (94).
        """
        code, lines = await self.run_helper(name, argv, env)
        if code == 0:
            return
        reasons = [line.partition("primebeaker: error: ")[2] for line in lines if "primebeaker: error: " in line]
        message = "; ".join(reasons) or f"ended with {code}"
        if code == _COORDINATION_MISTAKE:
            raise RoleFault(ExitCode.MISTAKE, "mistake", f"{name}: {message}")
        cause = "not-ready" if code == _COORDINATION_LATE else "process"
        raise RoleFault(ExitCode.NOT_READY, cause, f"{name}: {message}")

    def child_ended(self, child: Child) -> None:
        """Called by the supervisor as soon as a child has ended."""
        assert child.exit is not None
        if child.name in self._waits:
            return
        self.events.event("process_ended", process=child.name, code=child.exit.code, by_itself=child.ended_by_itself)
        if not child.ended_by_itself:
            return
        log = child.spec.log.path if child.spec.log is not None else None
        verdict = self.policy.judge(
            ChildEnd(name=child.name, code=child.exit.code, log=log, last_lines=child.last_lines())
        )
        if isinstance(verdict, Cause):
            self.end(verdict)
        elif verdict == "drain":
            self.events.say(
                f"{child.name} ended with 0; waiting for {', '.join(self.policy.finishing - self.policy.done)}"
            )
            self.background(self._drain())
        elif verdict == "finished":
            self.events.say(f"{child.name} ended with 0")
            self.finished.set()

    async def _drain(self) -> None:
        await asyncio.sleep(self.drain_timeout)
        if not self.finished.is_set():
            self.end(self.policy.drained_too_long(self.drain_timeout))
