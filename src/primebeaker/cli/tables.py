"""Plain columns and times for people."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from primebeaker.errors import UserError

__all__ = ["age", "columns", "duration", "span"]

_DAYS = re.compile(r"[0-9]+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|m|s)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a header, left-aligned; None is shown as a dash. On a terminal lines are cut at its width."""
    cells = [list(header), *(["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(line if most is None or len(line) <= most else f"{line[: most - 1]}…" for line in lines)


def span(seconds: float | None) -> str | None:
    """A length of time in its two largest units: ``2h05m``, ``3m12s``, ``4s``."""
    if seconds is None:
        return None
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def age(time: datetime | None) -> str | None:
    """How long ago a time was."""
    return None if time is None else span((datetime.now(UTC) - time).total_seconds())


def duration(flag: str, text: str) -> timedelta:
    """The length of time of a flag: ``7d``, ``12h``, ``1h30m``, ``45s``; a bare number is days.

    Raises:
        UserError: It is none.
    """
    if _DAYS.fullmatch(text):
        return timedelta(days=int(text))
    if not text or _PART.sub("", text):
        raise UserError(f"{flag} = {text!r}: expected a duration like 7d, 12h or 30m")
    return timedelta(seconds=sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text)))
