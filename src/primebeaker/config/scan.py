"""Where everything stands in a TOML text: a span scanner for text that ``tomllib`` has already accepted.

A document is a sequence of statements (a header, a key with its value, or a line without content), each with its
complete text up to and including its line end, so that joining them gives the document back byte for byte.  Spans
inside a statement are relative to its own text: editing one statement never moves the spans of another, which is
what makes a long chain of edits cheap.

The scanner does not judge: the text is known to be valid TOML 1.0.
"""

from __future__ import annotations

import re
import tomllib
from enum import Enum
from typing import NamedTuple

__all__ = ["Keys", "Kind", "Node", "Pair", "Statement", "scan_document", "scan_statement"]

Keys = tuple[str, ...]

_SPACES = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
# What may stand between the parts of an array or inline table.
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*+"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'"
    # A date and a time may be separated by one space.
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[^\s,\]}#]+"
    r"|[^\s,\]}#]+"
)


class Kind(Enum):
    """What a statement is."""

    BLANK = "blank"
    COMMENT = "comment"
    PAIR = "pair"
    TABLE = "table"
    ELEMENT = "element"


class Pair(NamedTuple):
    """One ``key = value`` of an inline table; ``start`` is where its key begins."""

    keys: Keys
    start: int
    value: Node


class Node(NamedTuple):
    """One value: its span, and what an array or an inline table holds.

    Args:
        start: Offset of its first character in the statement's text.
        end: Offset behind its last character.
        items: The elements of an array, else None.
        pairs: The keys of an inline table, else None.
        commas: Offsets of the commas of an array or inline table, in order.
    """

    start: int
    end: int
    items: tuple[Node, ...] | None = None
    pairs: tuple[Pair, ...] | None = None
    commas: tuple[int, ...] = ()


class Statement(NamedTuple):
    """One statement with its whole text, line end included.

    Args:
        kind: What it is.
        text: The exact source text.
        keys: The dotted key of a pair or a header.
        value: The value of a pair, with spans relative to ``text``.
    """

    kind: Kind
    text: str
    keys: Keys = ()
    value: Node | None = None


def scan_document(text: str) -> list[Statement]:
    """The statements of a valid TOML text, in order."""
    statements: list[Statement] = []
    position = 0
    while position < len(text):
        statement = scan_statement(text, position)
        statements.append(statement)
        position += len(statement.text)
    return statements


def scan_statement(text: str, position: int = 0) -> Statement:
    """The statement that starts at ``position`` (the start of a line)."""
    start = _skip(_SPACES, text, position)
    mark = text[start : start + 1]
    if mark in ("", "\n", "\r"):
        return Statement(Kind.BLANK, text[position : _line_end(text, start)])
    if mark == "#":
        return Statement(Kind.COMMENT, text[position : _line_end(text, start)])
    if mark == "[":
        double = text.startswith("[[", start)
        keys, after = _keys(text, start + (2 if double else 1))
        return Statement(Kind.ELEMENT if double else Kind.TABLE, text[position : _line_end(text, after)], keys)
    keys, equals = _keys(text, start)
    value = _value(text, _skip(_SPACES, text, equals + 1), position)
    return Statement(Kind.PAIR, text[position : _line_end(text, value.end + position)], keys, value)


def _line_end(text: str, position: int) -> int:
    newline = text.find("\n", position)
    return len(text) if newline < 0 else newline + 1


def _keys(text: str, position: int) -> tuple[Keys, int]:
    """The dotted key that starts at ``position``, and the offset of the first non-blank behind it."""
    keys: list[str] = []
    while True:
        match = _KEY_PART.match(text, _skip(_SPACES, text, position))
        assert match is not None
        keys.append(_key_text(match[0]))
        position = _skip(_SPACES, text, match.end())
        if text[position : position + 1] != ".":
            return tuple(keys), position
        position += 1


def _key_text(written: str) -> str:
    if written[0] not in "\"'":
        return written
    if written[0] == '"' and "\\" in written:
        return str(tomllib.loads(f"key = {written}")["key"])
    return written[1:-1]


def _value(text: str, start: int, base: int) -> Node:
    """The value at ``start``; its spans are relative to ``base``."""
    if text[start] in "[{":
        return _container(text, start, base)
    match = _SCALAR.match(text, start)
    assert match is not None
    return Node(start - base, match.end() - base)


def _container(text: str, start: int, base: int) -> Node:
    is_array = text[start] == "["
    items: list[Node] = []
    pairs: list[Pair] = []
    commas: list[int] = []
    position = start + 1
    while True:
        position = _skip(_GAP, text, position)
        mark = text[position]
        if mark in "]}":
            break
        if mark == ",":
            commas.append(position - base)
            position += 1
        elif is_array:
            items.append(_value(text, position, base))
            position = items[-1].end + base
        else:
            keys, equals = _keys(text, position)
            value = _value(text, _skip(_SPACES, text, equals + 1), base)
            pairs.append(Pair(keys, position - base, value))
            position = value.end + base
    return Node(
        start - base,
        position + 1 - base,
        items=tuple(items) if is_array else None,
        pairs=None if is_array else tuple(pairs),
        commas=tuple(commas),
    )


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position
