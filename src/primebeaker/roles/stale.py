"""What an output directory already holds: from which step to continue, and what must be moved aside first.

Nothing of a run is ever deleted.  Steps of an abandoned branch are renamed away, because the trainer would read their
rollouts, and a later save into an old checkpoint directory would mix old and new shards under an old ``.metadata``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule
from primebeaker.prime_rl.checkpoints import newest_complete, read_step, step_numbers, summary_of_missing
from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.layout import STEP_PREFIX, Layout, parse_step
from primebeaker.prime_rl.tables import lookup
from primebeaker.roles.moves import Move, move_aside

__all__ = [
    "LAUNCH_FILE",
    "Decision",
    "LaunchRecord",
    "clean",
    "decide",
    "plan_moves",
    "refuse_odd_names",
]

LAUNCH_FILE = "primebeaker_launch.json"
_SCHEMA = "primebeaker.launch/v1"
_MARKERS = ("NCCL_READY", ".sender_ready", ".receiver_ready", ".started", ".finished")


@dataclass(frozen=True)
class Decision:
    """Where a start continues.

    Attributes:
        step: The finished step both sides continue from; None starts fresh.
        clean: Move the whole output directory aside first.
        notices: Lines for the log.
    """

    step: int | None
    clean: bool = False
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchRecord:
    """``primebeaker_launch.json``: which launch an output directory belongs to."""

    launch_id: str
    epochs: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, output_dir: Path) -> LaunchRecord | None:
        """The record, or None when there is none (or it is not ours to read)."""
        try:
            value = json.loads((output_dir / LAUNCH_FILE).read_text(encoding="utf-8"))
            return cls(str(value["launch_id"]), tuple(value.get("epochs", ())))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, output_dir: Path) -> None:
        """Store it."""
        output_dir.mkdir(parents=True, exist_ok=True)
        content = {"schema": _SCHEMA, "launch_id": self.launch_id, "epochs": [dict(epoch) for epoch in self.epochs]}
        atomic_write_json(output_dir / LAUNCH_FILE, content)


def decide(
    values: Mapping[str, Any],
    *,
    contract: Contract,
    layout: Layout,
    rule: CompletenessRule,
    launch_id: str,
) -> Decision:
    """The step to continue from; the first row that fits wins.

    Raises:
        UserError: The asked step is incomplete, or the directory holds checkpoints of another launch.
    """
    asked = _asked_step(values, contract)
    record = LaunchRecord.read(layout.output_dir)
    if record is not None and record.launch_id == launch_id:
        return _restart(asked, layout, rule)
    if lookup(values, contract.keys.clean) is True and asked is None:
        return Decision(None, clean=True)
    if asked is not None and asked >= 0:
        state = read_step(layout, rule, asked)
        if state is None or not state.complete:
            lacks = summary_of_missing(state.missing) if state else f"not in {layout.trainer_checkpoints}"
            raise UserError(f"{contract.keys.resume_step} = {asked}: step {asked} is not complete: {lacks}")
        return Decision(asked, notices=state.warnings)
    if asked == -1:
        return _newest(layout, rule, least=0)
    if step_numbers(layout, rule):
        raise UserError(
            f"{layout.trainer_checkpoints}: this directory already holds checkpoints of another launch",
            hint=f"set {contract.keys.resume_step} = -1, use primebeaker rl resume, or another output_dir",
        )
    return Decision(None)


def _asked_step(values: Mapping[str, Any], contract: Contract) -> int | None:
    if contract.generation == "0.8":
        resume = lookup(values, "resume")
        if not isinstance(resume, Mapping):
            return None
        return int(resume.get("step", -1))
    step = lookup(values, contract.keys.resume_step)
    if step is None:
        return None
    if type(step) is not int or step < -1:
        raise UserError(f"{contract.keys.resume_step} = {step!r}: expected -1 or a step number")
    return int(step)


def _restart(asked: int | None, layout: Layout, rule: CompletenessRule) -> Decision:
    """A restart of the same launch continues from its own newest step, never before the pinned one."""
    pinned = asked if asked is not None and asked >= 0 else None
    found = _newest(layout, rule, least=pinned or 0)
    return Decision(pinned, notices=found.notices) if found.step is None else found


def _newest(layout: Layout, rule: CompletenessRule, *, least: int) -> Decision:
    selection = newest_complete(layout, rule)
    notices = tuple(f"step {state.step} is skipped: {summary_of_missing(state.missing)}" for state in selection.skipped)
    if selection.chosen is None or selection.chosen.step < least:
        return Decision(None, notices=notices)
    return Decision(selection.chosen.step, notices=notices + selection.chosen.warnings)


def refuse_odd_names(layout: Layout) -> None:
    """Refuse names that make Prime-RL fail: it takes what follows ``step_`` for a number.

    Raises:
        UserError: Naming the first one.
    """
    for root in layout.step_roots:
        for entry in _entries(root):
            if entry.name.startswith(STEP_PREFIX) and parse_step(entry.name) is None:
                raise UserError(
                    f"{entry.path}: Prime-RL fails on this name", hint="rename it so that it does not begin with step_"
                )


def clean(layout: Layout, launch_id: str) -> list[Move]:
    """Move every entry of the output directory (and of a checkpoint directory of its own) aside, beside it."""
    moves: list[Move] = []
    for directory in dict.fromkeys((layout.output_dir, layout.checkpoint_base)):
        target = directory.with_name(f"{directory.name}.cleaned-{launch_id}")
        moves += [Move(entry.path, str(target / entry.name)) for entry in _entries(directory)]
    move_aside(moves)
    return moves


def plan_moves(layout: Layout, *, step: int | None, epoch: str, broadcast: str | None) -> list[Move]:
    """What must be moved aside before trainer and orchestrator start.

    Args:
        layout: The run's paths.
        step: The step to continue from; None is a fresh start.
        epoch: Names the place things are moved to.
        broadcast: Transport of the weights; None for SFT, which has no orchestrator.
    """
    last = -1 if step is None else step
    moves: list[Move] = []
    roots: Sequence[Path] = (
        (layout.trainer_checkpoints, layout.weights)
        if broadcast is None
        else (*layout.rollout_roots, layout.trainer_checkpoints, layout.orchestrator_checkpoints, layout.weights)
    )
    for root in dict.fromkeys(roots):
        for entry in _entries(root):
            number = parse_step(entry.name)
            if number is not None and number > last:
                moves.append(Move(entry.path, str(_aside(layout, root, epoch) / entry.name)))
    if broadcast is not None:
        moves += _broadcast_moves(layout, step, epoch, broadcast)
    return moves


def _broadcast_moves(layout: Layout, step: int | None, epoch: str, broadcast: str) -> Iterator[Move]:
    root = layout.broadcasts
    aside = _aside(layout, root, epoch)
    keeps_files = broadcast == "filesystem" and layout.generation == "0.7" and step is not None
    if not keeps_files:
        # In memory the trainer sends the policy anew, and an old marker would be taken for the new one.
        if any(True for _ in _entries(root)):
            yield Move(str(root), str(aside))
        return
    for entry in _entries(root):
        number = parse_step(entry.name)
        if number is not None and number != step:
            yield Move(entry.path, str(aside / entry.name))
        elif number == step:
            for marker in _MARKERS:
                if os.path.lexists(Path(entry.path) / marker):
                    yield Move(str(Path(entry.path) / marker), str(aside / entry.name / marker))


def _aside(layout: Layout, root: Path, epoch: str) -> Path:
    """Where the content of a root goes: below the directory it is in, so that a rename is enough."""
    base = layout.checkpoint_base if root in (layout.trainer_checkpoints, layout.weights) else layout.output_dir
    return base / "primebeaker_resume" / "superseded" / epoch / "_".join(root.relative_to(base).parts)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []
