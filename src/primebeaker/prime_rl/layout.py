"""Where Prime-RL writes, as functions of the artifact directory. Nothing here touches the file system.

Steps are 1-based and ``step_N`` means "step N finished"; a resumed run continues at N + 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["STEP_PREFIX", "Layout", "parse_step", "step_name"]

STEP_PREFIX = "step_"
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")


def step_name(step: int) -> str:
    """``step_20``: the directory name of a finished step."""
    return f"{STEP_PREFIX}{step}"


def parse_step(name: str) -> int | None:
    """The step of a directory name that is exactly ``step_<digits>`` without leading zeros, else None."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths of one run.

    Attributes:
        output_dir: The artifact directory (generation 0.8: the run directory).
        ckpt_output_dir: Where the trainer's checkpoints and weights lie instead, when the TOML says so.
        generation: ``0.7`` keeps the orchestrator's files under ``run_default/``; ``0.8`` has one tree.
    """

    output_dir: Path
    ckpt_output_dir: Path | None = None
    generation: Literal["0.7", "0.8"] = "0.7"

    @property
    def orchestrator_dir(self) -> Path:
        """The orchestrator's own output directory."""
        return self.output_dir / "run_default" if self.generation == "0.7" else self.output_dir

    @property
    def checkpoint_base(self) -> Path:
        """The directory that holds ``checkpoints/`` and ``weights/`` of the trainer."""
        return self.ckpt_output_dir or self.output_dir

    @property
    def trainer_checkpoints(self) -> Path:
        """The root of the trainer's ``step_N`` directories."""
        return self.checkpoint_base / "checkpoints"

    @property
    def orchestrator_checkpoints(self) -> Path:
        """The root of the orchestrator's ``step_N`` directories; in 0.8 the trainer's."""
        return self.orchestrator_dir / "checkpoints" if self.generation == "0.7" else self.trainer_checkpoints

    @property
    def weights(self) -> Path:
        """Root of the Hugging Face weight snapshots."""
        return self.checkpoint_base / "weights"

    @property
    def broadcasts(self) -> Path:
        """Root of the policies sent to inference."""
        return self.orchestrator_dir / "broadcasts"

    @property
    def rollout_roots(self) -> tuple[Path, ...]:
        """Every directory that holds ``step_N`` directories of rollouts."""
        roots = (self.output_dir / "rollouts", self.orchestrator_dir / "rollouts")
        return tuple(dict.fromkeys(roots))

    @property
    def configs(self) -> Path:
        """The resolved sub-configs."""
        return self.output_dir / "configs"

    @property
    def logs(self) -> Path:
        """The log tree the roles write (0.8 processes started by Prime-RL itself write below it)."""
        return self.output_dir / "logs"

    @property
    def metrics(self) -> Path:
        """The trainer's local metrics, one JSON object a line."""
        return self.output_dir / "metrics.jsonl"

    @property
    def orchestrator_metrics(self) -> Path:
        """The orchestrator's local metrics."""
        return self.orchestrator_dir / "metrics.jsonl"

    def trainer_checkpoint(self, step: int) -> Path:
        """``checkpoints/step_N/trainer``: shards ``__R_P.distcp``, ``.metadata``, ``dataloader/``."""
        return self.trainer_checkpoints / step_name(step) / "trainer"

    def trainer_metadata(self, step: int) -> Path:
        """The file whose presence commits the trainer's checkpoint."""
        return self.trainer_checkpoint(step) / ".metadata"

    def trainer_shard(self, step: int, rank: int, part: int = 0) -> Path:
        """Shard file ``part`` written by trainer rank ``rank``."""
        return self.trainer_checkpoint(step) / f"__{rank}_{part}.distcp"

    def dataloader_state(self, step: int, rank: int) -> Path:
        """The data position of one SFT rank."""
        return self.trainer_checkpoint(step) / "dataloader" / f"rank_{rank}.pt"

    def orchestrator_checkpoint(self, step: int) -> Path:
        """``…/checkpoints/step_N/orchestrator``."""
        return self.orchestrator_checkpoints / step_name(step) / "orchestrator"

    def orchestrator_progress(self, step: int) -> Path:
        """The orchestrator's state; written when batch N is shipped, often before the trainer's step N."""
        return self.orchestrator_checkpoint(step) / "progress.pt"

    def weight_snapshot(self, step: int) -> Path:
        """``weights/step_N``: Hugging Face weights, config, tokenizer."""
        return self.weights / step_name(step)

    def broadcast(self, step: int) -> Path:
        """``broadcasts/step_N``: the policy after step N, with the marker ``STABLE``."""
        return self.broadcasts / step_name(step)

    def trace_file(
        self, step: int, split: Literal["train", "eval"] = "train", subset: Literal["all", "effective"] = "all"
    ) -> Path:
        """The orchestrator's rollouts of a step: ``all`` as they end, ``effective`` those of the finished batch."""
        return self.orchestrator_dir / "rollouts" / step_name(step) / split / subset / "traces.jsonl"

    @property
    def step_roots(self) -> tuple[Path, ...]:
        """Every directory in which Prime-RL reads ``step_*`` names (any other such name makes it fail)."""
        roots = (
            self.trainer_checkpoints,
            self.orchestrator_checkpoints,
            self.weights,
            self.broadcasts,
            *self.rollout_roots,
        )
        return tuple(dict.fromkeys(roots))

    # Logs, named as Prime-RL's own multi-node launcher names them.

    def trainer_log(self, node: int) -> Path:
        """The trainer's log of one node."""
        return self.logs / "trainer" / f"node_{node}.log"

    @property
    def torchrun_logs(self) -> Path:
        """Torchrun's log directory, one file a rank and stream below it."""
        return self.logs / "trainer" / "torchrun"

    @property
    def orchestrator_log(self) -> Path:
        """The orchestrator's log."""
        return self.logs / "orchestrator.log"

    @property
    def router_log(self) -> Path:
        """The router's log."""
        return self.logs / "inference" / "router.log"

    def engine_log(self, node: int, engine: int) -> Path:
        """The log of one inference engine."""
        return self.logs / "inference" / f"node_{node}_rank{engine}.log"

    @property
    def single_node_logs(self) -> tuple[Path, ...]:
        """The logs that Prime-RL's own launcher of a single node writes for trainer and orchestrator."""
        logs = self.logs if self.generation == "0.7" else self.logs / "latest"
        return (logs / "trainer.log", logs / "orchestrator.log")

    @property
    def gateway_log(self) -> Path:
        """The tool gateway's log."""
        return self.output_dir / "literegistry-gateway.log"
