"""Parsed configurations as data: dotted paths, JSON-able values, equality that ignores comments and order."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

__all__ = ["flatten", "jsonable", "lookup", "semantic_digest", "text_at"]


def jsonable(value: Any) -> Any:
    """The value with every TOML and YAML type as JSON: times as ISO text, ``inf`` and ``nan`` as text."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """``(dotted path, leaf)`` pairs; list items are ``[i]``, and tables of a list are named by a unique id or name."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        names = _names(value)
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}[{names[index] if names else index}]")
    elif path:
        yield path, value


def _names(items: list[Any]) -> list[str] | None:
    for field in ("id", "name"):
        names = [item.get(field) if isinstance(item, dict) else None for item in items]
        texts = [name for name in names if isinstance(name, str)]
        if len(texts) == len(items) and len(set(texts)) == len(texts):
            return texts
    return None


def semantic_digest(value: Any) -> str:
    """Equal for configurations that mean the same: order, comments and the spelling of numbers do not count."""
    text = json.dumps(_canonical(jsonable(value)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def lookup(tree: Any, dotted: str) -> Any:
    """The value at a dotted path of tables, None when there is none."""
    for part in dotted.split("."):
        if not isinstance(tree, dict):
            return None
        tree = tree.get(part)
    return tree


def text_at(tree: Any, dotted: str) -> str | None:
    """The non-empty string at a dotted path, else None."""
    value = lookup(tree, dotted)
    return value if isinstance(value, str) and value else None
