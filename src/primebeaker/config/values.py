"""Edits inside one value: the elements of an array, the keys of an inline table, in the style they are written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from primebeaker.config.scan import Keys, Node

__all__ = [
    "add_pair",
    "append_items",
    "remove_dotted",
    "remove_item",
    "remove_pair",
    "render_array_like",
    "subsequence",
]

_COMMENT_BEFORE_LINE_END = re.compile(r"[ \t]*(?:#[^\n]*?)?(?=\r?\n)")
_SPACES = re.compile(r"[ \t]*")
_LINE_END = re.compile(r"\r?\n")


def append_items(text: str, array: Node, rendered: Sequence[str], newline: str) -> str:
    """``text`` with elements appended to ``array``, in the array's own style."""
    items = array.items or ()
    if not items:
        return text[: array.start] + _fill_empty(text[array.start : array.end], rendered, newline) + text[array.end :]
    last = items[-1]
    trailing = array.commas[-1] if len(array.commas) == len(items) else None
    end = last.end if trailing is None else trailing + 1
    if "\n" not in text[array.start : array.end]:
        between = text[array.commas[0] + 1 : items[1].start] if len(items) > 1 else " "
        added = "".join(f",{between}{item}" for item in rendered)
        # With a trailing comma the new elements go before it, which then ends the list as before.
        return text[: last.end] + added + text[last.end :]
    indent = _line_indent(text, array)
    if trailing is None:
        text = text[:end] + "," + text[end:]
        end += 1
    comment = _COMMENT_BEFORE_LINE_END.match(text, end)
    position = comment.end() if comment else end
    added = ",".join(f"{newline}{indent}{item}" for item in rendered) + ("," if trailing is not None else "")
    return text[:position] + added + text[position:]


def _line_indent(text: str, array: Node) -> str:
    """The blanks before the last element that starts a line, else two more than the line of the array has."""
    for item in reversed(array.items or ()):
        line = text.rfind("\n", 0, item.start) + 1
        before = text[line : item.start]
        if line > array.start and not before.strip(" \t"):
            return before
    line = text.rfind("\n", 0, array.start) + 1
    spaces = _SPACES.match(text, line)
    return (spaces[0] if spaces else "") + "  "


def _fill_empty(written: str, rendered: Sequence[str], newline: str) -> str:
    """An array without elements, ``[]`` or only comments inside, with its first elements."""
    inside = written[1:-1]
    if "\n" not in inside:
        return f"[{', '.join(rendered)}]"
    # The bracket stands at the end of a line that may be indented less than what the array holds.
    body, _, closing = inside.rpartition("\n")
    body = body.removesuffix("\r")
    comment = re.search(r"\n([ \t]*)#", "\n" + body.partition("\n")[2])
    indent = comment[1] if comment else f"{closing}  "
    return f"[{body}" + "".join(f"{newline}{indent}{item}," for item in rendered) + f"{newline}{closing}]"


def render_array_like(text: str, array: Node, rendered: Sequence[str], newline: str) -> str:
    """A new array for the place of ``array``: over several lines when that one is."""
    written = text[array.start : array.end]
    if "\n" not in written or not rendered:
        return f"[{', '.join(rendered)}]"
    indent = _line_indent(text, array)
    closing = text[text.rfind("\n", 0, array.end) + 1 : array.end - 1]
    closing = closing if not closing.strip(" \t") else ""
    return "[" + "".join(f"{newline}{indent}{item}," for item in rendered) + f"{newline}{closing}]"


def subsequence(old: Sequence[Any], new: Sequence[Any], same: Callable[[Any, Any], bool]) -> set[int] | None:
    """The numbers of the elements of ``old`` that make up ``new`` in order, or None when ``new`` is no part of it."""
    kept: set[int] = set()
    position = 0
    for item in new:
        while position < len(old) and not same(old[position], item):
            position += 1
        if position == len(old):
            return None
        kept.add(position)
        position += 1
    return kept


def remove_item(text: str, array: Node, number: int) -> str:
    """``text`` without one element of ``array``, its comma, and its line when it stood alone on it."""
    items = array.items or ()
    return _remove(text, array, items[number].start, items[number].end, number, len(items))


def remove_pair(text: str, table: Node, number: int) -> str:
    """``text`` without one key of an inline table and its comma."""
    pairs = table.pairs or ()
    pair = pairs[number]
    return _remove(text, table, pair.start, pair.value.end, number, len(pairs))


def remove_dotted(text: str, table: Node, prefix: Keys) -> str:
    """``text`` without all keys of an inline table that start with ``prefix``."""
    # From the last to the first, so that the numbers and spans of the rest stay valid.
    pairs = table.pairs or ()
    going = [number for number, pair in enumerate(pairs) if pair.keys[: len(prefix)] == prefix]
    for number in reversed(going):
        before = len(text)
        text = remove_pair(text, table, number)
        table = _without(table, number, before - len(text))
    return text


def _without(table: Node, number: int, shift: int) -> Node:
    pairs = table.pairs or ()
    commas = list(table.commas)
    if commas:
        del commas[min(number, len(commas) - 1)]
    return table._replace(end=table.end - shift, pairs=pairs[:number] + pairs[number + 1 :], commas=tuple(commas))


def _remove(text: str, owner: Node, start: int, end: int, number: int, count: int) -> str:
    commas = owner.commas
    if number < len(commas):
        comma = commas[number]
        if not text[end:comma].strip(" \t"):
            return _remove_forward(text, start, comma + 1)
        # Comments stand between the element and its comma: keep them.
        return text[:start] + text[end:comma] + text[comma + 1 :]
    if count == 1:
        line = text.rfind("\n", owner.start, start) + 1
        if line and not text[line:start].strip(" \t"):
            return _remove_forward(text, start, end)
        return text[:start] + text[end:]
    # The last one without a trailing comma: the comma before it goes with it.
    comma = commas[number - 1]
    between = text[comma + 1 : start]
    if not between.strip():
        return text[:comma] + text[end:]
    return text[:comma] + between.rstrip(" \t") + text[end:]


def _remove_forward(text: str, start: int, end: int) -> str:
    """Remove a span and what only served it: the blanks behind it, or the whole line when it filled one."""
    line = text.rfind("\n", 0, start) + 1
    alone = line > 0 and not text[line:start].strip(" \t")
    rest = _COMMENT_BEFORE_LINE_END.match(text, end)
    if rest is not None and alone:
        line_end = _LINE_END.match(text, rest.end())
        return text[:line] + text[line_end.end() if line_end else rest.end() :]
    spaces = _SPACES.match(text, end)
    return text[:start] + text[spaces.end() if spaces and rest is None else end :]


def add_pair(text: str, table: Node, prefix: Keys, pair: str) -> str:
    """``text`` with one more ``key = value`` in an inline table, behind the keys of the same dotted prefix."""
    pairs = table.pairs or ()
    if not pairs:
        inside = text[table.start + 1 : table.end - 1]
        return text[: table.start] + (f"{{ {pair} }}" if inside else f"{{{pair}}}") + text[table.end :]
    number = max(
        (number for number, known in enumerate(pairs) if prefix and known.keys[: len(prefix)] == prefix),
        default=len(pairs) - 1,
    )
    between = text[table.commas[0] + 1 : pairs[1].start] if len(pairs) > 1 else " "
    end = pairs[number].value.end
    return f"{text[:end]},{between}{pair}{text[end:]}"
