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
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from primebeaker.errors import ExternalError
from primebeaker.supervision.child import Child, ChildSpec, Exit
from primebeaker.supervision.guardian import Guardian
from primebeaker.supervision.output import Console
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
from primebeaker.supervision.stream import ChildStream

__all__ = ["Supervisor"]

_LOOK_SECONDS = 0.05
_ROUNDS = 3
_ROUND_SECONDS = 2.0
_REAP_SECONDS = 10.0


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
        self._streams: dict[Child, ChildStream] = {}
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
        self._streams[child] = ChildStream(spec, read_end, child._tail, self._console, self._report)
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
        if not child._members(snapshot()):
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
        child._gone = True

    async def _until_gone(self, children: Sequence[Child], deadline: float, *, hurried: bool = True) -> None:
        """Wait until no process of the children's groups is alive; a group may outlive its leader."""
        while (pause := deadline - time.monotonic()) > 0 and not (hurried and self._hurry.done()):
            events: list[asyncio.Future[Any]] = [child._ended for child in children if child.exit is None]
            if not events:
                table = snapshot()
                if not any(child._members(table) for child in children):
                    return
                pause = min(pause, _LOOK_SECONDS)
            if hurried:
                events.append(self._hurry)
            if events:
                await asyncio.wait(events, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(pause)

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
