"""What a run's checkpoint steps must have to be complete, and where they lie.

Pure functions of a Prime-RL config tree and of what exists under the output directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from primebeaker.errors import UserError
from primebeaker.prime_rl.layout import Layout, parse_step

__all__ = [
    "CompletenessRule",
    "Generation",
    "find_layout",
    "rl_rule",
    "rl_rule_of",
    "sft_rule",
]

Generation = Literal["0.7", "0.8"]


@dataclass(frozen=True)
class CompletenessRule:
    """What a step must have to be resumed from.

    Attributes:
        ranks: Trainer ranks that must each have a shard; None accepts any number of ranks, without a gap (SFT, which
            may resume on another world size).
        orchestrator: Whether the orchestrator's progress file is needed (RL).
        policy_files: Whether the policy must lie on disk.  With the file-system transport of generation 0.7 the
            resumed trainer sends nothing: the orchestrator reads the step's weights at once.
    """

    ranks: int | None
    orchestrator: bool
    policy_files: bool = False

    def __post_init__(self) -> None:
        if self.ranks is not None and self.ranks < 1:
            raise UserError(f"expected trainer shards = {self.ranks}: expected a whole number of at least 1")


def rl_rule(ranks: int, *, policy_files: bool = False) -> CompletenessRule:
    """The rule of an RL run with ``ranks`` trainer ranks.

    Raises:
        UserError: ``ranks`` is below 1.
    """
    return CompletenessRule(ranks=ranks, orchestrator=True, policy_files=policy_files)


def sft_rule() -> CompletenessRule:
    """The rule of an SFT run: the trainer's files alone, written by any number of ranks."""
    return CompletenessRule(ranks=None, orchestrator=False)


def rl_rule_of(config: Mapping[str, Any], *, generation: Generation = "0.7") -> CompletenessRule:
    """The rule of the RL run that a training TOML describes.

    Trainer ranks are ``trainer.model.cp × trainer.model.dp_replicate`` of a multi-node run, and
    ``deployment.num_train_gpus`` of a single-node one.

    Args:
        config: The TOML's tree.
        generation: Its config generation.

    Raises:
        UserError: One of these values is not a positive whole number.
    """
    if _at(config, "deployment", "type") == "multi_node":
        ranks = _count(config, "trainer", "model", "cp") * _count(config, "trainer", "model", "dp_replicate")
    else:
        ranks = _count(config, "deployment", "num_train_gpus")
    return rl_rule(ranks, policy_files=generation == "0.7" and _sends_policy_by_files(config))


def find_layout(
    output_dir: Path, *, generation: Generation | None = None, checkpoint_dir: Path | None = None
) -> Layout:
    """The layout of a run's checkpoints.

    Args:
        output_dir: The run's output directory (generation 0.8: its run directory).
        generation: The TOML's generation.  When none of its folders exists but the other's do, the other is taken.
            None recognises it from what is there.
        checkpoint_dir: The TOML's ``ckpt.output_dir``, generation 0.7.
    """
    old = Layout(output_dir=output_dir, ckpt_output_dir=checkpoint_dir, generation="0.7")
    new = Layout(output_dir=output_dir, generation="0.8")
    if generation == "0.8":
        return old if not new.trainer_checkpoints.exists() and _exists(old) else new
    if generation is None and not old.orchestrator_checkpoints.exists() and _holds_both(new.trainer_checkpoints):
        return new
    return new if not _exists(old) and _exists(new) else old


def _exists(layout: Layout) -> bool:
    return layout.trainer_checkpoints.exists() or layout.orchestrator_checkpoints.exists()


def _holds_both(root: Path) -> bool:
    try:
        return any(parse_step(entry.name) is not None and (entry / "orchestrator").is_dir() for entry in root.iterdir())
    except OSError:
        return False


def _sends_policy_by_files(config: Mapping[str, Any]) -> bool:
    for place in (("weight_broadcast", "type"), ("trainer", "weight_broadcast", "type")):
        chosen = _at(config, *place)
        if chosen is not None:
            return bool(chosen == "filesystem")
    return _at(config, "trainer", "model", "lora") is not None or _at(config, "inference") is None


def _count(config: Mapping[str, Any], *path: str) -> int:
    value = _at(config, *path)
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{'.'.join(path)} = {value!r}: expected a whole number of at least 1")
    return value


def _at(config: Mapping[str, Any], *path: str) -> Any:
    value: Any = config
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    # Prime-RL writes null as the text "None".
    return None if value == "None" else value
