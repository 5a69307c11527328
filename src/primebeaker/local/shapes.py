"""Rows as the JSON objects that ``beaker … --format json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primebeaker.beaker.models import PREEMPTED_CODE
from primebeaker.local.environment import result_id
from primebeaker.local.ids import derived_id
from primebeaker.local.store import ExperimentRow, JobRow, TaskRow

__all__ = ["MANUAL_CODE", "SIBLING_FAILED_CODE", "account_shape", "experiment_shape", "job_shape", "workspace_shape"]

#: Beaker's ``canceledCode`` of a job that was stopped by hand.
MANUAL_CODE = 4
#: … and of one that was ended because another job of the experiment failed.
SIBLING_FAILED_CODE = 8


def account_shape(name: str) -> dict[str, Any]:
    """An account."""
    return {"id": derived_id("account", name), "name": name, "displayName": name}


def workspace_shape(full_name: str) -> dict[str, Any]:
    """A workspace's reference."""
    return {
        "id": derived_id("workspace", full_name),
        "name": full_name.rpartition("/")[2],
        "fullName": full_name,
    }


def experiment_shape(row: ExperimentRow, tasks: Sequence[TaskRow], jobs: Sequence[JobRow]) -> dict[str, Any]:
    """An experiment with its jobs, oldest first."""
    by_id = {task.id: task for task in tasks}
    full_name = f"{row.account}/{row.name}"
    shape: dict[str, Any] = {
        "id": row.id,
        "name": full_name,
        "fullName": full_name,
        "author": account_shape(row.account),
        "workspaceRef": workspace_shape(row.workspace),
        "description": row.description,
        "created": row.created_at,
        "state": row.state,
        "jobs": [job_shape(row, by_id[job.task_id], job) for job in sorted(jobs, key=lambda job: job.attempt)],
    }
    if row.budget is not None:
        shape["budget"] = row.budget
    return shape


def job_shape(row: ExperimentRow, task: TaskRow, job: JobRow) -> dict[str, Any]:
    """One job."""
    canceled = job.state in ("canceled", "preempted")
    return {
        "id": job.id,
        "name": task.name,
        "kind": "execution",
        "author": account_shape(row.account),
        "workspace": derived_id("workspace", row.workspace),
        "execution": {
            "task": task.id,
            "experiment": row.id,
            "replicaRank": job.replica_rank,
            "spec": row.spec["tasks"][task.position],
            "result": {"beaker": result_id(job.id)},
        },
        "status": {
            "created": job.created_at,
            "scheduled": job.scheduled_at,
            "started": job.started_at,
            "exited": job.exited_at,
            "failed": job.finalized_at if job.state == "failed" and job.started_at is None else None,
            "finalized": job.finalized_at,
            "canceled": (job.exited_at or job.finalized_at) if canceled else None,
            "canceledFor": job.message if canceled else None,
            "canceledCode": _canceled_code(job) if canceled else None,
            "exitCode": job.exit_code,
            "message": job.message,
        },
    }


def _canceled_code(job: JobRow) -> int:
    if job.canceled_code is not None:
        return job.canceled_code
    return PREEMPTED_CODE if job.state == "preempted" else MANUAL_CODE
