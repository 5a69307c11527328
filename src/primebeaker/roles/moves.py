"""Renames that put what a run left behind out of the way; nothing is ever deleted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError

__all__ = ["Move", "move_aside"]


class Move(NamedTuple):
    """A rename within one file system."""

    source: str
    target: str


def move_aside(moves: Sequence[Move]) -> None:
    """Rename everything; what is gone already was moved before.

    Raises:
        UserError: A target exists, or the rename is refused.
    """
    for move in moves:
        target = Path(move.target)
        if not os.path.lexists(move.source):
            continue
        if os.path.lexists(target):
            raise UserError(f"{move.source} cannot be moved aside: {target} exists", hint="rename that one")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(move.source).rename(target)
        except OSError as error:
            raise UserError(f"{move.source} cannot be moved to {target}: {error.strerror}") from None
