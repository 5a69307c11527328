"""Find JSON values in running text, in one pass.

``raw_decode`` from every bracket is quadratic on hostile text (a million open brackets), and a rollout must not stall
the event loop.  A value that decodes at once costs one C call; a bracket where it does not is parsed by a small
pushdown parser that remembers for every bracket whether a value starts there, so that no bracket is parsed twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "MOST_NESTING",
    "STRING_PATTERN",
    "WHITE_SPACE_PATTERN",
    "JsonSpan",
    "ValueReader",
    "json_spans",
    "strict_decode",
]

#: A value nested deeper than this is no value.
MOST_NESTING = 200

#: White space, and a string, as JSON has them; both are linear.
WHITE_SPACE_PATTERN = r"[ \t\r\n]*"
STRING_PATTERN = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
_PLAIN_PATTERN = r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
# Only a bracket that is followed by what may follow it can start a value; every part is linear.
_BRACKET = re.compile(
    rf"\{{(?={WHITE_SPACE_PATTERN}(?:\}}|{STRING_PATTERN}{WHITE_SPACE_PATTERN}:))"
    rf"|\[(?={WHITE_SPACE_PATTERN}(?:[\[{{\]]|(?:{STRING_PATTERN}|{_PLAIN_PATTERN}){WHITE_SPACE_PATTERN}[,\]]))"
)
# One token with the white space before it. The number of the group tells its kind.
_TOKEN = re.compile(rf"{WHITE_SPACE_PATTERN}(?:([\[{{])|([\]}}])|(,)|(:)|({STRING_PATTERN})|({_PLAIN_PATTERN}))")
_RUN = re.compile(r"\[+")
_OPENING, _CLOSING, _COMMA, _COLON, _STRING = 1, 2, 3, 4, 5
_FAST_FAILURES = 4


class JsonSpan(NamedTuple):
    """Where a value stands in the text."""

    start: int
    end: int


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def strict_decode(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at ``start`` and where it ends; ``NaN`` and ``Infinity`` are refused.

    Raises:
        ValueError: There is no value, or it is nested too deeply to decode.
    """
    try:
        return _decoder.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_spans(text: str) -> Iterator[JsonSpan]:
    """Objects and arrays of a text from the left.

    At a bracket, the value that starts there is taken when it parses, and the search goes on behind it; when it does
    not, the search goes on one character later.
    """
    failures = position = 0
    while failures < _FAST_FAILURES:
        bracket = _BRACKET.search(text, position)
        if bracket is None:
            return
        start = _skip_hopeless(text, bracket.start())
        try:
            position = _decoder.raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            failures += 1
            position = start + 1
        else:
            yield JsonSpan(start, position)
    yield from _spans_of_hostile_text(text, position)


def _spans_of_hostile_text(text: str, position: int) -> Iterator[JsonSpan]:
    parser = _Parser(text)
    while bracket := _BRACKET.search(text, position):
        start = _skip_hopeless(text, bracket.start())
        end = parser.end_of_value(start)
        if end is not None:
            yield JsonSpan(start, end)
            position = end
            continue
        position = start + 1
        # The failed parse has seen every bracket up to its last one: what is complete among them stands for itself.
        for opened in parser.take_seen():
            if opened < position:
                continue
            position = opened + 1
            end = parser.end_of_value(opened)
            if end is not None:
                yield JsonSpan(opened, end)
                position = end


class ValueReader:
    """Reads objects and arrays at many places of one text, in linear time whatever the text is.

    A failure of the C decoder counts the lines before it, so a text with many broken values would cost its length each
    time.  After a few failures a pushdown parser finds the ends of values instead.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._failures = 0
        self._slow: _Parser | None = None

    def decode(self, start: int) -> tuple[Any, int]:
        """The value at the bracket ``start`` and where it ends.

        Raises:
            ValueError: There is none.
        """
        if self._slow is not None and self._slow.end_of_value(start) is None:
            raise ValueError("no JSON value")
        try:
            return strict_decode(self._text, start)
        except ValueError:
            self._failures += 1
            if self._failures == _FAST_FAILURES:
                self._slow = _Parser(self._text)
            raise


def _skip_hopeless(text: str, start: int) -> int:
    """The first bracket of a run of opening ones from which the run alone is not nested too deeply."""
    if not text.startswith("[[", start):
        return start
    run = _RUN.match(text, start)
    end = run.end() if run else start
    return max(start, end - MOST_NESTING)


# What a container may be followed by, as far as it is read.
_KEY, _KEY_OR_END, _AFTER_KEY, _MEMBER_VALUE, _AFTER_MEMBER, _ITEM, _ITEM_OR_END, _AFTER_ITEM = range(8)
_VALUE_FITS = (False, False, False, True, False, True, True, False)
_AFTER_VALUE = (0, 0, 0, _AFTER_MEMBER, 0, _AFTER_ITEM, _AFTER_ITEM, 0)
_END_FITS = {"}": (_KEY_OR_END, _AFTER_MEMBER), "]": (_ITEM_OR_END, _AFTER_ITEM)}


class _Parser:
    """Parses values of one text; every bracket is visited as a start once, whatever the outcome.

    When a parse fails, every container that was open fails with it: parsing from its own bracket would see the same
    tokens and fail at the same place.  Containers that were complete by then are values in their own right.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int | None] = {}
        self._seen: list[int] = []

    def take_seen(self) -> list[int]:
        """The brackets that the last failed parse opened, when there are no others between them; given once."""
        seen, self._seen = self._seen, []
        return seen

    def end_of_value(self, start: int) -> int | None:
        """Where the value at the bracket ``start`` ends, or None when there is none."""
        if start not in self._ends:
            self._parse(start)
        return self._ends[start]

    def _parse(self, start: int) -> None:
        text, ends, next_token = self._text, self._ends, _TOKEN.match
        starts: list[int] = []
        expected: list[int] = []
        opened_here: list[int] = []
        # A bracket inside a string is no token, yet a value may start there when the parse around it fails.
        strings = False
        position = start
        expects = _ITEM
        while token := next_token(text, position):
            position = token.end()
            kind = token.lastindex
            if kind == _OPENING:
                opened = position - 1
                if not _VALUE_FITS[expects] or len(starts) >= MOST_NESTING:
                    break
                if opened in ends:
                    known = ends[opened]
                    if known is None:
                        break
                    opened_here.append(opened)
                    position, expects = known, _AFTER_VALUE[expects]
                    continue
                opened_here.append(opened)
                starts.append(opened)
                expected.append(_AFTER_VALUE[expects])
                expects = _KEY_OR_END if text[opened] == "{" else _ITEM_OR_END
            elif kind == _CLOSING:
                if expects not in _END_FITS[text[position - 1]]:
                    break
                ends[starts.pop()] = position
                expects = expected.pop()
                if not starts:
                    return
            elif kind == _COMMA:
                if expects == _AFTER_ITEM:
                    expects = _ITEM
                elif expects == _AFTER_MEMBER:
                    expects = _KEY
                else:
                    break
            elif kind == _COLON:
                if expects != _AFTER_KEY:
                    break
                expects = _MEMBER_VALUE
            elif _VALUE_FITS[expects]:
                expects = _AFTER_VALUE[expects]
                strings = strings or kind == _STRING
            elif kind == _STRING and expects in (_KEY, _KEY_OR_END):
                expects = _AFTER_KEY
                strings = True
            else:
                break
        for failed in starts:
            ends[failed] = None
        self._seen = [] if strings else opened_here
