"""The engine of the service commands: its flag, and its ``beaker`` program for launchers that call that by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from cyclopts import Parameter

from primebeaker.beaker.engine import ENGINE_NAMES, Engine
from primebeaker.cli.flags import choice

__all__ = ["beaker_directory", "engine_parameter"]


def engine_parameter() -> Parameter:
    """The parameter of ``--engine``."""
    return choice("Where it runs.", ENGINE_NAMES, default="PRIMEBEAKER_ENGINE, else beaker")


def beaker_directory(engine: Engine) -> Path | None:
    """The directory with an engine's own ``beaker`` program; None for Beaker itself, whose program is on ``PATH``."""
    if engine.name != "local":
        return None
    directory: Path = import_module("primebeaker.local.home").open_home().bin
    return directory
