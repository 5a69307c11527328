"""How new values are written in TOML, and whole plain dicts as documents."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.config.paths import format_key, format_path, quote
from primebeaker.errors import UserError

__all__ = ["dump_toml_document", "normalize", "render_inline", "render_table", "same"]

_LEAST_INTEGER = -(2**63)
_MOST_INTEGER = 2**63 - 1


def normalize(value: Any, path: Sequence[Any], *, finite: bool = True) -> Any:
    """A copy of ``value`` made of plain TOML types (tuples become lists), or the mistake that it cannot be written.

    Args:
        value: Any Python value.
        path: Where it is going to stand, for the message.
        finite: Refuse ``inf`` and ``nan``: TOML can hold them, but as a setting they are a mistake.

    Raises:
        UserError: A null, bytes, a non-finite float, an integer beyond 64 bits, a lone surrogate, or another type.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _refused(path, "a string with a lone surrogate, which is no text") from error
        return text
    if isinstance(value, int):
        if not _LEAST_INTEGER <= value <= _MOST_INTEGER:
            raise _refused(path, "an integer of more than 64 bits")
        return int(value)
    if isinstance(value, float):
        if finite and not math.isfinite(value):
            raise _refused(path, f"{value}", "expected a finite number")
        return float(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return _moment(value, path)
    if isinstance(value, Mapping):
        table = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _refused(path, f"the key {key!r}", "keys of TOML are strings")
            table[normalize(key, path)] = normalize(item, [*path, key], finite=finite)
        return table
    if isinstance(value, list | tuple):
        return [normalize(item, [*path, number], finite=finite) for number, item in enumerate(value)]
    if value is None:
        raise _refused(path, "null", "TOML has no null; leave the key out")
    raise _refused(path, f"a value of type {type(value).__name__}", "TOML cannot hold it")


def _moment(value: Any, path: Sequence[Any]) -> Any:
    if isinstance(value, dt.time) and value.tzinfo is not None:
        raise _refused(path, "a time with an offset", "TOML has only local times")
    offset = value.utcoffset() if isinstance(value, dt.datetime) else None
    if offset is not None and offset.total_seconds() % 60:
        raise _refused(path, "an offset with seconds", "offsets of TOML are whole minutes")
    return value


def _refused(path: Sequence[Any], found: str, expected: str = "") -> UserError:
    return UserError(f"cannot write {found}", key=format_path(path), hint=expected or None)


def render_inline(value: Any) -> str:
    """A normalized value in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # repr gives the shortest text that reads back equal; 1e16 and the like already hold an exponent.
        text = repr(value)
        return text if not math.isfinite(value) or "." in text or "e" in text else f"{text}.0"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        text = value.isoformat()
        return f"{text[:-6]}Z" if isinstance(value, dt.datetime) and text.endswith("+00:00") else text
    if isinstance(value, Mapping):
        inside = ", ".join(f"{format_key(key)} = {render_inline(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return f"[{', '.join(render_inline(item) for item in value)}]"


def render_table(header: Sequence[str], table: Mapping[str, Any], *, element: bool = False, indent: str = "") -> str:
    r"""A normalized table as ``[header]`` with its keys, then its sub-tables, lines ended by ``\n``.

    Args:
        header: The keys of the header; empty for the top level, which has none.
        table: What it holds.
        element: Write ``[[header]]``, an element of an array of tables.
        indent: Blanks before every line.
    """
    scalars = {key: value for key, value in table.items() if not is_block(value)}
    blocks = {key: value for key, value in table.items() if key not in scalars}
    lines: list[str] = []
    # A table that only holds tables needs no header of its own.
    if header and (element or scalars or not blocks):
        name = format_path(header)
        lines.append(f"[[{name}]]" if element else f"[{name}]")
    lines += [f"{format_key(key)} = {render_inline(value)}" for key, value in scalars.items()]
    parts = ["".join(f"{indent}{line}\n" for line in lines)] if lines else []
    for key, value in blocks.items():
        for part in value if isinstance(value, list) else [value]:
            parts.append(render_table([*header, key], part, element=isinstance(value, list), indent=indent))
    return "\n".join(parts)


def is_block(value: Any) -> bool:
    """Whether a value is written under a header of its own: a table, or a non-empty array of nothing but tables."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def dump_toml_document(values: Mapping[str, Any]) -> str:
    """A plain dict as a valid TOML document.

    Args:
        values: Any content that TOML can hold: strings, booleans, 64-bit integers, floats, dates, times, lists, dicts
            with string keys. Lists of nothing but dicts become arrays of tables, dicts in mixed lists inline
            tables.

    Raises:
        UserError: A value that TOML cannot hold; the message names its key.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"expected a table, found {type(values).__name__}")
    return render_table([], normalize(values, [], finite=False))


def same(one: Any, other: Any) -> bool:
    """Whether two value trees are equal in value *and* type: ``1``, ``1.0`` and ``true`` all differ, nan equals nan.

    The order of a table's keys does not matter.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return len(one) == len(other) and all(key in other and same(value, other[key]) for key, value in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    if kind is float:
        return bool(one == other and math.copysign(1, one) == math.copysign(1, other)) or bool(
            one != one and other != other
        )
    if kind is dt.datetime:
        return bool(one == other and one.utcoffset() == other.utcoffset())
    return bool(one == other)
