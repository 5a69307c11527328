"""What a rehearsal tells its stand-ins: one JSON file in a folder named by the environment.

Stand-ins run only where the embedded engine says that this is a rehearsal; nothing here changes a real run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json

__all__ = ["DIRECTORY", "PORTS", "REHEARSAL", "RehearsalSettings", "is_rehearsal", "load_settings"]

#: Set to 1 in every process of a rehearsal.
REHEARSAL = "PRIMEBEAKER_REHEARSAL"
#: Folder of the rehearsal's own files, the same for all replicas.
DIRECTORY = "PRIMEBEAKER_REHEARSAL_DIR"
#: First port of the rehearsal's own ones, for whoever starts it again.
PORTS = "PRIMEBEAKER_REHEARSAL_PORTS"
_ENGINE = "PRIMEBEAKER_LOCAL_ENGINE"
_FILE = "settings.json"


@dataclass(frozen=True, kw_only=True)
class RehearsalSettings:
    """How the stand-ins behave.

    Attributes:
        model: What answers chat requests: ``bandit``, ``scripted``, or the URL of an OpenAI-compatible server.
        rules: File of the scripted policy's rules.
        seed: Seeds everything random.
        rollouts: Run real rollouts; False lets the orchestrator invent them.
        load_seconds: How long inference takes to load.
        learning_rate: Step size of the bandit's REINFORCE update.
        faults: Faults to inject, as text (see :mod:`primebeaker.rehearsal.faults`).
    """

    model: str = "bandit"
    rules: str | None = None
    seed: int = 0
    rollouts: bool = True
    load_seconds: float = 1.0
    learning_rate: float = 1.0
    faults: tuple[str, ...] = ()

    def write(self, directory: Path) -> None:
        """Store the settings where the stand-ins look for them."""
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write_json(directory / _FILE, asdict(self))

    def environment(self, directory: Path) -> dict[str, str]:
        """The variables that make a replica's processes find these settings."""
        return {REHEARSAL: "1", DIRECTORY: str(directory)}


def is_rehearsal(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process belongs to a rehearsal on the embedded engine."""
    environment = os.environ if environment is None else environment
    return environment.get(REHEARSAL) == "1" and environment.get(_ENGINE) == "1"


def rehearsal_directory(environment: Mapping[str, str] | None = None) -> Path:
    """The rehearsal's own folder.

    Raises:
        UserError: The environment names none.
    """
    environment = os.environ if environment is None else environment
    value = environment.get(DIRECTORY)
    if not value:
        raise UserError(f"{DIRECTORY} is not set: stand-ins are started by a rehearsal only")
    return Path(value)


def load_settings(environment: Mapping[str, str] | None = None) -> RehearsalSettings:
    """The settings of the rehearsal this process belongs to; the defaults when it left none.

    Raises:
        UserError: The file is damaged, or this is no rehearsal.
    """
    path = rehearsal_directory(environment) / _FILE
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return RehearsalSettings()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {error}", file=path) from error
    values["faults"] = tuple(values.get("faults", ()))
    return RehearsalSettings(**values)
