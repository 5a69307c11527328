"""Which engine a command talks to."""

from __future__ import annotations

from importlib import import_module

from primebeaker.beaker.engine import Engine, choose_engine_name
from primebeaker.cli.output import warn

__all__ = ["open_engine"]


def open_engine(flag: str | None) -> Engine:
    """The engine of ``--engine``, else of ``PRIMEBEAKER_ENGINE``, else Beaker.

    Raises:
        UserError: The flag or variable names no engine.
        ExternalError: The engine cannot be reached.
    """
    if choose_engine_name(flag) == "local":
        local: Engine = import_module("primebeaker.local").LocalEngine(warn=warn)
        return local
    from primebeaker.beaker.executable import BeakerExecutable

    return BeakerExecutable()
