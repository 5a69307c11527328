"""What a rehearsed run's checkpoints look like, and how a fault damages one of them."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.launch.plan import LaunchPlan
from primebeaker.prime_rl.checkpoint_rules import rl_rule_of, sft_rule
from primebeaker.prime_rl.checkpoints import list_steps
from primebeaker.prime_rl.contract import contract_for
from primebeaker.prime_rl.layout import Layout
from primebeaker.rehearsal.faults import Fault

__all__ = ["Damage", "checkpoint_rows", "damage_checkpoint", "run_layout"]


@dataclass(frozen=True)
class Damage:
    """What was done to a checkpoint, and how its step counts since."""

    detail: str
    row: Mapping[str, Any]


def run_layout(plan: LaunchPlan) -> Layout:
    """Where the planned run writes."""
    checkpoints = plan.paths.ckpt_output_dir
    return contract_for(plan.generation).layout(
        Path(plan.paths.output_dir), ckpt_output_dir=None if checkpoints is None else Path(checkpoints)
    )


def checkpoint_rows(plan: LaunchPlan) -> list[dict[str, Any]]:
    """Every checkpoint step of the planned run, ascending, as a resume sees it."""
    if plan.kind == "sft":
        rule = sft_rule()
    else:
        rule = rl_rule_of(tomllib.loads(plan.toml_data.decode()), generation=plan.generation)
    return [state.as_dict() for state in list_steps(run_layout(plan), rule)]


def damage_checkpoint(fault: Fault, plan: LaunchPlan, damaged: Collection[int] = ()) -> Damage | None:
    """Damage the file a fault names in the step it names, or in the newest complete one.

    Args:
        fault: Which file, and how.
        plan: The launch.
        damaged: Steps that were complete before other faults damaged them.

    Returns:
        None while that step is not complete, or not there.
    """
    wanted = int(fault.values["step"])
    complete = [int(row["step"]) for row in checkpoint_rows(plan) if row["complete"] or row["step"] in damaged]
    step = max(complete, default=0) if wanted == 0 else wanted
    if step not in complete:
        return None
    path = _target(fault, run_layout(plan), step)
    try:
        _damage(path, fault.values["how"])
    except FileNotFoundError:
        # The run has removed this step meanwhile, as it keeps the newest ones only.
        return None
    row = next((row for row in checkpoint_rows(plan) if row["step"] == step), {"step": step, "complete": False})
    return Damage(f"{fault.values['how']} {path.name} of step {step}", row)


def _target(fault: Fault, layout: Layout, step: int) -> Path:
    return {
        "shard": layout.trainer_shard(step, 0),
        "metadata": layout.trainer_metadata(step),
        "progress": layout.orchestrator_progress(step),
        "policy": layout.broadcast(step) / "model.safetensors",
    }[fault.values["file"]]


def _damage(path: Path, how: str) -> None:
    if how == "remove":
        path.unlink()
        return
    content = path.read_bytes()
    # Garbage keeps the first bytes, so that the file still says it is a pickle or a zip.
    path.write_bytes({"truncate": content[: len(content) // 2], "garbage": content[:4] + b"garbage", "empty": b""}[how])
