"""Edits of a TOML document by span: change exactly the statements an edit is about and leave every other byte.

The editor trusts nobody, itself included: the caller reads its result again with ``tomllib`` and compares it with the
value tree that was meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.config import values as inner
from primebeaker.config.layout import Array, Form, Layout, Table, Value, blocks, build_layout, find, own_pairs
from primebeaker.config.paths import format_key, format_path
from primebeaker.config.render import is_block, render_inline, render_table, same
from primebeaker.config.scan import Kind, Statement, scan_document, scan_statement
from primebeaker.errors import UserError

__all__ = ["Editor"]

ConcretePath = tuple[str | int, ...]


class Editor:
    """A document's statements while they are edited.

    Args:
        statements: The statements of a valid document; the list becomes the editor's own.
        layout: Their layout, when it is known.
        newline: The line end of the document.
    """

    def __init__(self, statements: list[Statement], layout: Layout | None, newline: str) -> None:
        self.statements = statements
        self._layout = layout
        self._newline = newline

    @property
    def layout(self) -> Layout:
        """The layout of the statements as they are now."""
        if self._layout is None:
            self._layout = build_layout(self.statements)
        return self._layout

    @property
    def known_layout(self) -> Layout | None:
        """The layout, when no edit since has made it stale."""
        return self._layout

    def assign(self, path: ConcretePath, old: Any, new: Any) -> None:
        """Turn the existing value at ``path`` from ``old`` into ``new``, touching only what differs."""
        if same(old, new):
            return
        place = find(self.layout, self.statements, path)
        assert place is not None
        if isinstance(old, dict) and isinstance(new, dict):
            self._assign_table(path, old, new)
        elif isinstance(place, Array) and isinstance(new, list) and is_block(new):
            self._assign_elements(path, old, new)
        elif isinstance(place, Value) and not place.prefix:
            self._assign_value(path, place, old, new)
        else:
            # A table written with headers or dotted keys becomes something that has no header.
            if isinstance(path[-1], int) and isinstance(place, Table):
                raise UserError(
                    f"only a table can replace {format_path(path)}",
                    hint=f"it is written as [[{format_path(_header(path))}]]; set {format_path(path[:-1])} as a whole",
                )
            self.remove(path)
            self.insert(path, new)

    def _assign_table(self, path: ConcretePath, old: dict[str, Any], new: dict[str, Any]) -> None:
        # New keys first: a table written with dotted keys only would vanish with its last key.
        for key, value in new.items():
            if key in old:
                self.assign((*path, key), old[key], value)
            else:
                self.insert((*path, key), value)
        for key in old:
            if key not in new:
                self.remove((*path, key))

    def _assign_elements(self, path: ConcretePath, old: list[Any], new: list[Any]) -> None:
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            self.assign((*path, number), before, after)
        for number in reversed(range(len(new), len(old))):
            self.remove((*path, number))
        if len(new) > len(old):
            self._append_elements(path, new[len(old) :])

    def _append_elements(self, path: ConcretePath, elements: Sequence[Mapping[str, Any]]) -> None:
        array = find(self.layout, self.statements, path)
        assert isinstance(array, Array)
        header = array.elements[-1].header
        assert header is not None
        texts = [
            render_table(_header(path), element, element=True, indent=_indent(self.statements[header].text))
            for element in elements
        ]
        self._add_block(self._content_end(array), "\n".join(texts))

    def _assign_value(self, path: ConcretePath, place: Value, old: Any, new: Any) -> None:
        statement = self.statements[place.statement]
        if isinstance(old, list) and isinstance(new, list):
            if len(old) == len(new):
                for number, (before, after) in enumerate(zip(old, new, strict=True)):
                    self.assign((*path, number), before, after)
                return
            if len(old) < len(new) and same(old, new[: len(old)]):
                text = statement.text
                text = inner.append_items(
                    text, place.node, [render_inline(item) for item in new[len(old) :]], self._newline
                )
                self._set_text(place.statement, text)
                return
            kept = inner.subsequence(old, new, same)
            if kept is not None:
                for number in reversed(range(len(old))):
                    if number not in kept:
                        self.remove((*path, number))
                return
            rendered = inner.render_array_like(
                statement.text, place.node, [render_inline(item) for item in new], self._newline
            )
        else:
            rendered = render_inline(new)
        text = statement.text
        self._set_text(place.statement, text[: place.node.start] + rendered + text[place.node.end :])

    def insert(self, path: ConcretePath, value: Any) -> None:
        """Add the missing key at the end of ``path`` to the existing table before it."""
        *before, key = path
        assert isinstance(key, str)
        place = find(self.layout, self.statements, before)
        if isinstance(place, Value):
            written = ".".join(map(format_key, (*place.prefix, key)))
            text = inner.add_pair(
                self.statements[place.statement].text, place.node, place.prefix, f"{written} = {render_inline(value)}"
            )
            self._set_text(place.statement, text)
            return
        assert isinstance(place, Table)
        if place.form is Form.DOTTED:
            sample = self.statements[place.pairs[-1]]
            depth = self._dotted_depth(before)
            keys = (*sample.keys[:depth], key)
            self._add_pair(place.pairs[-1], keys, value, _indent(sample.text))
        elif is_block(value):
            self._insert_block(before, place, key, value)
        elif place.form is Form.IMPLICIT:
            indent = self._sibling_indent(place)
            self._add_block(self._content_end(place), render_table(_header(before), {key: value}, indent=indent))
        else:
            anchor = place.pairs[-1] if place.pairs else place.header
            indent = "" if anchor is None else _indent(self.statements[anchor].text)
            self._add_pair(anchor, (key,), value, indent)

    def _insert_block(self, before: Sequence[str | int], parent: Table, key: str, value: Any) -> None:
        header = [*_header(before), key]
        indent = self._sibling_indent(parent)
        parts = value if isinstance(value, list) else [value]
        text = "\n".join(render_table(header, part, element=isinstance(value, list), indent=indent) for part in parts)
        self._add_block(self._content_end(parent), text)

    def _sibling_indent(self, table: Table) -> str:
        header = min(blocks(table), default=None) if table.form is not Form.ROOT else None
        return "" if header is None else _indent(self.statements[header].text)

    def _dotted_depth(self, path: Sequence[str | int]) -> int:
        """How many keys of a dotted table's path stand in its own pairs rather than in a header."""
        depth = 0
        for end in range(len(path), 0, -1):
            place = find(self.layout, self.statements, path[:end])
            if not isinstance(place, Table) or place.form is not Form.DOTTED:
                break
            depth += 1
        return depth

    def _add_pair(self, anchor: int | None, keys: Sequence[str], value: Any, indent: str) -> None:
        """Add a pair behind the statement ``anchor`` (None: at the start) and the comments attached to it."""
        text = f"{indent}{'.'.join(map(format_key, keys))} = {render_inline(value)}{self._newline}"
        position = self._start_of_root() if anchor is None else self._behind_comments(anchor + 1)
        self._insert(position, [scan_statement(text)])

    def _start_of_root(self) -> int:
        """Where the first key of a top level without keys goes: below the opening comments that belong to no header."""
        position = 0
        for number, statement in enumerate(self.statements):
            if statement.kind is Kind.BLANK:
                if number and self.statements[number - 1].kind is Kind.COMMENT:
                    position = number
            elif statement.kind is not Kind.COMMENT:
                return position
        last = len(self.statements)
        while last and self.statements[last - 1].kind is Kind.BLANK:
            last -= 1
        return last

    def _behind_comments(self, position: int) -> int:
        while position < len(self.statements) and self.statements[position].kind is Kind.COMMENT:
            position += 1
        return position

    def _content_end(self, table: Table | Array) -> int:
        """The position behind the last header or pair of a table's subtree and the comments attached to it."""
        if isinstance(table, Table) and table.form is Form.ROOT:
            last = max(
                (number for number, one in enumerate(self.statements) if one.kind not in (Kind.BLANK, Kind.COMMENT)),
                default=None,
            )
            return self._start_of_root() if last is None else self._behind_comments(last + 1)
        return self._behind_comments(max((*blocks(table), *own_pairs(table))) + 1)

    def _add_block(self, position: int, text: str) -> None:
        """Add a table's text at ``position``, one blank line before it."""
        added = scan_document(text.replace("\n", self._newline))
        if position and self.statements[position - 1].kind is not Kind.BLANK:
            added.insert(0, Statement(Kind.BLANK, self._newline))
        self._insert(position, added)

    def remove(self, path: ConcretePath) -> None:
        """Remove the key, table or element at ``path``; a parent that it leaves empty stays, as an empty table."""
        place = find(self.layout, self.statements, path)
        assert place is not None
        if isinstance(place, Value):
            self._remove_value(path, place)
        elif isinstance(place, Table) and place.form is Form.DOTTED:
            self._remove_dotted(path, place)
        else:
            self._remove_blocks(path, place)
        self._keep_parent(path)

    def _remove_value(self, path: ConcretePath, place: Value) -> None:
        text = self.statements[place.statement].text
        if place.prefix:
            self._set_text(place.statement, inner.remove_dotted(text, place.node, place.prefix))
        elif place.owner is None:
            self._remove_pairs(path, [place.statement])
        elif place.owner.items is not None:
            self._set_text(place.statement, inner.remove_item(text, place.owner, place.position))
        else:
            self._set_text(place.statement, inner.remove_pair(text, place.owner, place.position))

    def _remove_dotted(self, path: ConcretePath, table: Table) -> None:
        headers = list(blocks(table))
        if headers:
            self._remove_bodies(headers, {})
            again = find(self.layout, self.statements, path)
            assert isinstance(again, Table)
            table = again
        self._remove_pairs(path, table.pairs)

    def _remove_pairs(self, path: ConcretePath, numbers: Sequence[int]) -> None:
        """Remove the pairs that define ``path``; where they alone define its parent, ``parent = {}`` replaces them."""
        kept: dict[int, Statement] = {}
        if self._is_only_child(path, Form.DOTTED):
            first = self.statements[numbers[0]]
            assert first.value is not None
            name = ".".join(map(format_key, first.keys[: self._dotted_depth(path[:-1])]))
            rest = first.text[first.value.end :]
            kept[numbers[0]] = scan_statement(f"{_indent(first.text)}{name} = {{}}{rest}")
        self._remove_statements(numbers, kept)

    def _remove_blocks(self, path: ConcretePath, table: Table | Array) -> None:
        headers = sorted(blocks(table))
        kept: dict[int, Statement] = {}
        if not isinstance(path[-1], int) and self._is_only_child(path, Form.IMPLICIT):
            first = self.statements[headers[0]].text
            name = format_path(_header(path[:-1]))
            kept[headers[0]] = scan_statement(f"{_indent(first)}[{name}]{self._newline}")
        self._remove_bodies(headers, kept)

    def _is_only_child(self, path: ConcretePath, form: Form) -> bool:
        """Whether the parent of ``path`` is a table written in ``form`` that holds nothing else."""
        parent = find(self.layout, self.statements, path[:-1])
        return isinstance(parent, Table) and parent.form is form and len(parent.children) == 1

    def _remove_bodies(self, headers: Sequence[int], kept: Mapping[int, Statement]) -> None:
        """Remove headers with their bodies; blank lines and comments that belong to the next header stay."""
        gone: list[int] = []
        for header in headers:
            last = header
            end = header + 1
            while end < len(self.statements) and self.statements[end].kind not in (Kind.TABLE, Kind.ELEMENT):
                if self.statements[end].kind is Kind.PAIR:
                    last = end
                end += 1
            stop = self._behind_comments(last + 1)
            start = header
            # Of the blank lines around the gap one was this table's own.
            alone = stop == len(self.statements) or self.statements[stop].kind is Kind.BLANK
            if alone and start and self.statements[start - 1].kind is Kind.BLANK and header not in kept:
                start -= 1
            gone.extend(range(start, stop))
        self._remove_statements(gone, kept)

    def _remove_statements(self, numbers: Sequence[int], kept: Mapping[int, Statement]) -> None:
        """Remove statements; those of ``kept`` are replaced instead."""
        gone = set(numbers)
        self._change(
            [
                kept.get(number, statement)
                for number, statement in enumerate(self.statements)
                if number not in gone or number in kept
            ]
        )

    def _keep_parent(self, path: ConcretePath) -> None:
        """Write the parent of a removed path again when nothing else defines it."""
        parent = path[:-1]
        if not parent or find(self.layout, self.statements, parent) is not None:
            return
        self._keep_parent(parent)
        empty: Any = [] if isinstance(path[-1], int) else {}
        self.insert(parent, empty)

    def _set_text(self, number: int, text: str) -> None:
        self.statements[number] = scan_statement(text)

    def _insert(self, position: int, added: Sequence[Statement]) -> None:
        self._change([*self.statements[:position], *added, *self.statements[position:]])

    def _change(self, statements: list[Statement]) -> None:
        """Take new statements, keeping whether the document ends with a line end."""
        if self.statements and not self.statements[-1].text.endswith("\n"):
            for number, statement in enumerate(statements[:-1]):
                if not statement.text.endswith("\n"):
                    statements[number] = statement._replace(text=statement.text + self._newline)
            if statements:
                statements[-1] = _without_line_end(statements[-1])
                if not statements[-1].text:
                    statements.pop()
        self.statements = statements
        self._layout = None


def _without_line_end(statement: Statement) -> Statement:
    return statement._replace(text=statement.text.removesuffix("\n").removesuffix("\r"))


def _header(path: Sequence[str | int]) -> list[str]:
    return [part for part in path if isinstance(part, str)]


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]
