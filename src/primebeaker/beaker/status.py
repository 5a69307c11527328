"""What a user wants to know about an experiment: each replica's state and phase, and the first cause of a failure.

The engine gives states, times and exit codes.  Tasks whose replicas meet in a shared folder (``RENDEZVOUS_DIR``) also
leave there what each role is doing; it is read when that folder is visible from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.beaker.models import Experiment, Job

__all__ = ["ExperimentStatus", "ReplicaStatus", "experiment_status"]

# The phase in which a role only watches what it has started.
_READY_PHASE = "run"


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica, by its newest job."""

    task: str
    rank: int | None
    job_id: str
    #: ``queued`` (not placed yet), ``scheduled``, ``running``, ``ready`` (its role has started everything and its
    #: inference engines answer), or how it ended.
    state: str
    #: What the role inside says it is doing, when that can be seen.
    phase: str | None
    #: How many of its inference engines answer, and how many there are to be; None when that cannot be seen.
    engines_ready: int | None
    engines: int | None
    exit_code: int | None
    message: str
    attempt: int
    created: str | None
    started: str | None
    ended: str | None
    #: Seconds from start to end, or until now.
    seconds: float | None

    @property
    def doing(self) -> str | None:
        """Its phase, with the engines it waits for."""
        if self.phase is None or not self.engines:
            return self.phase
        return f"{self.phase}, engines {self.engines_ready}/{self.engines}"


@dataclass(frozen=True)
class ExperimentStatus:
    """An experiment and its replicas."""

    id: str
    name: str
    workspace: str
    state: str
    created: str | None
    url: str | None
    #: Which replica failed first and how; None when none did.
    cause: str | None
    replicas: tuple[ReplicaStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return asdict(self)


def experiment_status(experiment: Experiment, *, now: datetime | None = None) -> ExperimentStatus:
    """Sum up an experiment.

    Args:
        experiment: From an engine.
        now: The time that running replicas are measured to.
    """
    moment = now or datetime.now(UTC)
    jobs = experiment.latest_jobs
    attempts: dict[tuple[str, int | None], int] = {}
    for job in experiment.jobs:
        key = (job.task, job.replica_rank)
        attempts[key] = attempts.get(key, 0) + 1
    replicas = tuple(_replica(job, attempts[(job.task, job.replica_rank)], moment) for job in jobs)
    return ExperimentStatus(
        id=experiment.id,
        name=experiment.name,
        workspace=experiment.workspace,
        state=experiment.state,
        created=_text(experiment.created),
        url=experiment.url,
        cause=_told_cause(jobs) or _first_failure(jobs),
        replicas=replicas,
    )


def _replica(job: Job, attempt: int, now: datetime) -> ReplicaStatus:
    status = job.status
    ended = status.exited or status.failed or status.finalized
    told = None if ended else _told(job)
    state: str = "queued" if job.state == "created" else job.state
    if told is not None and told.ready:
        state = "ready"
    seconds = round(((ended or now) - status.started).total_seconds(), 1) if status.started else None
    return ReplicaStatus(
        task=job.task,
        rank=job.replica_rank,
        job_id=job.id,
        state=state,
        phase=None if told is None else told.phase,
        engines_ready=None if told is None else told.engines_ready,
        engines=None if told is None else told.engines,
        exit_code=status.exit_code,
        message=status.message or status.canceled_for or "",
        attempt=attempt,
        created=_text(status.created),
        started=_text(status.started),
        ended=_text(ended),
        seconds=seconds,
    )


def _first_failure(jobs: tuple[Job, ...]) -> str | None:
    """The replica that failed first; one that was canceled because of it is no cause."""
    failed = [job for job in jobs if job.state == "failed"] or [job for job in jobs if job.state == "preempted"]
    if not failed:
        return None
    first = min(failed, key=lambda job: job.status.exited or job.status.failed or datetime.max.replace(tzinfo=UTC))
    rank = f" rank {first.replica_rank}" if first.replica_rank is not None else ""
    how = first.status.message or first.status.canceled_for
    if not how:
        how = f"ended with {first.status.exit_code}" if first.status.exit_code is not None else first.state
    reason = _last_words(first)
    return f"{first.task}{rank} {how}{f': {reason}' if reason else ''}"


def _last_words(job: Job) -> str | None:
    """Why its role ended, when it never got to start with its peers: its member file alone tells."""
    folder = _rendezvous(job)
    member = _read(folder / "members" / f"{job.replica_rank or 0}.json") if folder is not None else {}
    if member.get("job_id") != job.id or member.get("phase") != "ended" or not member.get("code"):
        return None
    return str(member.get("message") or "") or None


def _told_cause(jobs: tuple[Job, ...]) -> str | None:
    """What the roles themselves wrote down as the first cause."""
    for job in jobs:
        folder = _rendezvous(job)
        epoch = _read(folder / "epoch.json").get("epoch") if folder is not None else None
        if folder is None or not isinstance(epoch, str) or not any(item.state == "failed" for item in jobs):
            continue
        shutdown = _read(folder / "epochs" / epoch / "shutdown.json")
        message = shutdown.get("message")
        if isinstance(message, str) and message:
            return message.splitlines()[0].rstrip(": ")
    return None


class _Told(NamedTuple):
    """What a running role tells about itself."""

    phase: str
    engines_ready: int | None
    engines: int | None

    @property
    def ready(self) -> bool:
        return self.phase == _READY_PHASE and (self.engines is None or (self.engines_ready or 0) >= self.engines)


def _told(job: Job) -> _Told | None:
    folder = _rendezvous(job)
    if folder is None or job.state != "running":
        return None
    rank = job.replica_rank or 0
    member = _read(folder / "members" / f"{rank}.json")
    phase, answering = member.get("phase"), member.get("engines_ready")
    # A file of an earlier start of the same rank says nothing about this one.
    if not isinstance(phase, str) or member.get("job_id") not in (None, job.id):
        return None
    engines = _read(folder / "epochs" / str(_read(folder / "epoch.json").get("epoch")) / "runtime.json").get("engines")
    if not isinstance(engines, list) or not isinstance(answering, int):
        return _Told(phase, None, None)
    own = [engine for engine in engines if isinstance(engine, dict) and engine.get("rank") == rank]
    return _Told(phase, answering, len(own))


def _rendezvous(job: Job) -> Path | None:
    entries = job.spec.get("envVars")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == "RENDEZVOUS_DIR" and entry.get("value"):
            return Path(str(entry["value"]))
    return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
