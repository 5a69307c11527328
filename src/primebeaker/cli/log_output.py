"""Print log lines to stdout: plain in a pipe, in columns and colours on a terminal, or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC
from typing import NamedTuple

from primebeaker.beaker.models import LogLine

__all__ = ["LineStyle", "print_lines"]

# Terminal colours that are readable on dark and light: cyan, green, yellow, blue, magenta, and their bright forms.
_COLOURS = (36, 32, 33, 34, 35, 96, 92, 93, 94, 95)


class LineStyle(NamedTuple):
    """How log lines are printed.

    Attributes:
        prefixed: Begin each line with ``[task/rank] ``.
        timestamps: Begin each line with the time it arrived.
        as_json: One JSON object a line instead.
    """

    prefixed: bool
    timestamps: bool = False
    as_json: bool = False


def print_lines(lines: Iterable[LogLine], style: LineStyle) -> None:
    """Print log lines to stdout as they come."""
    width = 0
    for line in lines:
        if style.as_json:
            text = _as_json(line)
        else:
            prefix = _prefix(line) if style.prefixed else ""
            # Known replicas line up; a longer prefix that comes later widens the column.
            width = max(width, len(prefix))
            text = _stamp(line) * style.timestamps + _painted(prefix, line.replica_rank, width) + f"{line.text}\n"
        sys.stdout.write(text)
        sys.stdout.flush()


def _prefix(line: LogLine) -> str:
    return f"[{line.task}/{0 if line.replica_rank is None else line.replica_rank}] "


def _stamp(line: LogLine) -> str:
    if line.timestamp is None:
        return ""
    return line.timestamp.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")


def _painted(prefix: str, rank: int | None, width: int) -> str:
    """The prefix as it is; on a terminal in a column of its own, each rank in its colour."""
    if not prefix or not sys.stdout.isatty():
        return prefix
    padded = prefix.ljust(width)
    if os.environ.get("NO_COLOR"):
        return padded
    return f"\x1b[{_COLOURS[(rank or 0) % len(_COLOURS)]}m{padded}\x1b[0m"


def _as_json(line: LogLine) -> str:
    time = None if line.timestamp is None else line.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
    values = {"time": time, "task": line.task, "rank": line.replica_rank, "job": line.job_id, "text": line.text}
    return json.dumps(values, ensure_ascii=False) + "\n"
