"""Values of secrets: one private file each, per workspace, and nowhere else.

Beside them lies what each experiment was started with (the submitting process's part of the environment, and the
secrets it gave), so that a restart gets the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from primebeaker.errors import UserError, did_you_mean
from primebeaker.fileio import atomic_write, atomic_write_json
from primebeaker.redaction import Redactor

__all__ = ["Origin", "SecretStore"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass
class Origin:
    """What an experiment takes from the process that submitted it."""

    #: Variables every replica gets.
    environment: dict[str, str] = field(default_factory=dict)
    #: ``CUDA_VISIBLE_DEVICES`` and the like: only for tasks that ask for GPUs.
    gpu_environment: dict[str, str] = field(default_factory=dict)
    #: Secret name -> the value the submitting process had under that name.
    secrets: dict[str, str] = field(default_factory=dict)


class SecretStore:
    """The secrets of one engine.

    Args:
        folder: Private folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, workspace: str, name: str, value: str) -> None:
        """Store a value, replacing an older one.

        Raises:
            UserError: The name is none.
        """
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r}: expected a secret's name of letters, digits, '.', '_' and '-'")
        path = self._path(workspace, name)
        _make_private(path.parent)
        atomic_write(path, value, mode=0o600)

    def read(self, workspace: str, name: str) -> str | None:
        """The value, or None. Names are compared without case, as Beaker does."""
        for known in self.names(workspace):
            if known.lower() == name.lower():
                return self._path(workspace, known).read_text()
        return None

    def delete(self, workspace: str, name: str) -> None:
        """Remove a secret.

        Raises:
            UserError: There is none of that name.
        """
        try:
            self._path(workspace, name).unlink()
        except FileNotFoundError:
            hint = did_you_mean(name, self.names(workspace))
            raise UserError(f"{name}: no such secret in {workspace}", hint=hint) from None

    def names(self, workspace: str) -> list[str]:
        """The names of a workspace's secrets, sorted."""
        folder = self._workspace(workspace)
        return (
            sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
            if (folder.is_dir())
            else []
        )

    def workspaces(self) -> list[str]:
        """The workspaces that have secrets."""
        folder = self._folder / "workspaces"
        return sorted(unquote(path.name) for path in folder.iterdir()) if folder.is_dir() else []

    def keep_origin(self, experiment_id: str, origin: Origin) -> None:
        """Keep what an experiment was started with."""
        path = self._origin(experiment_id)
        _make_private(path.parent)
        atomic_write_json(
            path,
            {"environment": origin.environment, "gpu_environment": origin.gpu_environment, "secrets": origin.secrets},
            mode=0o600,
        )

    def origin(self, experiment_id: str) -> Origin:
        """What the experiment was started with; nothing when it is not known (any more)."""
        try:
            return Origin(**json.loads(self._origin(experiment_id).read_text()))
        except FileNotFoundError:
            return Origin()

    def forget_origin(self, experiment_id: str) -> None:
        """Remove what an experiment was started with."""
        self._origin(experiment_id).unlink(missing_ok=True)

    def resolve(self, workspace: str, name: str, origin: Origin) -> str | None:
        """The value of a secret for a replica: the store's, else the submitting process's, else None."""
        stored = self.read(workspace, name)
        return stored if stored is not None else origin.secrets.get(name)

    def redactor(self, workspace: str, spec: Mapping[str, object], experiment_id: str) -> Redactor:
        """Masks the values that a spec's ``secret`` entries stand for."""
        origin = self.origin(experiment_id)
        values = (self.resolve(workspace, name, origin) for name in secret_names(spec))
        return Redactor(value for value in values if value)

    def _workspace(self, workspace: str) -> Path:
        return self._folder / "workspaces" / quote(workspace, safe="")

    def _path(self, workspace: str, name: str) -> Path:
        return self._workspace(workspace) / name

    def _origin(self, experiment_id: str) -> Path:
        return self._folder / "experiments" / f"{experiment_id}.json"


def _make_private(folder: Path) -> None:
    """Make a folder and its missing parents, readable by nobody else."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)


def secret_names(spec: Mapping[str, object]) -> list[str]:
    """The secrets that a spec's tasks name, without repeats."""
    tasks = spec.get("tasks")
    return list(
        dict.fromkeys(
            str(entry["secret"])
            for task in (tasks if isinstance(tasks, list) else [])
            for entry in task.get("envVars") or ()
            if entry.get("secret") is not None
        )
    )
