"""What a rehearsal found out: one document, gathered from what the run left behind."""

from __future__ import annotations

import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.beaker.models import Job
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.damage import checkpoint_rows, run_layout
from primebeaker.rehearsal.doubts import earned_by_kind, find_doubts
from primebeaker.rehearsal.expectations import Seen, judge
from primebeaker.rehearsal.follow import Followed, read_records, role_events
from primebeaker.rehearsal.injection import Injector
from primebeaker.rehearsal.prepare import PreparedRehearsal

__all__ = ["build_report", "exit_code"]

#: What the embedded engine and the stand-ins do not try.
NOT_REHEARSED = (
    "GPU memory, CUDA, NCCL and the model itself: trainer, inference and orchestrator are CPU stand-ins",
    "the image: programs and packages come from this Python environment",
    "scheduling, preemption and the speed of the shared file system",
)
#: Lines of the log that a reader of the report should know of.
_NOTICE = re.compile(r"config not validated by Prime-RL.*|[a-z ]+: port [0-9]+ is busy, [0-9]+ is used")
_LAST_LINES = 15


def build_report(
    prepared: PreparedRehearsal, followed: Followed, engine: LocalEngine, injector: Injector | None = None
) -> dict[str, Any]:
    """The report of a rehearsal that has ended, keys in their documented order."""
    events = role_events(prepared.output_dir)
    metrics = _metrics(prepared)
    steps = _steps(prepared, metrics)
    problems = [item.as_dict() for item in prepared.problems]
    checkpoints = checkpoint_rows(prepared.plan)
    ended_well = followed.experiment.state == "succeeded" and not followed.timed_out
    failure = None if ended_well else _failure(prepared, followed, engine)
    faults = _faults(prepared, followed, injector, checkpoints, steps, failure) if injector else []
    # With faults the run is meant to fail; what counts is whether it did so as it must.
    ok = all(row["ok"] for row in faults) if faults else ended_well and not followed.left
    if ended_well and not faults:
        doubts = find_doubts(
            prepared.kind,
            tomllib.loads(prepared.plan.toml_data.decode()),
            [] if prepared.options.no_rollouts else metrics,
            checkpoints,
            learns=prepared.options.model == "bandit",
        )
        problems += [item.as_dict() for item in doubts]
    return {
        "ok": ok,
        "verdict": _verdict(prepared, followed, steps, failure, faults),
        "launch_id": prepared.plan.launch_id,
        "experiment_id": followed.experiment.id,
        "experiment_name": followed.experiment.name,
        "seconds": round(followed.seconds, 1),
        "toml": str(prepared.source),
        "kind": prepared.kind,
        "topology": prepared.plan.topology.as_dict(),
        "replicas": [_replica(prepared, job, events) for job in followed.experiment.latest_jobs],
        "barriers": _barriers(events),
        "steps": steps,
        "environments": _environments(metrics),
        "replies": earned_by_kind(metrics),
        "tools": {
            "services": list(prepared.tools.native),
            "stand_ins": [tool.name for tool in prepared.tools.here if tool.stand_in is not None],
            "calls": sum(int(step.get("tool_calls") or 0) for step in steps),
            "failures": sum(int(step.get("tool_failures") or 0) for step in steps),
        },
        "checkpoints": checkpoints,
        "files": _files(prepared.output_dir),
        "faults": faults,
        "failure": failure,
        "problems": problems,
        "not_rehearsed": list(NOT_REHEARSED),
        "notices": _notices(prepared, followed, engine),
        "work_dir": str(prepared.work_dir) if prepared.options.keep or not prepared.owns_work_dir else None,
    }


def _faults(
    prepared: PreparedRehearsal,
    followed: Followed,
    injector: Injector,
    checkpoints: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    failure: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    seen = Seen(
        experiment=followed.experiment,
        timed_out=followed.timed_out,
        ended_at=followed.ended_at,
        checkpoints=checkpoints,
        steps=steps,
        ends=_ends(prepared),
        last_step=prepared.steps,
        left=followed.left,
        multi_node=prepared.plan.topology.multi_node,
        failure="\n".join([failure["cause"], *failure["last_lines"]]) if failure else "",
        barrier_seconds=prepared.plan.settings.rendezvous_timeout_seconds or prepared.timeout,
    )
    return judge(injector, seen)


def exit_code(report: Mapping[str, Any]) -> int:
    """0 when everything held, 4 when the rehearsed run failed."""
    return 0 if report["ok"] else 4


def _verdict(
    prepared: PreparedRehearsal,
    followed: Followed,
    steps: Sequence[Mapping[str, Any]],
    failure: Mapping[str, Any] | None,
    faults: Sequence[Mapping[str, Any]],
) -> str:
    if faults:
        missed = [str(row["spec"]) for row in faults if not row["ok"]]
        return f"not as expected: {', '.join(missed)}" if missed else "every fault led to what was expected"
    if followed.left:
        return f"{followed.left} processes were left running"
    if followed.timed_out:
        return f"not done after {prepared.timeout:g} s"
    if failure is not None:
        # The lines themselves stand under what went wrong.
        return f"the run failed: {failure['cause'].partition('; last lines of ')[0]}"
    return f"the whole topology came up, ran {len(steps)} steps and ended well"


def _replica(prepared: PreparedRehearsal, job: Job, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rank = job.replica_rank or 0
    status = job.status
    ended = status.exited or status.finalized
    seconds = (ended - status.started).total_seconds() if ended and status.started else None
    role, trainer, inference = _role(prepared, rank)
    own = [event for event in events if event.get("rank") == rank and event.get("event") == "process_started"]
    return {
        "rank": rank,
        "role": role,
        "state": job.state,
        "exit_code": status.exit_code,
        "seconds": None if seconds is None else round(seconds, 1),
        "trainer_gpus": trainer,
        "inference_gpus": inference,
        "processes": [str(event.get("process")) for event in own],
        "message": status.message,
    }


def _role(prepared: PreparedRehearsal, rank: int) -> tuple[str, list[int], list[int]]:
    """The role of a replica, and its GPUs for training and for inference."""
    shape = prepared.plan.topology
    if prepared.kind == "sft":
        return "sft", list(range(shape.gpus_per_node)), []
    if not shape.multi_node:
        deployment = prepared.plan.facts
        infer = _number(prepared, "deployment.num_infer_gpus") if deployment.kind == "rl" else 0
        return "rl", list(range(infer, shape.gpus_per_node)), list(range(infer))
    if rank > 0:
        return "inference", [], list(range(shape.gpus_per_node))
    trainer = list(range(shape.trainer_gpus))
    mixed = list(range(shape.trainer_gpus, shape.trainer_gpus + shape.mixed_infer_gpus))
    return "mixed" if mixed else "trainer", trainer, mixed


def _number(prepared: PreparedRehearsal, key: str) -> int:
    table: Any = tomllib.loads(prepared.plan.toml_data.decode())
    for part in key.split("."):
        table = table.get(part, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, int) else 1


def _barriers(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "rank": event.get("rank"),
            "name": event.get("phase") or event.get("barrier"),
            "seconds": round(float(event.get("seconds", 0.0)), 2),
        }
        for event in events
        if (event.get("event") == "phase" and event.get("state") == "done")
        or (event.get("event") == "ready" and event.get("barrier"))
    ]


def _metrics(prepared: PreparedRehearsal) -> list[dict[str, Any]]:
    """The orchestrator's metrics, one record a step; none for SFT."""
    if prepared.kind == "sft":
        return []
    return [record for record in read_records(run_layout(prepared.plan).orchestrator_metrics) if "step" in record]


def _steps(prepared: PreparedRehearsal, metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if prepared.kind == "sft":
        return [
            {"step": record["step"], "loss": record.get("loss/mean", record.get("loss"))}
            for record in read_records(run_layout(prepared.plan).metrics)
            if "step" in record and ("loss/mean" in record or "loss" in record)
        ]
    return [
        {
            "step": record["step"],
            "reward_mean": record.get("train/agg/all/reward/mean"),
            "rollouts": record.get("progress/rollouts", 0),
            "errors": record.get("rehearsal/errors", 0),
            "tool_calls": record.get("rehearsal/tool_calls", 0),
            "tool_failures": record.get("rehearsal/tool_failures", 0),
        }
        for record in metrics
    ]


def _environments(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rewards of each environment over all steps."""
    rewards: dict[str, list[float]] = {}
    for record in metrics:
        for key, value in record.items():
            name = key.removeprefix("train/").removesuffix("/all/reward/mean")
            if key.startswith("train/") and key.endswith("/all/reward/mean") and name != "agg":
                rewards.setdefault(name, []).append(float(value))
    return [
        {"name": name, "steps": len(values), "reward_mean": round(statistics.fmean(values), 4)}
        for name, values in sorted(rewards.items())
    ]


def _files(output_dir: Path) -> dict[str, Any]:
    """How many files and bytes the run wrote, by the first folder."""
    areas: dict[str, dict[str, int]] = {}
    for path in sorted(output_dir.rglob("*")):
        if path.is_file() and not path.is_symlink():
            parts = path.relative_to(output_dir).parts
            area = "/".join(parts[:2]) + "/" if parts[0] == "run_default" and len(parts) > 2 else parts[0]
            if len(parts) > 1 and not area.endswith("/"):
                area += "/"
            entry = areas.setdefault(area, {"files": 0, "bytes": 0})
            entry["files"] += 1
            entry["bytes"] += path.stat().st_size
    total = sum(entry["files"] for entry in areas.values())
    return {"total": total, "bytes": sum(entry["bytes"] for entry in areas.values()), "areas": areas}


def _failure(prepared: PreparedRehearsal, followed: Followed, engine: LocalEngine) -> dict[str, Any]:
    """The first cause and the last lines of the replica it is on."""
    jobs = followed.experiment.latest_jobs
    ended = [job for job in jobs if job.state == "failed" and job.status.exited]
    first = min(ended, key=lambda job: str(job.status.exited), default=None)
    rank = (first.replica_rank or 0) if first else 0
    lines = [line.text for line in engine.logs(followed.experiment.id, rank=rank, tail=_LAST_LINES)]
    if followed.timed_out:
        cause = f"not done after {prepared.timeout:g} s"
    elif first is None:
        cause = f"the experiment ended {followed.experiment.state}"
    else:
        cause = _first_cause(prepared) or f"replica {rank} ended with code {first.status.exit_code}"
    return {"cause": cause, "replica": rank, "last_lines": lines}


def _first_cause(prepared: PreparedRehearsal) -> str | None:
    """What the roles agree on as the first cause, with the last lines of the process that ended."""
    return next((str(event["message"]) for event in _ends(prepared) if event.get("message")), None)


def _ends(prepared: PreparedRehearsal) -> list[dict[str, Any]]:
    """Every role's word on why it ended; roles that end early leave it in the rendezvous directory."""
    early = sorted(Path(prepared.plan.paths.rendezvous).glob("*/logs/rank_*.jsonl"))
    events = [*role_events(prepared.output_dir), *(record for path in early for record in read_records(path))]
    return [event for event in events if event.get("event") == "shutdown"]


def _notices(prepared: PreparedRehearsal, followed: Followed, engine: LocalEngine) -> list[str]:
    """Notices of the run itself: a config that Prime-RL did not validate, a port that had to be moved."""
    lines = (line.text for line in engine.logs(followed.experiment.id, rank=0))
    found = [match[0] for match in map(_NOTICE.search, lines) if match]
    return list(dict.fromkeys(found))
