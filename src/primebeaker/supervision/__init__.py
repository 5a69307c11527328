"""The one process supervisor: start, watch, stream and end groups of child processes.

The names below are imported when they are first used: the guardian process imports this package at every start of a
supervisor and needs next to nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primebeaker.supervision.child import Child, ChildSpec, Exit
    from primebeaker.supervision.output import Console, LogOptions
    from primebeaker.supervision.signals import StopSignals
    from primebeaker.supervision.supervisor import Supervisor

__all__ = ["Child", "ChildSpec", "Console", "Exit", "LogOptions", "StopSignals", "Supervisor"]

_MODULES = {
    "Child": "child",
    "ChildSpec": "child",
    "Console": "output",
    "Exit": "child",
    "LogOptions": "output",
    "StopSignals": "signals",
    "Supervisor": "supervisor",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
