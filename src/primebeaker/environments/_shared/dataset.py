"""The one dataset loader: rows that survive exactly, whatever other rows look like.

Arrow tables unify the shape of all rows, which adds keys and changes types.  So a row is stored as its JSON text in one
column, beside its integer ``example_id``, and becomes a dict again when it is read (``dataset[i]``) or when a rollout
starts (:func:`expanded_row`, for readers that bypass the format, such as ``to_list``).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from primebeaker.environments._shared.rows import PROMPT_COLUMNS, RowFault, answer_text, normalized_row
from primebeaker.environments._shared.sources import Row, Source, open_source, value_problem
from primebeaker.errors import UserError

__all__ = ["AllOrNone", "DatasetRules", "LoadedDataset", "expanded_row", "load_rows"]

logger = logging.getLogger("primebeaker.environments")

_MOST_PROBLEMS = 5
_ROW_COLUMN = "primebeaker_row"
_PIECE = 4096


class AllOrNone(NamedTuple):
    """Something that either all rows have or none.

    Args:
        column: The column it is about, for messages.
        present: Whether a row has it.
        none: What to warn when no row has it.
    """

    column: str
    present: Callable[[dict[str, Any]], bool]
    none: str


class DatasetRules(NamedTuple):
    """What one environment asks of its rows.

    Args:
        prompt_columns: Where the prompt is looked for.
        needs_answer: Whether a blank answer in some rows fails the load.
        template: Makes the prompt of a row that has a ``question`` and no prompt of its own.
        prepare: Rewrites a row as it was read, from the row and its 0-based position; may raise :class:`RowFault`.
        check: Raises :class:`RowFault` for what else is wrong; returns the row, changed or not.
        all_or_none: Something else that either all rows have or none.
        system_prompt: The system message of prompts that do not begin with one.
        few_shot: Messages put before a prompt that is plain text.
    """

    prompt_columns: Sequence[str] = PROMPT_COLUMNS
    needs_answer: bool = True
    template: Callable[[str], list[dict[str, Any]]] | None = None
    prepare: Callable[[Mapping[str, Any], int], Mapping[str, Any]] | None = None
    check: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    all_or_none: AllOrNone | None = None
    system_prompt: str | None = None
    few_shot: Sequence[Mapping[str, Any]] = ()


class LoadedDataset(NamedTuple):
    """The rows of one load as a ``datasets.Dataset``, and what was warned about."""

    rows: Any
    warnings: tuple[str, ...]


def load_rows(environment: str, dataset: str, split: str, rules: DatasetRules | None = None) -> LoadedDataset:
    """Read, check and store the rows of ``dataset``.

    Args:
        environment: The canonical name, for messages.
        dataset: A path or a Hub dataset id.
        split: The split to use.
        rules: What this environment asks of its rows.

    Raises:
        UserError: One line that names up to five rows and what is wrong with them.
    """
    rules = rules or DatasetRules()
    source = open_source(dataset, split)
    warnings: list[str] = []
    kept = _chosen_split(source, split, [_read(row, rules, number) for number, row in enumerate(source.rows)], warnings)
    faults = [f"{row.place}: {row.fault}" for row in kept if row.fault is not None]
    if rules.needs_answer and not all(row.answered for row in kept):
        if any(row.answered for row in kept):
            faults += [
                f"{row.place}: answer: missing or blank, while other rows have one"
                for row in kept
                if not row.answered and not row.fault
            ]
        elif kept and not faults:
            warnings.append(f"{source.name}: no row has an answer, so label scores are 0")
    rule = rules.all_or_none
    if rule is not None and not all(row.complete for row in kept):
        if any(row.complete for row in kept):
            faults += [f"{row.place}: {rule.column}: missing" for row in kept if not row.complete and not row.fault]
        elif kept and not faults:
            warnings.append(f"{source.name}: {rule.none}")
    if faults:
        more = [f"and {len(faults) - _MOST_PROBLEMS} more"] if len(faults) > _MOST_PROBLEMS else []
        raise UserError("; ".join([*faults[:_MOST_PROBLEMS], *more]))
    if not kept:
        raise UserError(f"dataset={dataset!r}: no rows in split {split!r}")
    for warning in warnings:
        logger.warning("%s: %s", environment, warning)
    return LoadedDataset(_stored(kept), tuple(warnings))


def expanded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row itself, when ``row`` is one in its stored form; else a copy of ``row``."""
    if _ROW_COLUMN not in row:
        return dict(row)
    return {**json.loads(row[_ROW_COLUMN]), **{key: value for key, value in row.items() if key != _ROW_COLUMN}}


class _ReadRow(NamedTuple):
    """One row as it is kept: JSON text in UTF-8, or what is wrong with it."""

    place: str
    split: str | None
    example_id: int | None
    answered: bool
    data: bytes
    fault: str | None = None
    complete: bool = False


def _read(row: Row, rules: DatasetRules, position: int) -> _ReadRow:
    value = row.value
    split = value.get("split") if isinstance(value, Mapping) else None
    split = split if isinstance(split, str) else None
    if row.problem is not None:
        return _ReadRow(row.place, split, None, False, b"", row.problem)
    try:
        if rules.prepare is not None and isinstance(value, Mapping):
            value = rules.prepare(value, position)
        checked = normalized_row(
            value,
            prompt_columns=rules.prompt_columns,
            system_prompt=rules.system_prompt,
            few_shot=rules.few_shot,
            template=rules.template,
        )
        if rules.check is not None:
            checked = rules.check(checked)
        answered = answer_text(checked) is not None
        example_id = checked.pop("example_id", None)
        if example_id is not None and (isinstance(example_id, bool) or not isinstance(example_id, int)):
            checked["src_id"], example_id = example_id, None
        complete = rules.all_or_none is None or rules.all_or_none.present(checked)
        return _ReadRow(row.place, split, example_id, answered, _json_bytes(checked), complete=complete)
    except RowFault as fault:
        return _ReadRow(row.place, split, None, False, b"", str(fault))
    except (TypeError, ValueError, RecursionError) as error:
        problem = value_problem(value) if isinstance(error, ValueError) else None
        return _ReadRow(row.place, split, None, False, b"", problem or f"not JSON: {error}")


def _json_bytes(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # A lone surrogate is legal in JSON escapes only.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _chosen_split(source: Source, split: str, rows: list[_ReadRow], warnings: list[str]) -> list[_ReadRow]:
    """When the rows of a plain file name two or more splits, those that name ``split`` or none; else all."""
    counts = Counter(row.split for row in rows if row.split is not None)
    if not source.splits_in_rows or not counts:
        return rows
    if len(counts) == 1:
        if split not in counts:
            only = next(iter(counts))
            warnings.append(f"{source.name}: its rows say split {only!r}, not {split!r}; all of them are used")
        return rows
    chosen = [row for row in rows if row.split in (None, split)]
    if not chosen:
        listed = ", ".join(f"{name!r} ({count})" for name, count in sorted(counts.items()))
        raise UserError(f"{source.name}: split={split!r}: no such rows; the rows say {listed}")
    return chosen


def _stored(rows: list[_ReadRow]) -> Any:
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable

    own = [row.example_id for row in rows]
    # Verifiers groups rollouts by this id, so own ids are used only when they tell all rows apart.
    ids = own if None not in own and len(set(own)) == len(own) else list(range(len(rows)))
    digest = hashlib.blake2b(digest_size=16)
    pieces = []
    for start in range(0, len(rows), _PIECE):
        piece = [row.data for row in rows[start : start + _PIECE]]
        digest.update(b"\n".join(piece))
        pieces.append(pyarrow.array(piece, pyarrow.large_string()))
    rows.clear()
    columns = {"example_id": pyarrow.array(ids, pyarrow.int64()), _ROW_COLUMN: pyarrow.chunked_array(pieces)}
    stored = Dataset(InMemoryTable(pyarrow.table(columns)), fingerprint=digest.hexdigest())
    stored.set_transform(_decoded_batch)
    return stored


def _decoded_batch(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns of a batch of stored rows: the union of the keys, an absent one as null."""
    names = list(batch)
    rows = [expanded_row(dict(zip(names, values, strict=True))) for values in zip(*batch.values(), strict=True)]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}
