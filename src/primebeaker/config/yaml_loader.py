"""The one strict YAML loader, for every kind of YAML file this package reads.

Scalars are those of the YAML 1.2 core schema: ``no``, ``on`` and ``1:30`` are text, ``012`` is twelve. Keys are
strings, given once; tags and several documents are refused. Where each key and value stands is kept, so that every
later check can name file and line.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from primebeaker.config.paths import format_path
from primebeaker.errors import UserError, did_you_mean

__all__ = ["MOST_BYTES", "Position", "YamlDocument", "load_yaml", "parse_yaml"]

#: The largest file that is read by default, in bytes.
MOST_BYTES = 1024 * 1024
#: How many values a document may hold once its anchors are expanded.
MOST_NODES = 100_000

YamlPath = Sequence[str | int]

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"(?P<sign>[-+]?)\.(?:inf|Inf|INF)|(?P<nan>\.(?:nan|NaN|NAN))")


class Position(NamedTuple):
    """A 1-based place in a file."""

    line: int
    column: int


@dataclass(slots=True)
class _Node:
    """One value with its place, and the places of a mapping's keys."""

    value: Any
    at: Position
    items: dict[str, _Node] | list[_Node] | None = None
    keys: dict[str, Position] = field(default_factory=dict)
    size: int = 1
    # A plain scalar may be the merge key; a quoted one is text.
    plain: bool = False
    # A scalar as it is written in the file, quotes aside.
    text: str | None = None


def _child(node: _Node, part: str | int) -> _Node | None:
    if isinstance(node.items, dict):
        return node.items.get(part) if isinstance(part, str) else None
    if isinstance(node.items, list) and isinstance(part, int):
        return node.items[part] if part < len(node.items) else None
    return None


class YamlDocument:
    """One YAML document: its values, and where each stands. Make one with :func:`load_yaml` or :func:`parse_yaml`."""

    def __init__(self, root: _Node, file: Path | str) -> None:
        self._root = root
        self.file = file

    @property
    def values(self) -> Any:
        """The document as plain dicts, lists and scalars; a fresh copy each time."""
        return copy.deepcopy(self._root.value)

    def text(self, path: YamlPath) -> str | None:
        """The scalar at ``path`` as it is written (``1.50`` and ``0x10`` stay that); None where no scalar stands."""
        node: _Node | None = self._root
        for part in path:
            node = node and _child(node, part)
        return node.text if node is not None else None

    def position(self, path: YamlPath = ()) -> Position:
        """Where ``path`` stands (a key of a mapping: its key); of a missing one, where its nearest parent stands."""
        node, at = self._root, self._root.at
        for part in path:
            if isinstance(node.items, dict) and isinstance(part, str) and part in node.items:
                at = node.keys[part]
                node = node.items[part]
            elif isinstance(node.items, list) and isinstance(part, int) and part < len(node.items):
                node = node.items[part]
                at = node.at
            else:
                break
        return at

    def error(self, path: YamlPath, message: str, *, hint: str | None = None) -> UserError:
        """The mistake ``FILE:LINE: KEY: message; hint`` at ``path``."""
        return UserError(
            message, hint=hint, file=self.file, line=self.position(path).line, key=format_path(path) if path else None
        )

    def mapping(self, path: YamlPath = ()) -> dict[str, Any]:
        """A copy of the mapping at ``path``.

        Raises:
            UserError: Something else stands there: ``service: expected a mapping, found nothing (run.yaml:3)``.
        """
        value: Any = self._root.value
        for part in path:
            found = isinstance(value, dict) and part in value
            value = value[part] if found or (isinstance(value, list) and isinstance(part, int)) else None
        if isinstance(value, dict):
            return copy.deepcopy(value)
        name = format_path(path) if path else "the document"
        place = f"{self.file}:{self.position(path).line}"
        raise UserError(f"{name}: expected a mapping, found {describe(value)} ({place})")

    def unknown_keys(
        self, path: YamlPath, allowed: Collection[str], *, hint: Callable[[str], str | None] | None = None
    ) -> list[UserError]:
        """One mistake for each key of the mapping at ``path`` that is not allowed, with the nearest allowed name.

        Args:
            path: The mapping.
            allowed: The keys it may have.
            hint: What to say about a key instead of the nearest name; None keeps the nearest name.
        """
        errors: list[UserError] = []
        for key in self.mapping(path):
            if key in allowed:
                continue
            text = (hint(key) if hint else None) or did_you_mean(key, allowed)
            errors.append(self.error([*path, key], "unknown field", hint=text))
        return errors


def describe(value: Any) -> str:
    """What a YAML value is, in a few words; credentials that it may hold are not shown."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    for kind, word in ((str, "text"), (int, "an integer"), (float, "a number"), (list, "a list")):
        if isinstance(value, kind):
            return word
    return "a mapping"


def load_yaml(path: str | os.PathLike[str], *, what: str = "YAML", most_bytes: int = MOST_BYTES) -> YamlDocument:
    """Read one YAML file.

    Args:
        path: The file.
        what: What the file is, for the message when it is missing.
        most_bytes: The largest size that is read.

    Raises:
        UserError: It is missing, a directory, unreadable, too large, not UTF-8, or breaks a rule of :func:`parse_yaml`.
    """
    full = Path(os.path.abspath(path))  # noqa: PTH100 (links stay as the user typed them)
    try:
        if not full.exists():
            raise UserError(f"{what} not found: {full}")
        if full.is_dir():
            raise UserError(f"{what} is a directory: {full}")
        if full.stat().st_size > most_bytes:
            raise UserError(f"larger than {most_bytes // 1024} KiB", file=full)
        data = full.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=full) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8", file=full, line=data.count(b"\n", 0, error.start) + 1) from error
    return parse_yaml(text, full)


def parse_yaml(text: str, file: Path | str = "YAML") -> YamlDocument:
    """Read one YAML document.

    Args:
        text: The whole text.
        file: Its name, for messages.

    Raises:
        UserError: A syntax fault (line and column), a key given twice (both lines), a key that is no string, a tag,
            a second document, an anchor that contains itself, or more than 100 000 values.
    """
    builder = _Builder(file)
    loader = _Loader(text)
    try:
        return YamlDocument(builder.document(iter(loader.get_event, None)), file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context or error).split())
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        raise UserError(f"not valid YAML: {problem}", file=file, line=line, column=column) from error
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from error
    except RecursionError as error:
        raise UserError("nested too deeply", file=file) from error
    finally:
        loader.dispose()


class _Builder:
    """Builds nodes from the parser's events."""

    def __init__(self, file: Path | str) -> None:
        self._file = file
        self._anchors: dict[str, _Node | None] = {}

    def document(self, events: Iterator[Any]) -> _Node:
        root: _Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._mistake("a second document", event, hint="keep to one document a file")
                root = self._node(next(events), events)
        return root or _Node(None, Position(1, 1))

    def _mistake(self, message: str, event: Any, *, key: str | None = None, hint: str | None = None) -> UserError:
        return UserError(message, hint=hint, file=self._file, line=event.start_mark.line + 1, key=key)

    def _node(self, event: Any, events: Iterator[Any]) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None:
            raise self._mistake(f"the tag {event.tag} is not supported", event, hint="write a plain value")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        at = Position(event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(self._scalar(event), at, plain=event.style in (None, ""), text=event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(at, events)
        else:
            node = self._mapping(at, events)
        if node.size > MOST_NODES:
            raise self._mistake(f"more than {MOST_NODES} values once its anchors are expanded", event)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any) -> _Node:
        if event.anchor not in self._anchors:
            raise self._mistake(f"no anchor &{event.anchor} before *{event.anchor}", event)
        node = self._anchors[event.anchor]
        if node is None:
            raise self._mistake(f"the anchor &{event.anchor} contains itself", event)
        return node

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.style not in (None, ""):
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            try:
                return int(text, base) if base != 10 else int(text)
            except ValueError:
                raise self._mistake("an integer of too many digits", event, hint="write it in quotes") from None
        if _FLOAT.fullmatch(text):
            return float(text)
        special = _SPECIAL.fullmatch(text)
        if special is None:
            return text
        return float("nan") if special["nan"] else float(f"{special['sign']}inf")

    def _sequence(self, at: Position, events: Iterator[Any]) -> _Node:
        items: list[_Node] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, events))
        return _Node([item.value for item in items], at, items, size=1 + sum(item.size for item in items))

    def _mapping(self, at: Position, events: Iterator[Any]) -> _Node:
        items: dict[str, _Node] = {}
        keys: dict[str, Position] = {}
        merged: list[_Node] | None = None
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, events)
            value = self._node(next(events), events)
            name = key.value
            if not isinstance(name, str):
                self._refuse_key(event, key)
            if name == "<<" and key.plain:
                if merged is not None:
                    raise self._mistake("given twice", event, key="<<", hint="merge a list of anchors instead")
                merged = self._merged(event, value)
            elif name in items:
                first = keys[name]
                raise self._mistake(
                    f"given twice, first on line {first.line}", event, key=format_path([name]), hint="keep one of them"
                )
            else:
                items[name] = value
                keys[name] = key.at
        for source in merged or ():
            assert isinstance(source.items, dict)
            for name, value in source.items.items():
                if name not in items:
                    items[name] = value
                    keys[name] = source.keys[name]
        size = 1 + sum(item.size for item in items.values())
        return _Node({name: item.value for name, item in items.items()}, at, items, keys, size)

    def _refuse_key(self, event: Any, key: _Node) -> NoReturn:
        if key.items is not None:
            raise self._mistake("a list or mapping cannot be a key", event)
        found = "an empty key" if key.value is None else f"the key {getattr(event, 'value', key.value)}"
        raise self._mistake(f"{found} is {describe(key.value)}, not text", event, hint="write it in quotes")

    def _merged(self, event: Any, value: _Node) -> list[_Node]:
        sources = value.items if isinstance(value.items, list) else [value]
        if not all(isinstance(source.items, dict) for source in sources):
            raise self._mistake("expected a mapping or a list of mappings to merge", event, key="<<")
        return list(sources)
