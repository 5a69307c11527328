"""Reading and changing nested tables by dotted key. Pure; the tables are plain ``tomllib`` results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Table", "drop", "fill", "is_null", "lookup", "put", "without_nulls"]

Table = dict[str, Any]

#: TOML has no null; Prime-RL reads this string as one.
_NULL = "None"


def is_null(value: Any) -> bool:
    """Whether a value stands for "not set": absent, null, or the string ``"None"``."""
    return value is None or value == _NULL


def lookup(table: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value at a dotted key; ``default`` when a part is missing, not a table, or null."""
    node: Any = table
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return default if is_null(node) else node


def put(table: Table, key: str, value: Any) -> None:
    """Set a dotted key in place; missing tables (and null ones) are created."""
    *parents, last = key.split(".")
    node = table
    for part in parents:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = value


def fill(table: Table, key: str, value: Any) -> None:
    """Set a dotted key in place unless something is there already."""
    if lookup(table, key) is None:
        put(table, key, value)


def drop(table: Table, key: str) -> None:
    """Remove a dotted key in place; a missing one is no fault."""
    *parents, last = key.split(".")
    node: Any = table
    for part in parents:
        if not isinstance(node, dict) or part not in node:
            return
        node = node[part]
    if isinstance(node, dict):
        node.pop(last, None)


def without_nulls(value: Any) -> Any:
    """A copy without keys whose value is a Python ``None``, which TOML cannot hold."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
