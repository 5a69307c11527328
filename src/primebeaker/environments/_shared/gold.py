"""Gold labels of rubrics: never shown to the model, compared with what it submits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from primebeaker.environments._shared.rows import RowFault

__all__ = ["GoldLabels", "gold_labels"]

_COLUMN = "gold_submissions"
_LABELS = ("pass", "fail")


class GoldLabels(NamedTuple):
    """The usable gold labels of a row by rubric id, and how many entries are not usable."""

    labels: dict[str, str]
    skipped: int

    @property
    def given(self) -> bool:
        """Whether the row has gold at all, usable or not; a label that is compared with nothing is never right."""
        return bool(self.labels or self.skipped)


def gold_labels(row: Mapping[str, Any]) -> GoldLabels:
    """The gold labels in ``gold_submissions``: entries with a ``rubric_id`` and ``pass`` or ``fail`` in any case.

    Raises:
        RowFault: It is no list, or labels one rubric both ways.
    """
    info = row.get("info")
    entries = row.get(_COLUMN)
    if entries is None and isinstance(info, Mapping):
        entries = info.get(_COLUMN)
    if entries is not None and not isinstance(entries, list | tuple):
        raise RowFault(_COLUMN, "expected a list of objects with rubric_id and label")
    labels: dict[str, str] = {}
    skipped = 0
    for entry in entries or ():
        id = entry.get("rubric_id") if isinstance(entry, Mapping) else None
        label = entry.get("label") if isinstance(entry, Mapping) else None
        usable = isinstance(id, str | int) and not isinstance(id, bool) and isinstance(label, str)
        if usable and str(label).strip().lower() in _LABELS:
            name, value = str(id).strip(), str(label).strip().lower()
            if labels.setdefault(name, value) != value:
                raise RowFault(_COLUMN, f"the rubric id {name!r} is labelled both pass and fail")
        else:
            skipped += 1
    return GoldLabels(labels, skipped)
