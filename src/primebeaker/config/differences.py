"""What differs between two value trees, and values as JSON."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from primebeaker.config.paths import format_path
from primebeaker.config.render import is_block, same

__all__ = ["Change", "Differences", "as_json", "differences"]


class Change(NamedTuple):
    """One value that differs; ``before`` or ``after`` is None for what was added or removed."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Differences:
    """What was changed, added and removed, in the order of the documents."""

    changed: list[Change] = field(default_factory=list)
    added: list[Change] = field(default_factory=list)
    removed: list[Change] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Every path that differs."""
        return [change.path for change in (*self.changed, *self.added, *self.removed)]

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "changed": [
                {"path": path, "from": as_json(before), "to": as_json(after)} for path, before, after in self.changed
            ],
            "added": [{"path": path, "value": as_json(after)} for path, _, after in self.added],
            "removed": [{"path": path, "value": as_json(before)} for path, before, _ in self.removed],
        }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Differences:
    """What differs between two documents by value; comments, layout and the order of keys do not count."""
    found = Differences()
    for kind, change in _walk((), before, after):
        getattr(found, kind).append(change)
    return found


def _walk(path: tuple[str | int, ...], before: Any, after: Any) -> Iterator[tuple[str, Change]]:
    if same(before, after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in (*before, *(key for key in after if key not in before)):
            where = (*path, key)
            if key not in after:
                yield "removed", Change(format_path(where), before[key], None)
            elif key not in before:
                yield "added", Change(format_path(where), None, after[key])
            else:
                yield from _walk(where, before[key], after[key])
    elif isinstance(before, list) and isinstance(after, list) and is_block(before) and is_block(after):
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from _walk((*path, number), one, other)
        for number in range(len(after), len(before)):
            yield "removed", Change(format_path((*path, number)), before[number], None)
        for number in range(len(before), len(after)):
            yield "added", Change(format_path((*path, number)), None, after[number])
    else:
        yield "changed", Change(format_path(path), before, after)


def as_json(value: Any) -> Any:
    """A TOML value for JSON: dates and times as RFC 3339 text, ``inf`` and ``nan`` as text."""
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dt.datetime):
        text = value.isoformat()
        return f"{text[:-6]}Z" if text.endswith("+00:00") else text
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
