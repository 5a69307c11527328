"""The embedded engine: experiment specs as supervised processes on this machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primebeaker.local.engine import LocalEngine, Rehearsal

__all__ = ["LocalEngine", "Rehearsal"]


def __getattr__(name: str) -> Any:
    # The supervisor process imports this package too, and needs no engine.
    if name in __all__:
        return getattr(import_module("primebeaker.local.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
