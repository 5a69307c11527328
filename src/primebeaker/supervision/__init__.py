"""The one process supervisor: start, watch, stream and end groups of child processes.

The names below are imported when they are first used: the guardian process imports this package at every start of a
supervisor and needs next to nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primebeaker.supervision.output import Console, LogOptions
    from primebeaker.supervision.signals import StopSignals
    from primebeaker.supervision.supervisor import Child, ChildSpec, Exit, Supervisor

__all__ = ["Child", "ChildSpec", "Console", "Exit", "LogOptions", "StopSignals", "Supervisor"]

_MODULES = {"Console": "output", "LogOptions": "output", "StopSignals": "signals"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'supervisor')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
