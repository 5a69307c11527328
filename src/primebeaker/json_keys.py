"""JSON objects whose keys are all different; Python's decoder silently keeps the last value of a repeated one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["RepeatedKey", "repeated_key", "unique_keys"]


class RepeatedKey(ValueError):
    """An object gives a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is given twice in one object")
        self.key = key


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; for ``object_pairs_hook`` of the JSON decoder.

    Raises:
        RepeatedKey: A key occurs twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RepeatedKey(repeated_key(pairs) or "")
    return found


def repeated_key(pairs: Sequence[tuple[str, Any]]) -> str | None:
    """The first key that occurs a second time."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    return None
