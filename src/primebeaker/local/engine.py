"""The embedded engine: experiments as supervised processes on this machine, behind the same interface as Beaker."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from primebeaker.beaker.engine import Engine, EngineName
from primebeaker.beaker.models import Account, CreatedExperiment, Experiment, ExperimentState, ImageRecord, Job, LogLine
from primebeaker.beaker.parse import parse_experiment, parse_job
from primebeaker.errors import ExternalError, UserError
from primebeaker.fileio import atomic_write
from primebeaker.local.environment import capture_origin
from primebeaker.local.home import HOME_VARIABLE, Home, open_home
from primebeaker.local.ids import derived_id, new_id, timestamp
from primebeaker.local.leftovers import (
    LOST,
    kill_leftovers,
    own_mark,
    reconcile,
    supervisor_process,
)
from primebeaker.local.limits import grace_seconds, most_log_bytes
from primebeaker.local.logs import Source, follow_logs, read_logs
from primebeaker.local.secret_store import Origin, SecretStore
from primebeaker.local.shapes import experiment_shape, job_shape
from primebeaker.local.specfile import account_name, check_runnable, gpu_warning, read_spec
from primebeaker.local.starting import start_supervisor
from primebeaker.local.store import ExperimentRow, JobRow, Store, TaskRow, new_job, task_columns
from primebeaker.supervision.processes import send_signal

__all__ = ["LocalEngine", "Rehearsal"]

_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WORKSPACE = re.compile(r"[\w.-]+/[\w.-]+")
_IMAGE = re.compile(r"[\w.-]+(?:[/:@][\w.:@-]+)*")


class Rehearsal(TypedDict, total=False):
    """How a rehearsal changes what replicas see; kept with the experiment, further keys included."""

    #: Folders that go first on ``PATH`` of replicas whose environment has ``PRIMEBEAKER_REHEARSAL=1``.
    path_prepend: list[str]
    #: Variables added to those of the spec.
    env: dict[str, str]


class LocalEngine(Engine):
    """Runs experiments on this machine. Usable from several threads and processes at once.

    Args:
        home: Where everything is kept; by default ``PRIMEBEAKER_LOCAL_HOME`` or the user's state folder.
        allow_network_home: Accept a home on a network file system.
        warn: Takes warnings, one line each; by default they are dropped.

    Raises:
        UserError: The home cannot be used, or its database was written by a newer program.
    """

    name: EngineName = "local"

    def __init__(
        self,
        home: Path | None = None,
        *,
        allow_network_home: bool = False,
        warn: Callable[[Iterable[str]], None] = lambda lines: None,
    ) -> None:
        self._warn = warn
        self.home: Home = open_home(home, allow_network=allow_network_home)
        self.store = Store(self.home.database)
        self.secrets = SecretStore(self.home.secrets)
        self.account = account_name()
        # Opened now, so that an unusable database is told at once.
        self.store.check_schema()

    # The interface of every engine

    def create(
        self, spec_path: Path, *, name: str, workspace: str, rehearsal: Rehearsal | None = None
    ) -> CreatedExperiment:
        """See :meth:`Engine.create`.

        Args:
            spec_path: JSON or YAML.
            name: Unique for the account.
            workspace: ``owner/name``; only recorded.
            rehearsal: See :class:`Rehearsal`; it also lifts the check of mounted folders.

        Raises:
            UserError: The spec is refused, or the name is in use.
            ExternalError: The supervisor did not start.
        """
        try:
            data = spec_path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=spec_path) from error
        spec = read_spec(data, str(spec_path))
        return self.create_from(spec, str(spec_path), name=name, workspace=workspace, rehearsal=rehearsal)

    def create_from(
        self, spec: Mapping[str, Any], file: str, *, name: str, workspace: str, rehearsal: Rehearsal | None = None
    ) -> CreatedExperiment:
        """:meth:`create` from a checked spec; ``file`` is how messages call it."""
        check_runnable(spec, file, mounts=rehearsal is None)
        _check_word(name, _NAME, "name", "letters, digits, '.', '_' and '-'")
        _check_word(workspace, _WORKSPACE, "workspace", "owner/name")
        grace_seconds(os.environ)
        most_log_bytes(os.environ)
        warning = None if rehearsal is not None else gpu_warning(spec)
        if warning:
            self._warn([warning])
        reconcile(self.store)
        experiment_id = new_id()
        tasks = [task_columns(experiment_id, position, task) for position, task in enumerate(spec["tasks"])]
        experiment = {
            "id": experiment_id,
            "name": name,
            "workspace": workspace,
            "account": self.account,
            "description": spec.get("description") or "",
            "budget": spec.get("budget"),
            "spec_json": json.dumps(spec, ensure_ascii=False),
            "state": "created",
            "created_at": timestamp(),
            "supervisor_pid": os.getpid(),
            "supervisor_start": own_mark(),
            "rehearsal_json": None if rehearsal is None else json.dumps(rehearsal),
        }
        folder = self.home.experiment(experiment_id)
        jobs = [new_job(task["id"], rank, 1, folder / "jobs") for task in tasks for rank in range(task["replicas"])]
        try:
            self.store.create(experiment, tasks, jobs)
        except sqlite3.IntegrityError as error:
            raise UserError(
                f"experiment name {name!r} is already in use by {self.account}", hint="choose another name"
            ) from error
        start_supervisor(self.home, self.store, experiment_id, self._settle(experiment_id, spec))
        url = f"local://ex/{experiment_id}"
        return CreatedExperiment(experiment_id, url, f"Experiment {experiment_id} submitted. See progress at {url}\n")

    def get(self, id_or_name: str) -> Experiment:
        """See :meth:`Engine.get`."""
        return parse_experiment(self.shape(id_or_name))

    def list(
        self, *, workspace: str | None = None, state: ExperimentState | None = None, limit: int = 20
    ) -> Sequence[Experiment]:
        """See :meth:`Engine.list`."""
        return [parse_experiment(shape) for shape in self.shapes(workspace=workspace, state=state, limit=limit)]

    def stop(self, id_or_name: str) -> None:
        """See :meth:`Engine.stop`. Returns when every job has ended.

        Raises:
            ExternalError: Jobs are still ending after 20 seconds.
        """
        row = self.request_stop(id_or_name)
        deadline = time.monotonic() + max(_STOP_SECONDS, 0)
        while row.active:
            if time.monotonic() >= deadline:
                raise ExternalError(
                    f"experiment {row.id} is still stopping after {_STOP_SECONDS:g} s",
                    hint=f"wait for it with 'primebeaker local wait {row.id}'",
                )
            time.sleep(_LOOK_SECONDS)
            row = self._current(row.id)
        self._after_end(row)

    def logs(
        self,
        id_or_name: str,
        *,
        rank: int | None = None,
        task: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> Iterator[LogLine]:
        """See :meth:`Engine.logs`; ``id_or_name`` may be a job's id too. Values of secrets are masked."""
        row, job_id = self.experiment_or_job(id_or_name)
        tasks = {item.id: item for item in self.store.tasks(row.id)}
        self._check_selection(tasks.values(), rank, task)
        redact = self.secrets.redactor(row.workspace, row.spec, row.id)
        jobs: dict[str, JobRow] = {}

        def current() -> tuple[Sequence[Source], bool]:
            ended = not self._current(row.id).active
            for job in self.store.jobs(row.id):
                chosen = rank in (None, job.replica_rank) and task in (None, tasks[job.task_id].name)
                if chosen and job_id in (None, job.id):
                    jobs[job.id] = job
            done = ended or (job_id is not None and jobs[job_id].ended)
            return [Source(key, Path(job.log_path)) for key, job in jobs.items()], done

        sources, _ = current()
        lines = follow_logs(current, tail=tail, since=since) if follow else read_logs(sources, tail=tail, since=since)
        for key, line in lines:
            job = jobs[key]
            text = redact(line.data.decode("utf-8", "replace"))
            yield LogLine(job.id, job.replica_rank, tasks[job.task_id].name, line.at, text)

    def wait(self, id_or_name: str, *, timeout: float | None = None) -> Experiment:
        """See :meth:`Engine.wait`."""
        row = self.find(id_or_name)
        deadline = None if timeout is None else time.monotonic() + timeout
        while row.active:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"experiment {row.id} has not ended within {timeout:g} s")
            time.sleep(_LOOK_SECONDS)
            row = self._current(row.id)
        return self.get(row.id)

    def whoami(self) -> Account:
        """See :meth:`Engine.whoami`."""
        return Account(derived_id("account", self.account), self.account)

    def secret_list(self, workspace: str) -> Sequence[str]:
        """See :meth:`Engine.secret_list`."""
        return self.secrets.names(workspace)

    def image_get(self, reference: str) -> ImageRecord | None:
        """See :meth:`Engine.image_get`: every well-formed reference is known, since images are not run here."""
        if not _IMAGE.fullmatch(reference):
            return None
        workspace = "/".join(reference.split("/")[:2]) if reference.count("/") >= 1 else None
        now = datetime.fromisoformat(timestamp())
        return ImageRecord(id=reference, name=reference, workspace=workspace, committed=now)

    def jobs(self, ids: Sequence[str]) -> Sequence[Job]:
        """See :meth:`Engine.jobs`."""
        return [parse_job(self.job_shape(job_id)) for job_id in ids]

    # What only this engine has

    def find(self, id_or_name: str) -> ExperimentRow:
        """The experiment's row; experiments with a dead supervisor are noticed first."""
        reconcile(self.store)
        return self.store.find(id_or_name)

    def shape(self, id_or_name: str) -> dict[str, Any]:
        """The experiment as the object that ``beaker experiment get --format json`` prints."""
        return self._shape(self.find(id_or_name))

    def shapes(
        self, *, workspace: str | None = None, state: str | None = None, limit: int | None = 20
    ) -> Sequence[dict[str, Any]]:
        """The experiments as such objects, newest first."""
        reconcile(self.store)
        states = None if state is None else [state]
        return [self._shape(row) for row in self.store.experiments(workspace=workspace, states=states, limit=limit)]

    def job_shape(self, job_id: str) -> dict[str, Any]:
        """The job as the object that ``beaker job get --format json`` prints."""
        row, found = self.experiment_or_job(job_id)
        if found is None:
            raise UserError(f"{job_id}: no such job")
        job = next(job for job in self.store.jobs(row.id) if job.id == found)
        task = next(task for task in self.store.tasks(row.id) if task.id == job.task_id)
        return job_shape(row, task, job)

    def request_stop(self, id_or_name: str, reason: str = "stopped") -> ExperimentRow:
        """Record a stop and tell the supervisor; does not wait."""
        row = self.find(id_or_name)
        if row.active:
            self.store.request_stop(row.id, reason)
            self._nudge(row)
        return row

    def request_job_stop(self, job_id: str) -> None:
        """Ask for the end of one job; does not wait."""
        row, found = self.experiment_or_job(job_id)
        if found is None:
            raise UserError(f"{job_id}: no such job")
        self._request(row, found, "job_stop_requested", "stopped")

    def preempt(self, id_or_name: str, *, rank: int | None = None) -> None:
        """Preempt an experiment's jobs, or those of one rank, as Beaker would; does not wait.

        Raises:
            UserError: It has ended, or has no such rank.
        """
        row = self._active(id_or_name)
        if rank is None:
            self._request(row, None, "preempt_requested", "preempted")
        for job in self._running(row, rank) if rank is not None else ():
            self._request(row, job.id, "preempt_requested", "preempted")

    def restart_alone(self, id_or_name: str, rank: int) -> None:
        """Kill one rank and start it again as a new job while the others run on; does not wait.

        Beaker does not do this on purpose; it is what an experiment with ``autoResume`` but without
        ``propagatePreemption`` meets when a machine is lost, and rehearsals try it.  The replica gets no TERM: it
        cannot tell its peers, who must notice by themselves that another process has taken its place.

        Raises:
            UserError: The experiment has ended, or has no such rank.
        """
        row = self._active(id_or_name)
        for job in self._running(row, rank):
            self._request(row, job.id, "restart_alone_requested", "restarted alone")

    def restart(self, id_or_name: str) -> Experiment:
        """Start all tasks of an ended experiment again, with the same environment and new jobs.

        Raises:
            UserError: It has not ended.
        """
        row = self.find(id_or_name)
        folder = self.home.experiment(row.id) / "jobs"
        newest: dict[tuple[str, int], int] = {}
        for job in self.store.jobs(row.id):
            key = (job.task_id, job.replica_rank)
            newest[key] = max(newest.get(key, 0), job.attempt)
        columns = [new_job(task, rank, attempt + 1, folder) for (task, rank), attempt in newest.items()]
        if not self.store.reopen(row.id, os.getpid(), own_mark(), columns):
            raise UserError(f"{id_or_name}: has not ended, so it cannot be restarted", hint="stop it first")
        # What a creation that was killed had not come to.
        known = self.secrets.origin(row.id)
        origin = known if known.environment else self._settle(row.id, row.spec)
        for name, value in capture_origin(row.spec).secrets.items():
            origin.secrets.setdefault(name, value)
        start_supervisor(self.home, self.store, row.id, origin)
        return self.get(row.id)

    def _settle(self, experiment_id: str, spec: Mapping[str, Any]) -> Origin:
        """Write an experiment's own folder and, last, what it takes from this process."""
        folder = self.home.experiment(experiment_id)
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        text = json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
        atomic_write(folder / "spec.json", text.encode(), mode=0o600)
        origin = capture_origin(spec)
        origin.environment[HOME_VARIABLE] = str(self.home.root)
        self.secrets.keep_origin(experiment_id, origin)
        return origin

    def _active(self, id_or_name: str) -> ExperimentRow:
        row = self.find(id_or_name)
        if not row.active:
            raise UserError(f"{id_or_name}: has ended ({row.state}), so nothing can be preempted")
        return row

    def _running(self, row: ExperimentRow, rank: int) -> Sequence[JobRow]:
        """The jobs of a rank that have not ended."""
        self._check_selection(self.store.tasks(row.id), rank, None)
        return [job for job in self.store.jobs(row.id) if job.replica_rank == rank and not job.ended]

    def _request(self, row: ExperimentRow, job_id: str | None, kind: str, detail: str) -> None:
        self.store.event(row.id, job_id, kind, detail)
        self._nudge(row)

    def _nudge(self, row: ExperimentRow) -> None:
        """Make the supervisor look into the database now; it does so every second anyway."""
        process = supervisor_process(row)
        if process is not None and process.pid != os.getpid():
            send_signal(process, signal.SIGUSR1)

    def _current(self, experiment_id: str) -> ExperimentRow:
        """The row as it is now, after a look at the supervisor when it should be alive."""
        row = self.store.experiment(experiment_id)
        if row is not None and row.active and supervisor_process(row) is None:
            reconcile(self.store)
            row = self.store.experiment(experiment_id)
        if row is None:
            raise UserError(f"{experiment_id}: was removed meanwhile")
        return row

    def _after_end(self, row: ExperimentRow) -> None:
        """A supervisor that ended in order has left nothing; one that was lost may have."""
        if row.state == "failed" and any(job.message == LOST for job in self.store.jobs(row.id)):
            kill_leftovers(job.id for job in self.store.jobs(row.id))

    def experiment_or_job(self, text: str) -> tuple[ExperimentRow, str | None]:
        """The experiment that ``text`` names, and the job's id when it names one of its jobs."""
        reconcile(self.store)
        row = self.store.experiment_of_job(text.upper())
        return (row, text.upper()) if row is not None else (self.store.find(text), None)

    def _shape(self, row: ExperimentRow) -> dict[str, Any]:
        return experiment_shape(row, self.store.tasks(row.id), self.store.jobs(row.id))

    @staticmethod
    def _check_selection(tasks: Any, rank: int | None, task: str | None) -> None:
        known: Sequence[TaskRow] = [*tasks]
        names = [item.name for item in known]
        if task is not None and task not in names:
            raise UserError(f"task {task!r}: expected one of {', '.join(names)}")
        most = max(item.replicas for item in known) - 1
        if rank is not None and not 0 <= rank <= most:
            raise UserError(f"rank {rank}: expected 0 to {most}")


def _check_word(value: str, pattern: re.Pattern[str], what: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        raise UserError(f"experiment {what} {value!r}: expected {expected}")
