"""Which statement defines what: the logical tables of a TOML document over its list of statements.

One table may be written in many places and forms (its own header, headers of its sub-tables only, dotted keys,
arrays of tables, out of order); the layout says for each path where it stands, so that edits know where to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from primebeaker.config.scan import Keys, Kind, Node, Statement

__all__ = ["Array", "Form", "Layout", "Leaf", "Table", "Value", "Written", "build_layout", "find"]


class Form(Enum):
    """How a table is written."""

    ROOT = "root"
    HEADER = "header"
    ELEMENT = "element"
    #: Only through headers of its sub-tables.
    IMPLICIT = "implicit"
    #: Through dotted keys in the body of another table.
    DOTTED = "dotted"


@dataclass(slots=True)
class Table:
    """One table that is not inline.

    Args:
        form: How it is written.
        header: The number of its header statement, if it has one.
        children: What it holds, by key.
        pairs: The numbers of the pair statements that stand in its body or, for a dotted table, carry its prefix.
    """

    form: Form
    header: int | None = None
    children: dict[str, Table | Array | Leaf] = field(default_factory=dict)
    pairs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Array:
    """An array of tables written with ``[[header]]``."""

    elements: list[Table] = field(default_factory=list)


class Leaf(NamedTuple):
    """A key whose value is written behind an equals sign; the value is that of the statement."""

    statement: int


Written = Table | Array | Leaf


@dataclass(frozen=True, slots=True)
class Layout:
    """The logical tables of a document."""

    root: Table


class Value(NamedTuple):
    """A place inside the value of a pair statement.

    Args:
        statement: The number of the statement.
        node: The value, or the inline table that holds the dotted keys when ``prefix`` is not empty.
        prefix: For a table that exists only through dotted keys of an inline table: those keys.
        owner: The inline table or array that directly holds this value, if any.
        position: The number of this value's pair or element in ``owner``.
    """

    statement: int
    node: Node
    prefix: Keys = ()
    owner: Node | None = None
    position: int = 0


def build_layout(statements: Sequence[Statement]) -> Layout:
    """The layout of a valid document."""
    root = Table(Form.ROOT)
    body = root
    for number, statement in enumerate(statements):
        if statement.kind is Kind.PAIR:
            body.pairs.append(number)
            table = body
            for key in statement.keys[:-1]:
                child = table.children.get(key)
                if not isinstance(child, Table):
                    child = table.children[key] = Table(Form.DOTTED)
                table = child
                table.pairs.append(number)
            table.children[statement.keys[-1]] = Leaf(number)
        elif statement.kind is Kind.TABLE:
            parent = _descend(root, statement.keys[:-1])
            known = parent.children.get(statement.keys[-1])
            if isinstance(known, Table):
                body = known
                body.form = Form.HEADER
                body.header = number
            else:
                body = parent.children[statement.keys[-1]] = Table(Form.HEADER, number)
        elif statement.kind is Kind.ELEMENT:
            parent = _descend(root, statement.keys[:-1])
            array = parent.children.setdefault(statement.keys[-1], Array())
            assert isinstance(array, Array)
            body = Table(Form.ELEMENT, number)
            array.elements.append(body)
    return Layout(root)


def _descend(table: Table, keys: Keys) -> Table:
    for key in keys:
        child = table.children.get(key)
        if child is None:
            child = table.children[key] = Table(Form.IMPLICIT)
        if isinstance(child, Array):
            child = child.elements[-1]
        assert isinstance(child, Table)
        table = child
    return table


def find(layout: Layout, statements: Sequence[Statement], path: Sequence[str | int]) -> Table | Array | Value | None:
    """The place of ``path``, or None when nothing stands there."""
    place: Table | Array = layout.root
    for depth, part in enumerate(path):
        if isinstance(place, Array):
            if not isinstance(part, int) or part >= len(place.elements):
                return None
            place = place.elements[part]
            continue
        child = place.children.get(part) if isinstance(part, str) else None
        if child is None:
            return None
        if isinstance(child, Leaf):
            value = statements[child.statement].value
            assert value is not None
            return _find_inside(Value(child.statement, value), path[depth + 1 :])
        place = child
    return place


def _find_inside(place: Value, path: Sequence[str | int]) -> Value | None:
    for part in path:
        node = place.node
        if isinstance(part, int):
            if node.items is None or place.prefix or part >= len(node.items):
                return None
            place = Value(place.statement, node.items[part], owner=node, position=part)
            continue
        if node.pairs is None:
            return None
        keys = (*place.prefix, part)
        found: Value | None = None
        for number, pair in enumerate(node.pairs):
            if pair.keys == keys:
                found = Value(place.statement, pair.value, owner=node, position=number)
                break
            if pair.keys[: len(keys)] == keys:
                found = Value(place.statement, node, prefix=keys)
                break
        if found is None:
            return None
        place = found
    return place


def blocks(table: Table | Array) -> Iterator[int]:
    """The numbers of all headers in a table's subtree, its own included."""
    for part in table.elements if isinstance(table, Array) else [table]:
        if part.header is not None:
            yield part.header
        for child in part.children.values():
            if not isinstance(child, Leaf):
                yield from blocks(child)


def own_pairs(table: Table | Array) -> Iterator[int]:
    """The numbers of all pair statements in a table's subtree."""
    for part in table.elements if isinstance(table, Array) else [table]:
        yield from part.pairs
        for child in part.children.values():
            if not isinstance(child, Leaf):
                yield from own_pairs(child)
