"""The process that runs one experiment: ``python -m primebeaker.local.supervise HOME EXPERIMENT DESCRIPTOR``.

It is started detached from whoever created the experiment, says so through the pipe end ``DESCRIPTOR``, and stays until
every replica has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from primebeaker.beaker.models import PREEMPTED_CODE
from primebeaker.errors import ExternalError
from primebeaker.local.environment import Replica, replica_environment, working_folder
from primebeaker.local.home import Home
from primebeaker.local.ids import timestamp
from primebeaker.local.leftovers import own_mark, process_mark
from primebeaker.local.limits import grace_seconds, most_log_bytes
from primebeaker.local.secret_store import SecretStore
from primebeaker.local.shapes import MANUAL_CODE, SIBLING_FAILED_CODE
from primebeaker.local.store import ExperimentRow, JobRow, StartedJob, Store, TaskRow, new_job
from primebeaker.supervision import Child, ChildSpec, LogOptions, Supervisor

__all__ = ["main"]

_BEAT_SECONDS = 1.0
_READY_PAUSE_SECONDS = 0.2
_WRITE_SECONDS = 60.0
# The order in which the outcomes of replicas decide the experiment's.
_WORST_FIRST = ("failed", "preempted", "canceled")


class Verdict(NamedTuple):
    """How a job ends."""

    state: Literal["succeeded", "failed", "canceled", "preempted"]
    message: str
    canceled_code: int | None = None

    @property
    def canceled(self) -> bool:
        """Whether it ends what would have gone on."""
        return self.state in ("canceled", "preempted")


@dataclass
class Live:
    """A job in this supervisor's care."""

    job: JobRow
    task: TaskRow
    replica: Replica
    child: Child | None = None
    verdict: Verdict | None = None
    ended: bool = False
    #: To be started again whatever the spec says, and without those that share its fate.
    alone: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def label(self) -> str:
        """How the replica is called in messages."""
        return f"{self.task.name} rank {self.replica.rank}" if self.task.replicas > 1 else self.task.name


@dataclass(frozen=True)
class Event:
    """Something the main loop has to act on."""

    kind: Literal["exit", "gone", "look", "timeout", "signal"]
    live: Live | None = None


def main() -> None:
    """Run one experiment to its end."""
    # Until the loop listens, a request waits in the database; its signal must not end this process.
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    home, experiment_id, descriptor = Home(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    store = Store(home.database)
    claimed = store.claim(experiment_id, os.getpid(), own_mark())
    if claimed:
        asyncio.run(_supervise(home, store, experiment_id, descriptor))
    else:
        _log("the experiment has ended already")


async def _supervise(home: Home, store: Store, experiment_id: str, descriptor: int) -> None:
    row = store.experiment(experiment_id)
    assert row is not None
    run = _Run(home, row)
    loop = asyncio.get_running_loop()
    # A stop that comes right after the confirmation must find its handler.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, run.tell, Event("signal"))
    loop.add_signal_handler(signal.SIGUSR1, run.tell, Event("look"))
    # Whoever created the experiment may have been killed meanwhile: it runs all the same.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, b"ok\n")
    os.close(descriptor)
    async with Supervisor(report=_log, on_exit=run.noticed) as supervisor:
        await run.to_end(supervisor)


class _Run:
    """One experiment, from the start of its first replica to the end of its last."""

    def __init__(self, home: Home, row: ExperimentRow) -> None:
        self._home = home
        self._row = row
        self._spec = row.spec
        self._grace = grace_seconds(os.environ)
        self._store = Store(home.database)
        self._writer = ThreadPoolExecutor(1, "database")
        self._secrets = SecretStore(home.secrets)
        self._origin = self._secrets.origin(row.id)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._lives: list[Live] = []
        self._by_child: dict[Child, Live] = {}
        self._restarts: list[Live] = []
        self._endings: set[asyncio.Task[None]] = set()
        self._last_event = 0
        self._stopping = False
        self._cause = ""
        self._supervisor: Supervisor

    def tell(self, event: Event) -> None:
        """Hand an event to the main loop."""
        self._events.put_nowait(event)

    def noticed(self, child: Child) -> None:
        """A child has ended."""
        self.tell(Event("exit", self._by_child[child]))

    async def to_end(self, supervisor: Supervisor) -> None:
        """Run everything and record how it ended."""
        self._supervisor = supervisor
        tasks = {task.id: task for task in await self._database(self._store.tasks, self._row.id)}
        jobs = [job for job in await self._database(self._store.jobs, self._row.id) if not job.ended]
        events = await self._database(self._store.events, self._row.id)
        self._last_event = max((event.id for event in events if event.kind == "restarted"), default=0)
        beat = asyncio.create_task(self._beat())
        await self._database(self._store.started, self._row.id)
        self._lives = [self._live(tasks[job.task_id], job) for job in jobs]
        await self._start(self._lives)
        await self._look()
        while not all(live.ended for live in self._lives) or self._restarts:
            await self._act(await self._events.get())
            await self._restart()
        beat.cancel()
        await supervisor.shut_down(grace=0)
        state = self._final_state()
        await self._database(self._store.end, self._row.id, state, self._cause)
        _log(f"ended: {state} {self._cause}")

    def _live(self, task: TaskRow, job: JobRow) -> Live:
        return Live(job, task, Replica(self._row.id, task.id, job.id, job.replica_rank, task.replicas))

    # Starting

    async def _start(self, lives: Sequence[Live]) -> None:
        """Schedule all of them, then start all of them."""
        prepared = await asyncio.gather(*(self._prepare(live) for live in lives))
        ready = [live for live, fine in zip(lives, prepared, strict=True) if fine]
        await self._database(
            self._store.update_jobs,
            self._row.id,
            [live.job.id for live in ready],
            "scheduled",
            state="scheduled",
            scheduled_at=timestamp(),
        )
        late = [live for live in lives if live not in ready and live.task.sync_timeout_s is not None]
        if late:
            names = ", ".join(live.label for live in late)
            message = f"not ready within the synchronized start time-out: {names}"
            self._cause = message
            await self._give_up([live for live in lives if not live.ended], Verdict("canceled", message))
            return
        await self._fill_environment_gaps(ready)
        started = [job for live in ready if (job := await self._spawn(live)) is not None]
        await self._database(self._store.jobs_started, self._row.id, started)
        for live in ready:
            if live.child is not None:
                self._note(live, "running")

    async def _prepare(self, live: Live) -> bool:
        """Make a replica's folders and log; with a synchronized start it may take until the time-out."""
        deadline = time.monotonic() + (live.task.sync_timeout_s or 0)
        folder = self._home.job(self._row.id, live.job.id)
        while True:
            try:
                await asyncio.to_thread(_make_folders, folder, Path(live.job.log_path))
            except OSError as error:
                if live.task.sync_timeout_s is None:
                    message = f"could not be started: {error.filename}: {error.strerror}"
                    await self._give_up([live], Verdict("failed", message))
                    return False
                if time.monotonic() >= deadline or self._stopping:
                    return False
                await asyncio.sleep(_READY_PAUSE_SECONDS)
            else:
                self._note(live, "scheduled")
                return True

    async def _fill_environment_gaps(self, lives: Iterable[Live]) -> None:
        """Say which secrets are not known here."""
        names = dict.fromkeys(
            entry["secret"]
            for live in lives
            for entry in self._spec["tasks"][live.task.position].get("envVars") or ()
            if entry.get("secret") is not None
        )
        for name in names:
            if self._secret(name) is None:
                await self._database(
                    self._store.event, self._row.id, None, "warning", f"secret {name} not available locally"
                )

    def _secret(self, name: str) -> str | None:
        return self._secrets.resolve(self._row.workspace, name, self._origin)

    async def _spawn(self, live: Live) -> StartedJob | None:
        if live.verdict is not None:
            return None
        task = self._spec["tasks"][live.task.position]
        environment = replica_environment(
            self._home, live.replica, task, self._origin, secret=self._secret, rehearsal=self._row.rehearsal
        )
        spec = ChildSpec(
            name=live.job.id,
            argv=[*task["command"], *(task.get("arguments") or ())],
            env=environment,
            cwd=working_folder(self._home, live.replica),
            log=LogOptions(Path(live.job.log_path), raw=True, times=True, most_bytes=most_log_bytes(os.environ)),
        )
        try:
            live.child = self._supervisor.start(spec)
        except ExternalError as error:
            message = str(error).removeprefix(f"{live.job.id}: ")
            await asyncio.to_thread(Path(live.job.log_path).write_text, f"{message}\n")
            await self._give_up([live], Verdict("failed", message))
            self._propagate_failure(live, "could not be started")
            return None
        self._by_child[live.child] = live
        if live.task.timeout_s is not None:
            loop = asyncio.get_running_loop()
            live.timer = loop.call_later(live.task.timeout_s, self.tell, Event("timeout", live))
        identity = live.child.identity
        return StartedJob(live.job.id, identity.pid, process_mark(identity), timestamp())

    # Acting

    async def _act(self, event: Event) -> None:
        live = event.live
        if event.kind == "exit":
            assert live is not None
            self._ended_by_itself(live)
        elif event.kind == "gone":
            assert live is not None
            await self._record(live)
        elif event.kind == "timeout":
            assert live is not None
            self._end([live], Verdict("failed", f"timeout after {_seconds(live.task.timeout_s or 0)}"))
        elif event.kind == "signal":
            if self._stopping:
                self._supervisor.hurry()
            await self._stop("the supervisor was asked to end by a signal")
        else:
            await self._look()

    def _ended_by_itself(self, live: Live) -> None:
        assert live.child is not None
        assert live.child.exit is not None
        exit_ = live.child.exit
        how = f"was killed by signal {exit_.signal}" if exit_.signal else f"ended with {exit_.code}"
        failed = Verdict("failed", how)
        self._end([live], failed if exit_.code != 0 else Verdict("succeeded", ""), grace=0)
        if live.verdict is not None and live.verdict.state == "failed":
            self._propagate_failure(live, live.verdict.message)

    def _propagate_failure(self, live: Live, how: str) -> None:
        cause = f"{live.label} {how}"
        self._cause = self._cause or cause
        if live.task.propagate_failure:
            self._end(self._lives, Verdict("canceled", f"canceled because {cause}", SIBLING_FAILED_CODE))

    def _end(self, lives: Iterable[Live], verdict: Verdict, grace: float | None = None) -> None:
        """End what runs of these jobs; the first verdict of a job stays."""
        for live in lives:
            if live.ended or live.verdict is not None:
                continue
            if live.child is not None and live.child.exit is not None and verdict.canceled:
                # It has ended by itself; that it was to be ended meanwhile changes nothing.
                continue
            live.verdict = verdict
            if live.timer is not None:
                live.timer.cancel()
            task = asyncio.create_task(self._end_one(live, self._grace if grace is None else grace))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _end_one(self, live: Live, grace: float) -> None:
        if live.child is not None:
            await self._supervisor.end_child(live.child, grace)
        self.tell(Event("gone", live))

    async def _record(self, live: Live) -> None:
        """Write down how a job ended, once nothing of it is left."""
        verdict = live.verdict
        assert verdict is not None
        live.ended = True
        exit_ = live.child.exit if live.child is not None else None
        now = timestamp()
        await self._database(
            self._store.update_jobs,
            self._row.id,
            [live.job.id],
            verdict.state,
            verdict.message,
            state=verdict.state,
            exit_code=exit_.code if exit_ is not None else None,
            canceled_code=verdict.canceled_code,
            message=verdict.message,
            exited_at=now if live.child is not None else None,
            finalized_at=now,
        )
        self._note(live, verdict.state, verdict.message)
        if verdict.state == "preempted" and (live.alone or live.task.auto_resume) and not self._stopping:
            self._restarts.append(live)

    async def _give_up(self, lives: Iterable[Live], verdict: Verdict) -> None:
        """End jobs that have no process."""
        for live in lives:
            if live.child is None and not live.ended:
                live.verdict = verdict
                await self._record(live)

    async def _look(self) -> None:
        """See what has been asked for in the database."""
        row = await self._database(self._store.experiment, self._row.id)
        events = await self._database(functools.partial(self._store.events, self._row.id, after=self._last_event))
        if row is not None and row.cancel_requested_at is not None:
            await self._stop(row.cancel_reason or "stopped")
        for event in events:
            self._last_event = event.id
            wanted = [live for live in self._lives if event.job_id in (None, live.job.id) and not live.ended]
            if event.kind == "preempt_requested":
                if any(live.task.propagate_preemption for live in wanted):
                    wanted = self._lives
                self._end(wanted, Verdict("preempted", event.detail or "preempted", PREEMPTED_CODE))
            elif event.kind == "restart_alone_requested":
                for live in wanted:
                    live.alone = live.verdict is None
                self._end(wanted, Verdict("preempted", event.detail, PREEMPTED_CODE), grace=0)
                for live in wanted:
                    if live.alone and live.child is not None:
                        # As when its machine is lost: it must not get to tell anybody.
                        live.child.signal(signal.SIGKILL)
            elif event.kind == "job_stop_requested":
                self._end(wanted, Verdict("canceled", event.detail or "stopped", MANUAL_CODE))

    async def _stop(self, reason: str) -> None:
        if not self._stopping:
            self._stopping = True
            self._cause = self._cause or reason
            self._restarts.clear()
            self._end(self._lives, Verdict("canceled", reason, MANUAL_CODE))

    async def _restart(self) -> None:
        """Start preempted jobs again; those that share their fate only when all of them have ended."""
        if self._stopping:
            self._restarts.clear()
        together = any(live.task.propagate_preemption and not live.alone for live in self._restarts)
        waiting = together and not all(live.ended for live in self._lives)
        again = [live for live in self._restarts if live.alone or not waiting]
        if not again:
            return
        self._restarts = [live for live in self._restarts if live not in again]
        jobs = self._home.experiment(self._row.id) / "jobs"
        columns = [new_job(live.task.id, live.replica.rank, live.job.attempt + 1, jobs) for live in again]
        await self._database(self._store.add_jobs, self._row.id, columns)
        rows = {job.id: job for job in await self._database(self._store.jobs, self._row.id)}
        lives = [self._live(live.task, rows[column["id"]]) for live, column in zip(again, columns, strict=True)]
        self._lives += lives
        await self._start(lives)

    def _final_state(self) -> str:
        newest = {(live.task.id, live.replica.rank): live for live in self._lives}
        states = {live.verdict.state for live in newest.values() if live.verdict is not None}
        return next((state for state in _WORST_FIRST if state in states), "succeeded")

    # Writing

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            with contextlib.suppress(sqlite3.Error):
                await asyncio.get_running_loop().run_in_executor(self._writer, self._store.beat, self._row.id)
            # A signal may have been lost with a process that died between the two steps of a request.
            self.tell(Event("look"))

    async def _database(self, call: Callable[..., Any], *arguments: Any, **columns: Any) -> Any:
        """A call to the store, off the event loop; a locked or full disk is tried again for a minute."""
        deadline = time.monotonic() + _WRITE_SECONDS
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._writer, functools.partial(call, *arguments, **columns)
                )
            except sqlite3.OperationalError as error:
                if time.monotonic() >= deadline:
                    raise
                _log(f"database: {error}")
                await asyncio.sleep(_READY_PAUSE_SECONDS)

    def _note(self, live: Live, kind: str, detail: str = "") -> None:
        """One line in the job's own event file."""
        path = Path(live.job.log_path).with_name("events.jsonl")
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"at": timestamp(), "kind": kind, "detail": detail}) + "\n")


def _make_folders(folder: Path, log: Path) -> None:
    for part in (folder / "tmp", folder / "result"):
        part.mkdir(parents=True, exist_ok=True)
    log.touch()


def _seconds(seconds: float) -> str:
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _log(line: str) -> None:
    sys.stderr.write(f"{timestamp()} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
