"""Paths into a TOML value tree: ``a.b[0].c``, ``a."b.c"``, ``a.source[*].id``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from primebeaker.errors import UserError, did_you_mean

__all__ = [
    "EVERY",
    "MISSING",
    "Path",
    "PathLike",
    "expand",
    "format_key",
    "format_path",
    "lookup",
    "missing",
    "parse_path",
    "quote",
]


class _Every:
    """The part ``[*]``: every element of an array."""

    def __repr__(self) -> str:
        return "EVERY"


EVERY: Final = _Every()

#: Keys, element numbers, and :data:`EVERY`.
Path = tuple[str | int | _Every, ...]
#: What the public methods accept: the text form, or the parts.
PathLike = str | Sequence[str | int]

_PART = re.compile(
    r"""\[(?P<number>[0-9]+|\*)\]|(?P<dot>\.?)\s*(?:"(?P<basic>(?:[^"\\]|\\.)*)"|'(?P<literal>[^']*)'|(?P<bare>[^\s.\[\]"'=]+))\s*"""
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {
    "\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"
}  # fmt: skip
_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


def quote(text: str) -> str:
    """``text`` as a TOML basic string; every character that need not be escaped stays as it is."""
    return f'"{_SPECIAL.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}"), text)}"'


def format_key(key: str) -> str:
    """One key as TOML writes it: bare when it can be, else quoted."""
    return key if _BARE_KEY.fullmatch(key) else quote(key)


def format_path(path: Sequence[str | int | _Every]) -> str:
    """The text form of a path."""
    text = ""
    for part in path:
        if isinstance(part, str):
            text += f".{format_key(part)}" if text else format_key(part)
        else:
            text += f"[{'*' if isinstance(part, _Every) else part}]"
    return text


def parse_path(path: PathLike) -> Path:
    """The parts of a path.

    Raises:
        UserError: The text is no path.
    """
    if not isinstance(path, str):
        parts = tuple(path)
        for part in parts:
            if (
                not isinstance(part, str | int | _Every)
                or isinstance(part, bool)
                or (isinstance(part, int) and part < 0)
            ):
                raise UserError(f"{part!r} is no part of a TOML path", hint="use keys and element numbers from 0")
        if not parts or not isinstance(parts[0], str):
            raise UserError(f"{path!r} is no TOML path", hint="write it like a.b[0].c")
        return parts
    parts_found: list[str | int | _Every] = []
    position = 0
    while position < len(path):
        match = _PART.match(path, position)
        # A key needs a dot before it except at the start; an element number cannot come first.
        if match is None or (bool(parts_found) == (match["dot"] == "") if match["number"] is None else not parts_found):
            raise UserError(f"{path!r} is no TOML path", hint="write it like a.b[0].c")
        if match["number"] is not None:
            parts_found.append(EVERY if match["number"] == "*" else int(match["number"]))
        elif match["basic"] is not None:
            parts_found.append(_unescape(path, match["basic"]))
        else:
            parts_found.append(match["literal"] if match["literal"] is not None else match["bare"])
        position = match.end()
    if not parts_found:
        raise UserError("an empty TOML path", hint="write it like a.b[0].c")
    return tuple(parts_found)


def _unescape(path: str, inner: str) -> str:
    if "\\" not in inner:
        return inner
    try:
        return str(tomllib.loads(f'key = "{inner}"')["key"])
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path!r} is no TOML path: bad escape in a quoted key") from error


#: What :func:`lookup` returns where nothing stands.
MISSING: Final = object()


def lookup(tree: Mapping[str, Any], path: Sequence[str | int | _Every]) -> Any:
    """The value at a path without ``[*]``, or :data:`MISSING`."""
    value: Any = tree
    for part in path:
        if isinstance(part, str):
            if not isinstance(value, Mapping) or part not in value:
                return MISSING
            value = value[part]
        else:
            if not isinstance(value, list) or not isinstance(part, int) or part >= len(value):
                return MISSING
            value = value[part]
    return value


def expand(tree: Mapping[str, Any], path: Path) -> list[Path]:
    """The paths that ``path`` stands for, each ``[*]`` replaced by the numbers of the elements that exist.

    Raises:
        UserError: A ``[*]`` follows something that is missing, no array, or an empty array.
    """
    paths: list[Path] = [()]
    for part in path:
        if not isinstance(part, _Every):
            paths = [(*before, part) for before in paths]
            continue
        longer: list[Path] = []
        for before in paths:
            array = lookup(tree, before)
            if array is MISSING:
                raise missing(tree, before)
            if not isinstance(array, list):
                raise UserError(f"{format_path(before)} is {kind_of(array)}, not an array")
            longer.extend((*before, number) for number in range(len(array)))
        if not longer:
            raise UserError(f"{format_path(path)}: the array has no elements")
        paths = longer
    return paths


def missing(tree: Mapping[str, Any], path: Sequence[str | int | _Every]) -> UserError:
    """The mistake of naming a path that does not exist, with the nearest one that does."""
    text = format_path(path)
    for end in range(1, len(path) + 1):
        if lookup(tree, path[:end]) is MISSING:
            break
    parent = lookup(tree, path[: end - 1])
    part = path[end - 1]
    if isinstance(part, str) and isinstance(parent, Mapping):
        siblings = {format_path([*path[: end - 1], key]): str(key) for key in parent}
        close = did_you_mean(format_path(path[:end]), siblings)
        if close is None:
            close = did_you_mean(text, [format_path(found) for found in every_path(tree)], cutoff=0.7)
        return UserError(f"no such key {text}", hint=close)
    if isinstance(part, int) and isinstance(parent, list):
        return UserError(f"no such element {text}: {format_path(path[: end - 1])} has {len(parent)}")
    expected = "a table" if isinstance(part, str) else "an array"
    return UserError(f"no such key {text}: {format_path(path[: end - 1])} is {kind_of(parent)}, not {expected}")


def every_path(tree: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and element of a value tree, parents first."""
    parts: Iterator[tuple[str | int, Any]]
    if isinstance(tree, Mapping):
        parts = iter(tree.items())
    elif isinstance(tree, list):
        parts = iter(enumerate(tree))
    else:
        return
    for part, value in parts:
        path = (*before, part)
        yield path
        yield from every_path(value, path)


def kind_of(value: Any) -> str:
    """What a TOML value is, in a word with its article."""
    if isinstance(value, bool):
        return "a boolean"
    for kinds, word in (
        (Mapping, "a table"),
        (list | tuple, "an array"),
        (str, "a string"),
        (int, "an integer"),
        (float, "a float"),
    ):
        if isinstance(value, kinds):
            return word
    return "a date or time"
