"""What is moved aside before a resumed run starts, and how it comes back when nothing was started.

Only renames: nothing is copied and nothing is deleted.  Steps beyond the chosen one would be mixed with what the
resumed run saves, and an old policy marker would be taken for a new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError
from primebeaker.prime_rl.layout import Layout, parse_step

__all__ = ["RESUME_DIR", "Move", "move_aside", "move_back", "plan_moves"]

RESUME_DIR = "primebeaker_resume"
_MARKERS = ("NCCL_READY", ".sender_ready", ".receiver_ready", ".started", ".finished")


class Move(NamedTuple):
    """A rename within one file system."""

    source: str
    target: str

    def as_dict(self) -> dict[str, str]:
        """The manifest's form."""
        return {"from": self.source, "to": self.target}


def plan_moves(layout: Layout, step: int, attempt_id: str, *, policy_files: bool) -> list[Move]:
    """The moves before a run continues after ``step``.

    Args:
        layout: The run's paths.
        step: The chosen step.
        attempt_id: Names the places things are moved to.
        policy_files: Whether the orchestrator reads the policy of ``step`` from disk (it must stay then).
    """
    return [*_broadcasts(layout, step, attempt_id, policy_files=policy_files), *_superseded(layout, step, attempt_id)]


def move_aside(moves: Sequence[Move]) -> None:
    """Rename everything; what was moved by an earlier try of the same attempt is done.

    Raises:
        UserError: A target exists, or a rename is refused.
    """
    for move in moves:
        if not os.path.lexists(move.source):
            continue
        if os.path.lexists(move.target):
            raise UserError(f"{move.source} cannot be moved aside: {move.target} exists", hint="rename that one")
        _rename(move.source, move.target)


def move_back(moves: Sequence[Move]) -> None:
    """Undo :func:`move_aside`, as far as it got.

    Raises:
        UserError: A rename is refused.
    """
    for move in reversed(moves):
        if os.path.lexists(move.target) and not os.path.lexists(move.source):
            _rename(move.target, move.source)


def _broadcasts(layout: Layout, step: int, attempt_id: str, *, policy_files: bool) -> Iterator[Move]:
    archive = layout.output_dir / RESUME_DIR / "broadcast_archives" / attempt_id
    if not policy_files:
        if os.path.lexists(layout.broadcasts):
            yield Move(str(layout.broadcasts), str(archive))
        return
    for entry in _entries(layout.broadcasts):
        number = parse_step(entry.name)
        if number is not None and number != step:
            yield Move(entry.path, str(archive / entry.name))
        elif number == step:
            for marker in _MARKERS:
                if os.path.lexists(Path(entry.path) / marker):
                    yield Move(str(Path(entry.path) / marker), str(archive / entry.name / marker))


def _superseded(layout: Layout, step: int, attempt_id: str) -> Iterator[Move]:
    roots = [(layout.trainer_checkpoints, layout.checkpoint_base, "checkpoints")]
    if layout.orchestrator_checkpoints != layout.trainer_checkpoints:
        roots.append((layout.orchestrator_checkpoints, layout.output_dir, "run_default_checkpoints"))
    roots.append((layout.weights, layout.checkpoint_base, "weights"))
    for root, base, name in roots:
        # A rename does not cross file systems, so what lies elsewhere is kept there.
        home = layout.output_dir if _same_file_system(base, layout.output_dir) else base
        for entry in _entries(root):
            number = parse_step(entry.name)
            if number is not None and number > step:
                target = home / RESUME_DIR / "superseded" / attempt_id / name / entry.name
                yield Move(entry.path, str(target))


def _same_file_system(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return True


def _rename(source: str, target: str) -> None:
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(source).rename(target)
    except OSError as error:
        raise UserError(f"{source} cannot be moved to {target}: {error.strerror}") from error


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []
