"""Typed reads from a training TOML, with the file, the line and the value in every complaint.

Values are never coerced: ``"4"`` is not a number, ``true`` is not one either, and a number is not a name.
Prime-RL reads the string ``"None"`` as "not set", so it counts as absent here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from primebeaker.config.paths import MISSING, format_key, lookup, parse_path
from primebeaker.errors import Mistakes, UserError
from primebeaker.redaction import MASK, looks_like_credential, mask_url_passwords

__all__ = ["Keys"]

_SHOWN_LENGTH = 80


class Keys:
    """Reads keys of one TOML and collects what is wrong with them.

    Args:
        file: The TOML as the user named it.
        values: Its plain values.
        line_of: The 1-based line of a dotted path, or None.
        mistakes: Where complaints go.
    """

    def __init__(
        self, file: object, values: Mapping[str, Any], line_of: Callable[[str], int | None], mistakes: Mistakes
    ) -> None:
        self.file = file
        self.values = values
        self.line_of = line_of
        self.mistakes = mistakes
        #: Paths that have been complained about.
        self.refused: set[str] = set()

    def value(self, path: str) -> Any:
        """The value at a dotted path, or None when it is absent."""
        found: Any = self.values
        for part in path.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return None
            found = found[part]
        return None if found == "None" else found

    def present(self, path: str) -> bool:
        """Whether the key is there and not ``"None"``."""
        return self.value(path) is not None

    def integer(self, path: str, default: int | None = None, *, least: int | None = None) -> int | None:
        """A whole number of at least ``least``; ``default`` when absent or wrong (which is a mistake)."""
        value = self.value(path)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            self.refuse(path, "expected a whole number" + ("" if least is None else f" of at least {least}"))
            return default
        return value

    def text(self, path: str, default: str | None = None) -> str | None:
        """A non-empty string; ``default`` when absent or wrong (which is a mistake)."""
        value = self.value(path)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self.refuse(path, "expected a non-empty string")
            return default
        return value

    def boolean(self, path: str, *, default: bool = False) -> bool:
        """A boolean; ``default`` when absent or wrong (which is a mistake)."""
        value = self.value(path)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(path, "expected true or false")
            return default
        return value

    def table(self, path: str) -> Mapping[str, Any] | None:
        """A table, or None when absent or something else (which is a mistake)."""
        value = self.value(path)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(path, "expected a table")
            return None
        return value

    def need_table(self, path: str) -> bool:
        """Whether the table is there; a missing one is a mistake."""
        if self.value(path) is None:
            self.missing(f"[{path}]", "the table is missing", f"add [{path}]")
            return False
        return self.table(path) is not None

    def need(self, path: str, what: str) -> bool:
        """Whether the key is there; a missing one is a mistake whose mend is ``what``."""
        if self.present(path):
            return True
        self.missing(path, "the key is missing", what)
        return False

    def missing(self, key: str, message: str, hint: str | None = None) -> None:
        """Remember that something is not there."""
        self.refused.add(key.strip("[]"))
        self.mistakes.add(UserError(message, hint=hint, file=self.file, key=key))

    def refuse(self, path: str, message: str, hint: str | None = None) -> None:
        """Remember that the value at ``path`` cannot stay."""
        self.refused.add(path)
        self.mistakes.add(UserError(message, hint=hint, file=self.file, line=self.line_of(path), key=self.shown(path)))

    def warning(self, path: str, message: str, hint: str | None = None) -> str:
        """The same line as a warning's text."""
        return str(UserError(message, hint=hint, file=self.file, line=self.line_of(path), key=self.shown(path)))

    def shown(self, path: str) -> str:
        """``path = value`` as a message shows it."""
        value = lookup(self.values, parse_path(path))
        return path if isinstance(value, Mapping | list) or value is MISSING else f"{path} = {_as_toml(value)}"

    def strings(self) -> Iterator[tuple[str, str]]:
        """Every string value with its path (``a.b[0].c``), in document order."""
        yield from _strings(self.values, "")

    def tables(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every table with its path, the root as an empty path."""
        yield from _tables(self.values, "")


def _as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if looks_like_credential(value):
            return MASK
        value = mask_url_passwords(value)
        shown = value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…"
        escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, child in value.items():
            key = format_key(name)
            yield (f"{path}.{key}" if path else key), child
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    for name, child in _children(value, path):
        yield from _strings(child, name)


def _tables(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield path, value
    for name, child in _children(value, path):
        yield from _tables(child, name)
