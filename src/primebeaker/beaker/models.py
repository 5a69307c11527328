"""What an engine tells about an experiment: plain data, the same for Beaker and for the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

__all__ = [
    "ENDED",
    "Account",
    "CreatedExperiment",
    "Experiment",
    "ExperimentState",
    "ImageRecord",
    "Job",
    "JobState",
    "JobStatus",
    "LogLine",
]

JobState = Literal["created", "scheduled", "running", "succeeded", "failed", "canceled", "preempted"]
ExperimentState = Literal["created", "running", "succeeded", "failed", "canceled", "preempted"]
#: Job states from which there is no way on.
ENDED: frozenset[str] = frozenset({"succeeded", "failed", "canceled", "preempted"})
#: Beaker's ``canceledCode`` of a job that was preempted.
PREEMPTED_CODE = 1


@dataclass(frozen=True)
class Account:
    """The account an engine acts for."""

    id: str
    name: str


@dataclass(frozen=True)
class JobStatus:
    """Times and outcome of one job as Beaker reports them (``status`` of a job object)."""

    created: datetime | None = None
    scheduled: datetime | None = None
    started: datetime | None = None
    exited: datetime | None = None
    failed: datetime | None = None
    finalized: datetime | None = None
    canceled: datetime | None = None
    canceled_for: str | None = None
    canceled_code: int | None = None
    exit_code: int | None = None
    message: str = ""

    @property
    def state(self) -> JobState:
        """The job's state, derived from its times and outcome."""
        if self.finalized or self.exited or self.failed:
            if self.canceled and self.canceled_code == PREEMPTED_CODE:
                return "preempted"
            if self.canceled:
                return "canceled"
            return "succeeded" if self.exit_code == 0 and not self.failed else "failed"
        if self.canceled and not self.started:
            return "preempted" if self.canceled_code == PREEMPTED_CODE else "canceled"
        if self.started:
            return "running"
        return "scheduled" if self.scheduled else "created"


@dataclass(frozen=True)
class Job:
    """One execution of one replica. A restarted replica is a new job with the same rank."""

    id: str
    task: str
    replica_rank: int | None
    status: JobStatus
    task_id: str = ""
    #: The task spec as submitted; secrets by name only.
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> JobState:
        """See :attr:`JobStatus.state`."""
        return self.status.state


@dataclass(frozen=True)
class Experiment:
    """An experiment and all its jobs, oldest first."""

    id: str
    name: str
    workspace: str
    author: str
    description: str
    created: datetime | None
    jobs: tuple[Job, ...] = ()
    #: What the engine itself calls the state; None when it does not say (Beaker does not).
    reported_state: ExperimentState | None = None
    url: str | None = None
    budget: str | None = None

    @property
    def state(self) -> ExperimentState:
        """The experiment's state, from its newest job of each replica when the engine does not say."""
        if self.reported_state is not None:
            return self.reported_state
        states = {job.state for job in self.latest_jobs}
        if not states:
            return "created"
        if not states <= ENDED:
            return "running" if "running" in states else "created"
        for state in ("failed", "preempted", "canceled"):
            if state in states:
                return state
        return "succeeded"

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.state in ENDED

    @property
    def latest_jobs(self) -> tuple[Job, ...]:
        """The newest job of each replica of each task, by task and rank."""
        newest = {(job.task, job.replica_rank or 0): job for job in self.jobs}
        return tuple(newest[key] for key in sorted(newest))


@dataclass(frozen=True)
class CreatedExperiment:
    """What a create call gave back. ``experiment_id`` is None when the answer was not recognised."""

    experiment_id: str | None
    url: str | None
    #: The engine's own output, credentials masked.
    stdout: str


@dataclass(frozen=True)
class ImageRecord:
    """A Beaker image. ``committed`` is None while it is still being uploaded."""

    id: str
    name: str | None
    workspace: str | None
    committed: datetime | None


@dataclass(frozen=True)
class LogLine:
    """One line of a job's output, without its line end."""

    job_id: str
    replica_rank: int | None
    task: str
    timestamp: datetime | None
    text: str
