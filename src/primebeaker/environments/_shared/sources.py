"""Where the rows of a dataset come from: a file, a folder, a saved dataset, or the Hub.

Every source gives its rows one by one together with the place to name in an error, so that a large file is never held
twice.  A misspelt path must never become a Hub request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.errors import UserError, did_you_mean
from primebeaker.json_keys import RepeatedKey, repeated_key, unique_keys

__all__ = ["Row", "Source", "open_source", "value_problem"]

_FILE_ENDINGS = (".jsonl", ".json", ".parquet")


class Row(NamedTuple):
    """One row and where it stands, as in ``data.jsonl:3`` or ``data.json row 3``."""

    place: str
    value: Any
    problem: str | None = None


class Source(NamedTuple):
    """A dataset that was found.

    Args:
        name: How it is called in messages.
        rows: The rows in file order; consumed once.
        splits_in_rows: Whether a ``split`` field of the rows may choose among them (plain files).
    """

    name: str
    rows: Iterator[Row]
    splits_in_rows: bool


def open_source(dataset: str, split: str) -> Source:
    """Find the dataset that ``dataset`` names and prepare to read its rows.

    Raises:
        UserError: No such file, no such split, or an unreadable source.
    """
    if not dataset.strip():
        raise UserError("dataset='': expected a path or a Hub dataset id")
    path = Path(dataset).expanduser()
    if path.is_dir():
        return _folder(dataset, path, split)
    if path.exists():
        return Source(dataset, _file_rows(path), splits_in_rows=True)
    if _looks_like_path(dataset):
        near = did_you_mean(path.name, _siblings(path))
        raise UserError(f"dataset={dataset!r}: file not found{f'; {near}' if near else ''}")
    return Source(dataset, _hub_rows(dataset, split), splits_in_rows=False)


def _looks_like_path(dataset: str) -> bool:
    return dataset.startswith(("/", "./", "../", "~")) or dataset.count("/") > 1 or dataset.endswith(_FILE_ENDINGS)


def _siblings(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []


def _folder(dataset: str, path: Path, split: str) -> Source:
    if (path / "dataset_dict.json").is_file():
        return Source(dataset, _saved_dict_rows(path, split), splits_in_rows=False)
    if (path / "dataset_info.json").is_file() and (path / "state.json").is_file():
        return Source(dataset, _saved_rows(path, path), splits_in_rows=False)
    for folder in (path, path / "data"):
        for ending in _FILE_ENDINGS:
            if (folder / f"{split}{ending}").is_file():
                return Source(dataset, _file_rows(folder / f"{split}{ending}"), splits_in_rows=True)
        shards = sorted(folder.glob(f"{split}-*.parquet"))
        if shards:
            return Source(dataset, (row for shard in shards for row in _file_rows(shard)), splits_in_rows=True)
    found = sorted(entry.relative_to(path).as_posix() for entry in path.glob("*") if entry.is_file())
    found += sorted(entry.relative_to(path).as_posix() for entry in path.glob("data/*") if entry.is_file())
    listed = ", ".join(found) or "no files"
    raise UserError(
        f"dataset={dataset!r}: no file of split {split!r}; expected {split}.jsonl, .json, .parquet or"
        f" {split}-*.parquet, found {listed}"
    )


def _file_rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix == ".json" and _first_character(path) == "[":
        return _array_rows(path)
    return _line_rows(path)


def _first_character(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as stream:
            while chunk := stream.read(4096):
                if chunk.strip():
                    return chunk.strip()[0]
    except (OSError, UnicodeDecodeError):
        pass  # the reader proper names the reason
    return ""


def _line_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                data = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if data.strip():
                    yield _decoded(f"{path}:{number}", data)
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", file=path) from None


def _decoded(place: str, data: bytes) -> Row:
    try:
        text = data.decode("utf-8")
        try:
            return Row(place, _loads(text))
        except (_NotFinite, RepeatedKey):
            return Row(place, None, value_problem(_loads_anyway(text)))
    except UnicodeDecodeError as error:
        return Row(place, None, f"not UTF-8 (byte {error.start + 1})")
    except json.JSONDecodeError as error:
        return Row(place, None, f"column {error.colno}: not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Row(place, None, f"not JSON: {error}")


def _array_rows(path: Path) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        sound = True
        try:
            rows = _loads(text)
        except (_NotFinite, RepeatedKey):
            sound, rows = False, _loads_anyway(text)
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", file=path) from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 (byte {error.start + 1})", file=path) from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=path, line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", file=path) from None
    for number, value in enumerate(rows, start=1):
        yield Row(f"{path} row {number}", value, None if sound else value_problem(value))


def value_problem(row: Any) -> str | None:
    """What spoils a row, with its key: ``NaN``, an infinity, or a key given twice; None when nothing does."""
    left: list[tuple[str, Any]] = [("", row)]
    while left:
        key, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"{key or 'row'}: {json.dumps(value)} is no JSON number; write null, or leave the key out"
        if isinstance(value, _Doubled):
            return f"{f'{key}.' if key else ''}{value.repeated}: given twice in one object; keep one of them"
        if isinstance(value, dict):
            left += [(f"{key}.{name}" if key else str(name), child) for name, child in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{key}[{number}]", child) for number, child in enumerate(value)]
    return None


class _Doubled(dict[str, Any]):
    """An object with a repeated key."""

    repeated = ""


class _NotFinite(ValueError):
    pass


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=unique_keys)


def _loads_anyway(text: str) -> Any:
    """The value with what spoils it still in it, so that its place can be told."""
    return json.loads(text, object_pairs_hook=_marked)


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = repeated_key(pairs)
    if repeated is None:
        return dict(pairs)
    doubled = _Doubled(pairs)
    doubled.repeated = repeated
    return doubled


def _refuse_constant(name: str) -> Any:
    raise _NotFinite(name)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as parquet:
            number = 0
            for batch in parquet.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(f"{path} row {number}", value)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"not a readable parquet file: {str(error).splitlines()[0]}", file=path) from None


def _saved_dict_rows(path: Path, split: str) -> Iterator[Row]:
    try:
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError("not a saved DatasetDict", file=path / "dataset_dict.json") from None
    if split not in splits:
        raise UserError(f"split={split!r}: {path} has the splits {', '.join(map(str, splits))}")
    return _saved_rows(path, path / split)


def _saved_rows(named: Path, path: Path) -> Iterator[Row]:
    from datasets import load_from_disk

    try:
        rows = load_from_disk(str(path))
    except Exception as error:
        raise UserError(f"not a readable saved dataset: {_reason(error)}", file=named) from None
    return _dataset_rows(f"{named} row", rows)


def _hub_rows(dataset: str, split: str) -> Iterator[Row]:
    from datasets import load_dataset

    try:
        rows = load_dataset(dataset, split=split)
    except Exception as error:
        # The Hub client raises many kinds; each means that the named data set or split cannot be had.
        raise UserError(
            f"dataset={dataset!r}, split={split!r}: cannot load it from the Hub: {_reason(error)}"
        ) from None
    return _dataset_rows(f"{dataset}[{split}] row", rows)


def _dataset_rows(prefix: str, rows: Any) -> Iterator[Row]:
    for number, value in enumerate(rows, start=1):
        yield Row(f"{prefix} {number}", dict(value))


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
