"""Start named child processes, stream their output, tell when one ends, and end them all.

One asyncio component for everything that starts long-lived processes: the roles inside a task, the embedded engine,
the evaluation worker.  Each child runs in a session of its own, dies with this process (parent-death signal, and a
guardian for what escaped into other sessions), and is signalled by identity, never by a pid that may be somebody
else's by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.errors import ExternalError
from primebeaker.supervision.guardian import Guardian
from primebeaker.supervision.output import Console, LineSplitter, LogFile, LogOptions
from primebeaker.supervision.processes import (
    DETACHED,
    MARKER,
    Process,
    become_subreaper,
    child_preparation,
    descendants,
    look_up,
    marked,
    send_signal,
    snapshot,
)

__all__ = ["Child", "ChildSpec", "Exit", "Supervisor"]

_READ_BYTES = 64 * 1024
_TAIL_LINES = 20
_TAIL_LINE_BYTES = 2000
# How long a child may be held up while its log catches up, before output is given up instead.
_MOST_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_ROUNDS = 3
_ROUND_SECONDS = 2.0
_REAP_SECONDS = 10.0
_FLUSH_SECONDS = 2.0
_TORCHRUN_PREFIX = re.compile(rb"^\[[A-Za-z]*[0-9]*\]:")


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
        """Signal its process group, unless it has been reaped."""
        if not self._reaped:
            # As long as the leader is not reaped, its pid and so its group's number cannot belong to anybody else.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)


class Supervisor:
    """Owns the children of this process. Made and used as an async context manager in the main thread's event loop.

    Args:
        console: Where prefixed lines go; without one they go nowhere.
        report: Called with one line about trouble that does not stop anything (a log that cannot be written). May be
            called from another thread.
        on_exit: Called in the event loop as soon as a child has ended.
        adopt: Become the parent of orphaned descendants (Linux), so that :meth:`shut_down` finds all of them. Every
            process below this one that was not there before then counts as one of the supervisor's. Leave it off in
            a process that starts processes by other means.
    """

    def __init__(
        self,
        *,
        console: Console | None = None,
        report: Callable[[str], None] | None = None,
        on_exit: Callable[[Child], None] | None = None,
        adopt: bool = True,
    ) -> None:
        self.children: list[Child] = []
        self._console = console
        self._report = report or (lambda line: None)
        self._on_exit = on_exit
        self._adopt = adopt
        self._mark = secrets.token_hex(6)
        # A detached process starts a line of its own.
        self._outer_mark = os.environ.get(MARKER, DETACHED).replace(DETACHED, "")
        self._streams: dict[Child, _Stream] = {}
        loop = asyncio.get_running_loop()
        self._first_exit: asyncio.Future[Child] = loop.create_future()
        self._hurry: asyncio.Future[None] = loop.create_future()
        self._before: set[tuple[int, str]] = set()
        self._guardian: Guardian | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Supervisor:
        if self._adopt:
            self._adopt = become_subreaper()
            table = snapshot()
            self._before = {(process.pid, process.start) for process in descendants([os.getpid()], table)}
        self._guardian = Guardian(self._mark)
        if self._adopt:
            self._reaper = asyncio.create_task(self._reap_orphans())
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.shut_down(grace=0)
        if self._reaper is not None:
            self._reaper.cancel()
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.dismiss)

    def start(self, spec: ChildSpec) -> Child:
        """Start a child.

        Raises:
            ExternalError: The program is missing or cannot be executed, or the working directory is missing.
        """
        assert self._guardian is not None, "a Supervisor is used as an async context manager"
        mark = f"{self._mark}.{len(self.children)}"
        environment = dict(spec.env)
        environment[MARKER] = "/".join(part for part in (self._outer_mark, mark) if part)
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                list(spec.argv),
                env=environment,
                cwd=str(spec.cwd),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                # Its few system calls take no lock, so other threads cannot stall it between fork and exec.
                preexec_fn=child_preparation(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(read_end)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            subject = spec.cwd if isinstance(error, OSError) and error.filename == str(spec.cwd) else spec.argv[0]
            raise ExternalError(f"{spec.name}: cannot start {subject}: {reason}") from None
        finally:
            os.close(write_end)
        identity = look_up(process.pid)
        assert identity is not None, "a child that is not reaped is in the process table"
        self._guardian.tell(identity.pid, identity.start)
        child = Child(spec, process, identity, mark)
        self.children.append(child)
        self._streams[child] = _Stream(child, read_end, self._console, self._report)
        self._watch(child)
        return child

    async def first_exit(self) -> Child:
        """The first child to end without having been asked to, once there is one."""
        return await asyncio.shield(self._first_exit)

    def hurry(self) -> None:
        """Skip what is left of the grace time of a shutdown that runs or comes."""
        if not self._hurry.done():
            self._hurry.set_result(None)

    async def shut_down(self, grace: float) -> None:
        """End every child and every descendant: TERM, then KILL after ``grace`` seconds.

        Waves are ended one after the other, each when the one before is gone or its share of the grace time is over;
        the grace time of all runs from the first TERM.  When this returns nothing that was started is alive, except
        what the system itself cannot end.
        """
        await self._end(self.children, grace)
        await self._kill_descendants(self._all_descendants)
        for child in self.children:
            await self._close_stream(child)
        self._reap_adopted()

    async def end_child(self, child: Child, grace: float) -> None:
        """End one child, its process group, and what carries its mark, wherever that has gone."""
        await self._end([child], grace)
        await self._kill_descendants(lambda table: marked(child.mark, table))
        await self._close_stream(child)

    def _watch(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open") and hasattr(os, "P_PIDFD"):
            descriptor = os.pidfd_open(child.pid)

            def ended() -> None:
                loop.remove_reader(descriptor)
                # The zombie is kept: until it is reaped, the number of its group stays ours.
                result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
                os.close(descriptor)
                assert result is not None
                self._note_exit(child, result.si_status, by_signal=result.si_code != os.CLD_EXITED)

            loop.add_reader(descriptor, ended)
            return

        async def wait() -> None:
            code = await asyncio.to_thread(child._process.wait)
            child._reaped = True
            self._note_exit(child, abs(code), by_signal=code < 0)

        task = asyncio.create_task(wait())
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    def _note_exit(self, child: Child, status: int, *, by_signal: bool) -> None:
        child.exit = Exit(128 + status if by_signal else status, status if by_signal else None, time.monotonic())
        child.ended_by_itself = not child.ending
        self._streams[child].catch_up()
        child._ended.set_result(child.exit)
        if child.ended_by_itself and not self._first_exit.done():
            self._first_exit.set_result(child)
        if not self._groups_alive([child]):
            self._reap(child)
        if self._on_exit is not None:
            self._on_exit(child)

    async def _end(self, children: Sequence[Child], grace: float) -> None:
        waves = sorted({child.spec.wave for child in children})
        started = time.monotonic()
        for position, wave in enumerate(waves, start=1):
            for child in children:
                if child.spec.wave == wave:
                    child.ending = True
                    child.signal(signal.SIGTERM)
                    # A stopped process would not see the TERM.
                    child.signal(signal.SIGCONT)
            so_far = [child for child in children if child.spec.wave <= wave]
            await self._until_gone(so_far, started + grace * position / len(waves))
        for child in children:
            child.signal(signal.SIGKILL)
        await self._until_gone(children, time.monotonic() + _ROUND_SECONDS, hurried=False)
        for child in children:
            if child.exit is not None:
                self._reap(child)

    def _reap(self, child: Child) -> None:
        if not child._reaped:
            child._process.wait()
            child._reaped = True

    async def _until_gone(self, children: Sequence[Child], deadline: float, *, hurried: bool = True) -> None:
        """Wait until no process of the children's groups is alive; a group may outlive its leader."""
        while (pause := deadline - time.monotonic()) > 0 and not (hurried and self._hurry.done()):
            events: list[asyncio.Future[Any]] = [child._ended for child in children if child.exit is None]
            if not events:
                if not self._groups_alive(children):
                    return
                pause = min(pause, _LOOK_SECONDS)
            if hurried:
                events.append(self._hurry)
            if events:
                await asyncio.wait(events, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(pause)

    def _groups_alive(self, children: Iterable[Child]) -> bool:
        groups = {child.pid for child in children if not child._reaped}
        return bool(groups) and any(row.alive and row.pgid in groups for row in snapshot().values())

    def _all_descendants(self, table: Mapping[int, Process]) -> Iterable[Process]:
        found = {process.pid: process for process in marked(self._mark, table)}
        roots = [os.getpid()] if self._adopt else [child.pid for child in self.children if not child._reaped]
        for process in descendants(roots, table):
            if (process.pid, process.start) not in self._before:
                found.setdefault(process.pid, process)
        return found.values()

    async def _kill_descendants(self, find: Callable[[Mapping[int, Process]], Iterable[Process]]) -> None:
        for _ in range(_ROUNDS):
            left = self._living(find)
            if not left:
                return
            for process in left:
                send_signal(process, signal.SIGKILL)
            deadline = time.monotonic() + _ROUND_SECONDS
            while time.monotonic() < deadline and self._living(find):  # noqa: ASYNC110 (not our children: no event)
                await asyncio.sleep(_LOOK_SECONDS)

    def _living(self, find: Callable[[Mapping[int, Process]], Iterable[Process]]) -> list[Process]:
        spared = {os.getpid(), self._guardian.pid if self._guardian else 0}
        return [process for process in find(snapshot()) if process.alive and process.pid not in spared]

    async def _close_stream(self, child: Child) -> None:
        stream = self._streams.pop(child, None)
        if stream is not None:
            await asyncio.to_thread(stream.close())

    async def _reap_orphans(self) -> None:
        """Reap adopted orphans that have ended; one that somebody else here waits for is left to them."""
        seen: set[tuple[int, str]] = set()
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            zombies = {(process.pid, process.start) for process in self._adopted_zombies()}
            for pid, _ in zombies & seen:
                _reap_pid(pid)
            seen = zombies

    def _reap_adopted(self) -> None:
        if self._adopt:
            for process in self._adopted_zombies():
                _reap_pid(process.pid)

    def _adopted_zombies(self) -> list[Process]:
        own, known = os.getpid(), {child.pid for child in self.children} | {self._guardian.pid if self._guardian else 0}
        return [
            row
            for row in snapshot().values()
            if row.ppid == own and not row.alive and row.pid not in known and (row.pid, row.start) not in self._before
        ]


def _reap_pid(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


class _Stream:
    """The read end of a child's output and where it goes."""

    def __init__(self, child: Child, descriptor: int, console: Console | None, report: Callable[[str], None]) -> None:
        self._child = child
        self._descriptor = descriptor
        self._console = console if child.spec.console_prefix is not None else None
        self._prefix = (child.spec.console_prefix or "").encode()
        self._log = None if child.spec.log is None else LogFile(child.spec.log, report=report)
        self._raw = child.spec.log is not None and child.spec.log.raw
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._paused_since: float | None = None
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def catch_up(self) -> None:
        """Take what the child has left in the pipe, as far as there is something now."""
        for _ in range(64):
            if not self._open or not self._read():
                return

    def close(self) -> Callable[[], object]:
        """Stop reading. Returns what is left to do in another thread: writing what is queued."""
        self.catch_up()
        self._end()
        log = self._log
        return (lambda: log.close(_FLUSH_SECONDS)) if log is not None else (lambda: None)

    def _readable(self) -> None:
        if self._log is not None and self._log.full and self._pause():
            return
        self._read()

    def _pause(self) -> bool:
        """Hold the child up for a moment while the log catches up. False when that took too long already."""
        now = self._loop.time()
        if self._paused_since is None:
            self._paused_since = now
        if now - self._paused_since > _MOST_PAUSE_SECONDS:
            return False
        self._loop.remove_reader(self._descriptor)
        self._loop.call_later(_LOOK_SECONDS, self._resume)
        return True

    def _resume(self) -> None:
        if self._open:
            if self._log is not None and not self._log.full:
                self._paused_since = None
            self._loop.add_reader(self._descriptor, self._readable)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._take(self._splitter.feed(data), data)
        return True

    def _take(self, lines: list[bytes], data: bytes) -> None:
        if self._log is not None:
            if self._raw:
                self._log.write(data)
            elif lines:
                self._log.write(b"\n".join(lines) + b"\n")
        self._child._tail.extend(line[:_TAIL_LINE_BYTES] for line in lines[-_TAIL_LINES:])
        if self._console is not None:
            if self._child.spec.strip_torchrun_prefix:
                lines = [_TORCHRUN_PREFIX.sub(b"", line, count=1) for line in lines]
            self._console.lines([self._prefix + line for line in lines])

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._take(self._splitter.end(), b"")
            if self._log is not None:
                self._log.finish()
