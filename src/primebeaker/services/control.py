"""Look at and stop a stack's experiment, through whichever engine runs it."""

from __future__ import annotations

from typing import Any

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import ENDED, Experiment
from primebeaker.errors import ExternalError, UserError

__all__ = ["check_experiment_id", "planned_stop", "stack_status", "stop_command", "stop_stack"]


def check_experiment_id(experiment_id: str) -> str:
    """The ID itself, when it can be one.

    Raises:
        UserError: It is empty, holds white space, or would be taken for a flag.
    """
    if not experiment_id or experiment_id.startswith("-") or experiment_id.split() != [experiment_id]:
        raise UserError(f"experiment ID {experiment_id!r}: expected an ID or a name without white space")
    return experiment_id


def stop_command(experiment_id: str, engine: str = "beaker") -> list[str]:
    """The command that stops an experiment of an engine by hand."""
    if engine == "local":
        return ["primebeaker", "stop", experiment_id, "--engine=local"]
    return ["beaker", "experiment", "stop", experiment_id]


def planned_stop(experiment_id: str, engine: str) -> dict[str, Any]:
    """What stopping an experiment of an engine of this name would do."""
    return {"command": stop_command(check_experiment_id(experiment_id), engine), "dry_run": True}


def stop_stack(engine: Engine, experiment_id: str) -> dict[str, Any]:
    """Stop one experiment; one that has ended is success."""
    result = {**planned_stop(experiment_id, engine.name), "dry_run": False}
    try:
        ended = engine.get(experiment_id).state in ENDED
    except (ExternalError, UserError):
        # Whether it can be stopped does not depend on whether it can be looked at.
        ended = False
    if not ended:
        engine.stop(experiment_id)
    return {**result, "already_stopped": True} if ended else result


def stack_status(engine: Engine, experiment_id: str) -> dict[str, Any]:
    """The state of an experiment, of each of its tasks and of their replicas, as the engine reports it."""
    experiment = engine.get(check_experiment_id(experiment_id))
    return {
        "experiment_id": experiment.id,
        "experiment_name": experiment.name,
        "workspace": experiment.workspace,
        "state": experiment.state,
        "tasks": _tasks(experiment),
    }


def _tasks(experiment: Experiment) -> list[dict[str, Any]]:
    tasks: dict[str, list[dict[str, Any]]] = {}
    for job in experiment.latest_jobs:
        tasks.setdefault(job.task, []).append(
            {
                "rank": job.replica_rank or 0,
                "job_id": job.id,
                "state": job.state,
                "exit_code": job.status.exit_code,
                "message": job.status.message,
            }
        )
    return [{"name": name, "replicas": replicas} for name, replicas in tasks.items()]
