"""What the engine knows, row by row: experiments, tasks, jobs, events."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.beaker.legality import parse_duration
from primebeaker.errors import UserError, nearest
from primebeaker.local.database import connect, writing
from primebeaker.local.ids import is_id, new_id, timestamp

__all__ = ["ACTIVE", "ExperimentRow", "JobRow", "Store", "TaskRow"]

#: States in which a supervisor is responsible for the experiment.
ACTIVE = ("created", "running")

_LEAST_PREFIX = 6


@dataclass(frozen=True)
class ExperimentRow:
    """One experiment."""

    id: str
    name: str
    workspace: str
    account: str
    description: str
    budget: str | None
    spec_json: str
    state: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    supervisor_pid: int | None
    supervisor_start: str | None
    supervisor_beat: str | None
    cancel_requested_at: str | None
    cancel_reason: str | None
    rehearsal_json: str | None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec as submitted."""
        value: Mapping[str, Any] = json.loads(self.spec_json)
        return value

    @property
    def rehearsal(self) -> Mapping[str, Any] | None:
        """What the experiment is rehearsed with, or None outside of rehearsals."""
        value: Mapping[str, Any] | None = json.loads(self.rehearsal_json) if self.rehearsal_json else None
        return value

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.state in ACTIVE


@dataclass(frozen=True)
class TaskRow:
    """One task of an experiment; ``position`` is its index in the spec."""

    id: str
    experiment_id: str
    name: str
    position: int
    replicas: int
    leader_selection: bool
    propagate_failure: bool
    propagate_preemption: bool
    sync_timeout_s: float | None
    timeout_s: float | None
    auto_resume: bool


@dataclass(frozen=True)
class JobRow:
    """One execution of one replica."""

    id: str
    task_id: str
    replica_rank: int
    attempt: int
    state: str
    pid: int | None
    pgid: int | None
    proc_start: str | None
    exit_code: int | None
    canceled_code: int | None
    message: str
    created_at: str
    scheduled_at: str | None
    started_at: str | None
    exited_at: str | None
    finalized_at: str | None
    log_path: str

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.finalized_at is not None


class StartedJob(NamedTuple):
    """A job whose process has been started."""

    id: str
    pid: int
    start: str
    at: str


@dataclass(frozen=True)
class EventRow:
    """One change of state, or a request, with its cause."""

    id: int
    experiment_id: str
    job_id: str | None
    at: str
    kind: str
    detail: str


class Store:
    """Reads and writes the database; usable from several threads, each with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path)
        return connection

    def check_schema(self) -> None:
        """Open the database now.

        Raises:
            UserError: It cannot be used.
        """
        assert self.connection is not None

    # Reading

    def experiment(self, experiment_id: str) -> ExperimentRow | None:
        """The experiment of this id."""
        rows = self._all("SELECT * FROM experiments WHERE id = ?", experiment_id)
        return ExperimentRow(**rows[0]) if rows else None

    def experiments(
        self, *, workspace: str | None = None, states: Sequence[str] | None = None, limit: int | None = None
    ) -> list[ExperimentRow]:
        """Experiments, newest first."""
        wanted = None if states is None else json.dumps(list(states))
        rows = self._all(
            "SELECT * FROM experiments WHERE (? IS NULL OR workspace = ?)"
            " AND (? IS NULL OR state IN (SELECT value FROM json_each(?))) ORDER BY id DESC LIMIT ?",
            workspace,
            workspace,
            wanted,
            wanted,
            -1 if limit is None else limit,
        )
        return [ExperimentRow(**row) for row in rows]

    def find(self, text: str) -> ExperimentRow:
        """The experiment of an id, a unique prefix (at least 6 characters) of one, a name, or ``owner/name``.

        Raises:
            UserError: There is none, or the prefix fits several.
        """
        owner, _, name = text.rpartition("/")
        rows = self._all(
            "SELECT * FROM experiments WHERE id = ? OR (name = ? AND (? = '' OR account = ?)) ORDER BY id DESC",
            text.upper(),
            name,
            owner,
            owner,
        )
        if not rows and len(text) >= _LEAST_PREFIX and is_id(text.upper().ljust(26, "0")):
            rows = self._all("SELECT * FROM experiments WHERE id LIKE ? || '%'", text.upper())
            if len(rows) > 1:
                raise UserError(f"{text}: {len(rows)} experiments have ids that start so", hint="give more of the id")
        if rows:
            return ExperimentRow(**rows[0])
        known = self._all("SELECT name FROM experiments ORDER BY id DESC LIMIT 1000")
        names = nearest(name, dict.fromkeys(row["name"] for row in known), cutoff=0.5)
        listed = "list them with 'primebeaker local list'"
        hint = f"did you mean {' or '.join(repr(match) for match in names)}?" if names else listed
        raise UserError(f"{text}: no such experiment", hint=hint)

    def tasks(self, experiment_id: str) -> list[TaskRow]:
        """The experiment's tasks in the order of its spec."""
        return [
            TaskRow(**{**row, **{name: bool(row[name]) for name in _TASK_FLAGS}})
            for row in self._all("SELECT * FROM tasks WHERE experiment_id = ? ORDER BY position", experiment_id)
        ]

    def jobs(self, experiment_id: str) -> list[JobRow]:
        """All its jobs, by task, rank and attempt."""
        rows = self._all(
            "SELECT jobs.* FROM jobs JOIN tasks ON tasks.id = jobs.task_id WHERE experiment_id = ?"
            " ORDER BY tasks.position, replica_rank, attempt",
            experiment_id,
        )
        return [JobRow(**row) for row in rows]

    def experiment_of_job(self, job_id: str) -> ExperimentRow | None:
        """The experiment a job belongs to."""
        rows = self._all(
            "SELECT experiments.* FROM experiments JOIN tasks ON tasks.experiment_id = experiments.id"
            " JOIN jobs ON jobs.task_id = tasks.id WHERE jobs.id = ?",
            job_id,
        )
        return ExperimentRow(**rows[0]) if rows else None

    def events(self, experiment_id: str, *, after: int = 0) -> list[EventRow]:
        """Its events, oldest first."""
        rows = self._all("SELECT * FROM events WHERE experiment_id = ? AND id > ? ORDER BY id", experiment_id, after)
        return [EventRow(**row) for row in rows]

    # Writing

    def create(
        self, experiment: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert an experiment with its tasks and jobs: all of it or nothing.

        Raises:
            sqlite3.IntegrityError: The account has an experiment of that name.
        """
        with writing(self.connection):
            self._insert("experiments", experiment)
            for task in tasks:
                self._insert("tasks", task)
            self._event(experiment["id"], None, "created", "")
            self._add_jobs(experiment["id"], jobs)

    def add_jobs(self, experiment_id: str, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Insert jobs in state ``created``."""
        with writing(self.connection):
            self._add_jobs(experiment_id, jobs)

    def _add_jobs(self, experiment_id: str, jobs: Sequence[Mapping[str, Any]]) -> None:
        for job in jobs:
            self._insert("jobs", job)
            self._event(experiment_id, job["id"], "created", f"attempt {job['attempt']}")

    def claim(self, experiment_id: str, pid: int, start: str) -> bool:
        """Make a process responsible for an experiment that has not ended. False when it has."""
        with writing(self.connection):
            cursor = self.connection.execute(
                "UPDATE experiments SET supervisor_pid = ?, supervisor_start = ?, supervisor_beat = ?"
                " WHERE id = ? AND state IN ('created', 'running')",
                (pid, start, timestamp(), experiment_id),
            )
            return cursor.rowcount == 1

    def beat(self, experiment_id: str) -> None:
        """Note that the supervisor is alive."""
        self._run("UPDATE experiments SET supervisor_beat = ? WHERE id = ?", timestamp(), experiment_id)

    def update_jobs(
        self, experiment_id: str, job_ids: Sequence[str], event: str, detail: str = "", **columns: Any
    ) -> None:
        """Change columns of jobs together, with one event each."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with writing(self.connection):
            for job_id in job_ids:
                self.connection.execute(f"UPDATE jobs SET {assignments} WHERE id = ?", (*columns.values(), job_id))  # noqa: S608 - our own column names
                self._event(experiment_id, job_id, event, detail)

    def jobs_started(self, experiment_id: str, started: Sequence[StartedJob]) -> None:
        """Jobs that have been started together."""
        with writing(self.connection):
            for job in started:
                self.connection.execute(
                    "UPDATE jobs SET state = 'running', pid = ?, pgid = ?, proc_start = ?, started_at = ? WHERE id = ?",
                    (job.pid, job.pid, job.start, job.at, job.id),
                )
                self._event(experiment_id, job.id, "running", "")

    def started(self, experiment_id: str) -> None:
        """The experiment runs."""
        with writing(self.connection):
            self.connection.execute(
                "UPDATE experiments SET state = 'running', started_at = COALESCE(started_at, ?) WHERE id = ?",
                (timestamp(), experiment_id),
            )
            self._event(experiment_id, None, "running", "")

    def end(self, experiment_id: str, state: str, cause: str) -> None:
        """The experiment has ended."""
        with writing(self.connection):
            self.connection.execute(
                "UPDATE experiments SET state = ?, ended_at = ? WHERE id = ?", (state, timestamp(), experiment_id)
            )
            self._event(experiment_id, None, state, cause)

    def lose(self, row: ExperimentRow, message: str) -> bool:
        """End an experiment whose supervisor is gone; False when somebody else did, or a new supervisor has it."""
        now = timestamp()
        with writing(self.connection):
            cursor = self.connection.execute(
                "UPDATE experiments SET state = 'failed', ended_at = ? WHERE id = ? AND state IN ('created', 'running')"
                " AND supervisor_pid IS ? AND supervisor_start IS ?",
                (now, row.id, row.supervisor_pid, row.supervisor_start),
            )
            if cursor.rowcount != 1:
                return False
            self.connection.execute(
                "UPDATE jobs SET state = 'failed', message = ?, finalized_at = ?,"
                " exited_at = CASE WHEN started_at IS NULL THEN NULL ELSE ? END WHERE finalized_at IS NULL"
                " AND task_id IN (SELECT id FROM tasks WHERE experiment_id = ?)",
                (message, now, now, row.id),
            )
            self._event(row.id, None, "failed", message)
            return True

    def request_stop(self, experiment_id: str, reason: str) -> None:
        """Ask the supervisor to cancel everything; the first reason stays."""
        with writing(self.connection):
            cursor = self.connection.execute(
                "UPDATE experiments SET cancel_requested_at = ?, cancel_reason = ?"
                " WHERE id = ? AND cancel_requested_at IS NULL",
                (timestamp(), reason, experiment_id),
            )
            if cursor.rowcount:
                self._event(experiment_id, None, "stop_requested", reason)

    def reopen(self, experiment_id: str, pid: int, start: str, jobs: Sequence[Mapping[str, Any]]) -> bool:
        """Make an ended experiment active again, with new jobs and in the care of a process. False when it runs."""
        with writing(self.connection):
            cursor = self.connection.execute(
                "UPDATE experiments SET state = 'created', ended_at = NULL, cancel_requested_at = NULL,"
                " cancel_reason = NULL, supervisor_pid = ?, supervisor_start = ?"
                " WHERE id = ? AND state NOT IN ('created', 'running')",
                (pid, start, experiment_id),
            )
            if cursor.rowcount:
                self._event(experiment_id, None, "restarted", "")
                self._add_jobs(experiment_id, jobs)
            return cursor.rowcount == 1

    def event(self, experiment_id: str, job_id: str | None, kind: str, detail: str = "") -> None:
        """Note an event."""
        with writing(self.connection):
            self._event(experiment_id, job_id, kind, detail)

    def delete(self, experiment_id: str) -> bool:
        """Forget an ended experiment. False when it runs."""
        with writing(self.connection):
            cursor = self.connection.execute(
                "DELETE FROM experiments WHERE id = ? AND state NOT IN ('created', 'running')", (experiment_id,)
            )
            return cursor.rowcount == 1

    def check(self) -> str:
        """SQLite's own verdict on the file: ``ok``, or what is wrong."""
        return str(self.connection.execute("PRAGMA quick_check").fetchone()[0])

    def _all(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self.connection.execute(query, values).fetchall()]

    def _run(self, statement: str, *values: Any) -> None:
        self.connection.execute(statement, values)

    def _insert(self, table: str, columns: Mapping[str, Any]) -> None:
        marks = ", ".join("?" * len(columns))
        self.connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608 - our own names
            tuple(columns.values()),
        )

    def _event(self, experiment_id: str, job_id: str | None, kind: str, detail: str) -> None:
        self.connection.execute(
            "INSERT INTO events (experiment_id, job_id, at, kind, detail) VALUES (?, ?, ?, ?, ?)",
            (experiment_id, job_id, timestamp(), kind, detail),
        )


_TASK_FLAGS = ("leader_selection", "propagate_failure", "propagate_preemption", "auto_resume")


def new_job(task_id: str, rank: int, attempt: int, jobs_folder: Path) -> dict[str, Any]:
    """The columns of a job that is about to be created."""
    job_id = new_id()
    return {
        "id": job_id,
        "task_id": task_id,
        "replica_rank": rank,
        "attempt": attempt,
        "state": "created",
        "created_at": timestamp(),
        "log_path": str(jobs_folder / job_id / "stdout.log"),
    }


def task_columns(experiment_id: str, position: int, task: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one task of a checked spec."""
    context = task.get("context") or {}
    timeout, together = task.get("timeout"), task.get("synchronizedStartTimeout")
    return {
        "id": new_id(),
        "experiment_id": experiment_id,
        "name": task.get("name") or f"task-{position}",
        "position": position,
        "replicas": task.get("replicas") or 1,
        "leader_selection": bool(task.get("leaderSelection")),
        "propagate_failure": bool(task.get("propagateFailure")),
        "propagate_preemption": bool(task.get("propagatePreemption")),
        "sync_timeout_s": None if together is None else parse_duration(together),
        "timeout_s": None if timeout is None else parse_duration(timeout),
        "auto_resume": bool(context.get("autoResume")),
    }
