"""Gold labels of rubrics: never shown to the model, compared with what it submits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["GoldLabels", "gold_labels"]

_LABELS = ("pass", "fail")


class GoldLabels(NamedTuple):
    """The usable gold labels of a row by rubric id, and how many entries are not usable."""

    labels: dict[str, str]
    skipped: int


def gold_labels(row: Mapping[str, Any]) -> GoldLabels:
    """The gold labels in ``gold_submissions``: entries with a ``rubric_id`` and ``pass`` or ``fail`` in any case."""
    info = row.get("info")
    entries = row.get("gold_submissions")
    if entries is None and isinstance(info, Mapping):
        entries = info.get("gold_submissions")
    labels: dict[str, str] = {}
    skipped = 0
    for entry in entries if isinstance(entries, list | tuple) else ():
        id = entry.get("rubric_id") if isinstance(entry, Mapping) else None
        label = entry.get("label") if isinstance(entry, Mapping) else None
        usable = isinstance(id, str | int) and not isinstance(id, bool) and isinstance(label, str)
        if usable and str(label).strip().lower() in _LABELS:
            labels[str(id).strip()] = str(label).strip().lower()
        else:
            skipped += 1
    return GoldLabels(labels, skipped)
