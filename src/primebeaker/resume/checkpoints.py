"""Which steps trainer and orchestrator both finished, as Python callers and the manifest see them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule
from primebeaker.prime_rl.checkpoints import Shard, StepState, list_steps, select_step

__all__ = ["CommonCheckpoint", "describe", "discover_common_checkpoints", "select_common_checkpoint"]


@dataclass(frozen=True)
class CommonCheckpoint:
    """One complete step."""

    step: int
    layout: str
    state: StepState

    @property
    def trainer_dir(self) -> Path:
        """The folder of the shards."""
        return self.state.trainer_dir

    @property
    def trainer_metadata(self) -> Path:
        """The file that commits the trainer's part."""
        return self.state.trainer_metadata

    @property
    def trainer_shards(self) -> tuple[Shard, ...]:
        """The shard files, by name."""
        return self.state.trainer_shards

    @property
    def orchestrator_progress(self) -> Path | None:
        """The orchestrator's file."""
        return self.state.orchestrator_progress

    def as_dict(self) -> dict[str, Any]:
        """The ``checkpoint`` object of plans and manifests."""
        return describe(self.state, self.layout)


def describe(state: StepState, layout: str) -> dict[str, Any]:
    """The ``checkpoint`` object of a step; two equal ones hold the same files of the same sizes."""
    return {
        "step": state.step,
        "layout": layout,
        "trainer_dir": str(state.trainer_dir),
        "trainer_metadata": str(state.trainer_metadata),
        "trainer_shards": [
            {"path": str(state.trainer_dir / shard.name), "size": shard.size} for shard in state.trainer_shards
        ],
        "orchestrator_progress": None if state.orchestrator_progress is None else str(state.orchestrator_progress),
        "orchestrator_progress_size": state.orchestrator_progress_size,
        "policy_dir": None if state.policy_dir is None else str(state.policy_dir),
        "verified": state.verified,
    }


def discover_common_checkpoints(
    output_dir: str | Path, *, expected_trainer_shards: int
) -> tuple[CommonCheckpoint, ...]:
    """Every complete step, ascending. The policy's files are not asked for, since no TOML says whether they matter.

    Raises:
        UserError: ``expected_trainer_shards`` is below 1, or a directory cannot be read.
    """
    layout = find_layout(Path(output_dir))
    states = list_steps(layout, rl_rule(expected_trainer_shards))
    return tuple(CommonCheckpoint(state.step, layout.generation, state) for state in states if state.complete)


def select_common_checkpoint(
    output_dir: str | Path, *, expected_trainer_shards: int, resume_step: int | None = None
) -> CommonCheckpoint:
    """The newest complete step, or ``resume_step``.

    Raises:
        UserError: There is none, or the step asked for is incomplete; the message says what is missing.
    """
    layout = find_layout(Path(output_dir))
    chosen = select_step(layout, rl_rule(expected_trainer_shards), resume_step).chosen
    assert chosen is not None
    return CommonCheckpoint(chosen.step, layout.generation, chosen)
