"""Read a pickle that somebody else wrote without letting it do anything.

The `.metadata` of a distributed checkpoint is a pickle.  It lies in a shared folder, so it is data, not code: here a
pickle can create numbers, text, containers and :class:`Inert` records, and nothing else.  No module is imported and no
class of ours or of a library is called, whatever the pickle asks for.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

__all__ = ["Inert", "loads"]


class Inert:
    """Stands for an object of any class: keeps what it was built from and does nothing with it.

    Args:
        arguments: What the pickle gave the class's constructor.
    """

    __slots__ = ("arguments", "state")

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **_keywords: Any) -> Inert:
        """Keep the arguments; keyword arguments cannot be named by a record and are dropped."""
        record = object.__new__(cls)
        record.arguments = arguments
        record.state = None
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state

    # Records of dict, list and set classes are filled through these; what they hold is not needed.
    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def append(self, item: Any) -> None:
        """Accept and forget an item."""

    def extend(self, items: Any) -> None:
        """Accept and forget items."""

    def add(self, item: Any) -> None:
        """Accept and forget an item."""


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> type[Inert]:
        return Inert

    def persistent_load(self, _pid: Any) -> Inert:
        return Inert()


def loads(data: bytes) -> Any:
    """The value of a pickle, every object in it an :class:`Inert` record.

    Raises:
        ValueError: ``data`` is not one whole pickle.
    """
    try:
        return _InertUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # A damaged pickle may fail in any way the format allows.
        raise ValueError(f"not a readable pickle: {type(error).__name__}: {error}") from error
