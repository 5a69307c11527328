"""What a user may ask of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RehearsalOptions", "default_timeout"]

#: Steps of a rehearsal when the user names none and the TOML has more.
DEFAULT_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class RehearsalOptions:
    """How a launch is rehearsed.

    Attributes:
        steps: Training steps; None takes the TOML's ``max_steps``, at most 4.
        rollouts: Rollouts an example.
        examples: Examples a step.
        keep: Keep the work folder after the end.
        work_dir: Where everything is written; None makes a temporary folder.
        faults: Faults to inject, as text.
        model: What answers chat requests: ``bandit``, ``scripted``, ``scripted:FILE`` or a URL.
        no_rollouts: Let the orchestrator invent rollouts.
        timeout: Seconds for the whole rehearsal; None is 120, and 10 more for each replica beyond two.
        seed: Seeds everything random.
        services: Names of the tool services that the caller runs in the rehearsal's registry.
    """

    steps: int | None = None
    rollouts: int = 2
    examples: int = 2
    keep: bool = False
    work_dir: Path | None = None
    faults: tuple[str, ...] = ()
    model: str = "bandit"
    no_rollouts: bool = False
    timeout: float | None = None
    seed: int = 0
    services: tuple[str, ...] = ()


def default_timeout(replicas: int) -> float:
    """Seconds a rehearsal of so many replicas may take."""
    return 120.0 + 10.0 * max(replicas - 2, 0)
