"""Which checkpoint steps of a run are complete, and what the others lack.

A step is complete when trainer and orchestrator both finished writing it.  Everything here only reads, and judges by
names, sizes and the trainer's ``.metadata``; nothing is imported from a checkpoint (see
:mod:`primebeaker.prime_rl.inert_pickle`).

Conditions on step N, with the words used for what is missing:

1. the trainer's ``.metadata`` is a non-empty file (``trainer .metadata``)
2. every rank has a non-empty shard (``trainer shard __0_0.distcp``)
3. no shard of another rank or name (``unexpected shard … (expected R=2 ranks)``)
4. ``.metadata`` parses and every file it names is long enough (``truncated .metadata``, ``shard … is … bytes``)
5. the orchestrator's ``progress.pt`` is non-empty and, if a zip, whole (``orchestrator progress.pt``)
6. with the file-system transport, the policy's weights lie there (``policy weights broadcasts/step_N``)
7. no save is under way (``save in progress``)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.prime_rl.checkpoint_files import METADATA, Shard, entries, policy_dir, read_progress, read_trainer
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule
from primebeaker.prime_rl.layout import Layout, parse_step, step_name

__all__ = [
    "Selection",
    "Shard",
    "StepState",
    "list_steps",
    "newest_complete",
    "read_step",
    "select_step",
    "step_numbers",
    "summary_of_missing",
]


@dataclass(frozen=True)
class StepState:
    """One step as it lies on disk.

    Attributes:
        step: N of ``step_N``; the run continues at N + 1.
        missing: What keeps the step from being complete, in the order of the conditions; empty when complete.
        warnings: What could not be verified.
        trainer: Whether the trainer's part is whole.
        orchestrator: Whether the orchestrator's part is whole; None when the rule needs none.
        policy: Whether the policy's weights are there; None when the rule needs none.
        trainer_dir: Folder of the shards.
        trainer_metadata: The file that commits the trainer's part.
        trainer_shards: Every ``*.distcp`` file, by name.
        orchestrator_progress: The orchestrator's file; None when the rule needs none.
        orchestrator_progress_size: Its size in bytes.
        policy_dir: Where the policy's weights were found.
        bytes: Size of all files read, in bytes.
        modified_at: The newest change of any of them; None without files.
        verified: Whether ``.metadata`` and ``progress.pt`` were of a kind whose content can be checked.
    """

    step: int
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    trainer: bool
    orchestrator: bool | None
    policy: bool | None
    trainer_dir: Path
    trainer_metadata: Path
    trainer_shards: tuple[Shard, ...]
    orchestrator_progress: Path | None
    orchestrator_progress_size: int
    policy_dir: Path | None
    bytes: int
    modified_at: datetime | None
    verified: bool

    @property
    def complete(self) -> bool:
        """Whether a run can be resumed from this step."""
        return not self.missing

    def as_dict(self) -> dict[str, Any]:
        """The row of a listing."""
        return {
            "step": self.step,
            "complete": self.complete,
            "trainer": self.trainer,
            "orchestrator": self.orchestrator,
            "policy": self.policy,
            "missing": list(self.missing),
            "bytes": self.bytes,
            "modified_at": self.modified_at.isoformat().replace("+00:00", "Z") if self.modified_at else None,
        }


@dataclass(frozen=True)
class Selection:
    """The newest complete step (None when there is none) and every newer one that is not, newest first."""

    chosen: StepState | None
    skipped: tuple[StepState, ...]


def step_numbers(layout: Layout, rule: CompletenessRule) -> list[int]:
    """The steps that trainer or orchestrator began, ascending, by the names of their folders alone.

    Raises:
        UserError: A root exists but cannot be read.
    """
    roots = (
        {layout.trainer_checkpoints, layout.orchestrator_checkpoints}
        if rule.orchestrator
        else {layout.trainer_checkpoints}
    )
    return sorted({step for root in roots for step in _steps_in(root)})


def list_steps(layout: Layout, rule: CompletenessRule) -> list[StepState]:
    """Every step, ascending, each judged in full; steps that vanish while being read are left out.

    Raises:
        UserError: A directory exists but cannot be read.
    """
    states = (read_step(layout, rule, step) for step in step_numbers(layout, rule))
    return [state for state in states if state is not None]


def newest_complete(layout: Layout, rule: CompletenessRule) -> Selection:
    """The largest complete step; only steps newer than it are read.

    Raises:
        UserError: A directory exists but cannot be read.
    """
    skipped: list[StepState] = []
    for step in reversed(step_numbers(layout, rule)):
        state = read_step(layout, rule, step)
        if state is None:
            continue
        if state.complete:
            return Selection(state, tuple(skipped))
        skipped.append(state)
    return Selection(None, tuple(skipped))


def select_step(layout: Layout, rule: CompletenessRule, step: int | None = None) -> Selection:
    """The step to resume from: ``step``, or by default the newest complete one.

    Raises:
        UserError: The step asked for lacks something (the message names it and the complete steps), there is no
            complete step (the message names the patterns looked at and what the newest three lack), a root does not
            exist, or a directory cannot be read.
    """
    roots = (
        (layout.trainer_checkpoints, layout.orchestrator_checkpoints)
        if rule.orchestrator
        else (layout.trainer_checkpoints,)
    )
    for root in dict.fromkeys(roots):
        if not root.is_dir():
            raise UserError(f"{root}: no checkpoint directory here")
    if step is None:
        selection = newest_complete(layout, rule)
        if selection.chosen is None:
            raise UserError(_none_complete(layout, rule, selection.skipped))
        return selection
    state = read_step(layout, rule, step)
    if state is not None and state.complete:
        return Selection(state, ())
    complete = [known.step for known in list_steps(layout, rule) if known.complete]
    lacking = (
        f"is incomplete: {summary_of_missing(state.missing)}" if state else f"is not in {layout.trainer_checkpoints}"
    )
    raise UserError(f"step {step} {lacking}; complete steps: {_newest_steps(complete)}")


def summary_of_missing(missing: tuple[str, ...], *, most: int = 5) -> str:
    """The first ``most`` words of what is missing, then a count."""
    shown = ", ".join(missing[:most])
    return f"{shown} and {len(missing) - most} more" if len(missing) > most else shown


def read_step(layout: Layout, rule: CompletenessRule, step: int) -> StepState | None:
    """Judge one step; None when it is not there (any more).

    Raises:
        UserError: Its directory exists but cannot be read.
    """
    trainer = read_trainer(layout.trainer_checkpoint(step), rule)
    progress = read_progress(layout.orchestrator_progress(step)) if rule.orchestrator else None
    policy = policy_dir(layout, step) if rule.policy_files else None
    missing = list(trainer.missing)
    if progress is not None and progress.missing:
        missing.append(progress.missing)
    if rule.policy_files and policy is None:
        missing.append(f"policy weights broadcasts/step_{step}")
    if trainer.saving:
        missing.append("save in progress")
    if missing and not _is_still_there(layout, rule, step):
        return None
    return StepState(
        step=step,
        missing=tuple(missing),
        warnings=trainer.warnings + (progress.warnings if progress else ()),
        trainer=not trainer.missing and not trainer.saving,
        orchestrator=None if progress is None else not progress.missing,
        policy=policy is not None if rule.policy_files else None,
        trainer_dir=layout.trainer_checkpoint(step),
        trainer_metadata=layout.trainer_checkpoint(step) / METADATA,
        trainer_shards=trainer.shards,
        orchestrator_progress=layout.orchestrator_progress(step) if progress else None,
        orchestrator_progress_size=progress.size if progress else 0,
        policy_dir=policy,
        bytes=trainer.size + (progress.size if progress else 0),
        modified_at=_newest(trainer.modified, progress.modified if progress else 0.0),
        verified=not trainer.warnings and not (progress and progress.warnings),
    )


def _steps_in(root: Path) -> Iterator[int]:
    for entry in entries(root):
        step = parse_step(entry.name)
        if step is not None and entry.is_dir():
            yield step


def _is_still_there(layout: Layout, rule: CompletenessRule, step: int) -> bool:
    name = step_name(step)
    return (layout.trainer_checkpoints / name).is_dir() or (
        rule.orchestrator and (layout.orchestrator_checkpoints / name).is_dir()
    )


def _newest(*times: float) -> datetime | None:
    newest = max(times)
    return datetime.fromtimestamp(newest, UTC).replace(microsecond=0) if newest else None


def _none_complete(layout: Layout, rule: CompletenessRule, newest_first: tuple[StepState, ...]) -> str:
    patterns = [f"{layout.trainer_checkpoints}/step_*/trainer/{METADATA}"]
    if rule.orchestrator:
        patterns.append(f"{layout.orchestrator_checkpoints}/step_*/orchestrator/progress.pt")
    lacking = "; ".join(f"step {state.step} lacks {summary_of_missing(state.missing)}" for state in newest_first[:3])
    return f"no complete checkpoint matches {' and '.join(patterns)}" + (f"; {lacking}" if lacking else "")


def _newest_steps(complete: list[int]) -> str:
    if not complete:
        return "none"
    shown = ", ".join(str(step) for step in complete[-10:][::-1])
    return f"{shown} and {len(complete) - 10} older" if len(complete) > 10 else shown
