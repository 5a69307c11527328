"""Rubric ids of a row, which the ``submit`` tool accepts judgments for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.rows import RowFault

__all__ = ["expected_rubric_ids"]


def expected_rubric_ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The rubric ids a row asks for, as text in the row's order; empty when it names none.

    They come from the row, else from its ``info``: ``expected_rubric_ids``, ``rubric_ids``, ``indexed_rubrics`` (the
    keys of an object, or each entry's ``rubric_id`` or ``id``), or a single ``rubric_index``.

    Raises:
        RowFault: An id is empty, of another type, or given twice.
    """
    info = row.get("info")
    for source in (row, info if isinstance(info, Mapping) else {}):
        for column in ("expected_rubric_ids", "rubric_ids", "indexed_rubrics", "rubric_index"):
            value = source.get(column)
            if value is not None:
                return _checked(column, _listed(column, value))
    return ()


def _listed(column: str, value: Any) -> list[Any]:
    if column == "rubric_index":
        return [value]
    if column == "indexed_rubrics" and isinstance(value, Mapping):
        return list(value)
    if not isinstance(value, list | tuple):
        raise RowFault(column, "expected a list")
    if column == "indexed_rubrics":
        entries = [entry if isinstance(entry, Mapping) else {} for entry in value]
        return [entry["rubric_id"] if entry.get("rubric_id") is not None else entry.get("id") for entry in entries]
    return list(value)


def _checked(column: str, ids: list[Any]) -> tuple[str, ...]:
    texts = []
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, str | int) or not str(id).strip():
            raise RowFault(column, f"expected rubric ids as text or whole numbers, found {id!r}")
        texts.append(str(id).strip())
    for text in texts:
        if texts.count(text) > 1:
            raise RowFault(column, f"the rubric id {text!r} is given twice")
    return tuple(texts)
