"""What a rollout came to, and who makes rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from primebeaker.rehearsal.policy import Sample

__all__ = ["Collector", "Rollout", "Split"]

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class Rollout:
    """One finished rollout.

    Attributes:
        source: Name of its environment in the config.
        reward: What the rubric gave; 0 when it failed.
        sample: What the trainer learns from; None when the rollout failed or the reply is no candidate.
        error: What went wrong, in one line, or None.
        tool_calls: Tool calls the model made.
        tool_failures: How many of them a service failed.
        record: Its trace, as Prime-RL stores it.
    """

    source: str
    reward: float
    sample: Sample | None
    error: str | None
    tool_calls: int
    tool_failures: int
    record: dict[str, Any]


class Collector(Protocol):
    """Makes the rollouts of a step."""

    async def collect(self, split: Split, step: int) -> Sequence[Rollout]:
        """All rollouts of one step."""
        ...
