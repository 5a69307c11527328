"""The seam between what is launched and where it runs.

Two implementations: the ``beaker`` executable (:mod:`primebeaker.beaker.executable`) and the embedded engine
(:mod:`primebeaker.local`).  Nothing above this seam knows which one it talks to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from primebeaker.beaker.models import Account, CreatedExperiment, Experiment, ExperimentState, ImageRecord, LogLine
from primebeaker.errors import UserError, did_you_mean

__all__ = ["ENGINE_NAMES", "Engine", "EngineName", "choose_engine_name"]

EngineName = Literal["beaker", "local"]
ENGINE_NAMES: tuple[EngineName, ...] = ("beaker", "local")


class Engine(Protocol):
    """Create, look at and end experiments.

    Errors: :class:`~primebeaker.errors.UserError` for an unknown id or a refused spec of the embedded engine,
    :class:`~primebeaker.errors.ExternalError` when the engine cannot be reached, refuses, or times out.
    """

    name: EngineName

    def create(self, spec_path: Path, *, name: str, workspace: str) -> CreatedExperiment:
        """Create the experiment whose spec file is at ``spec_path``. Called once, never repeated."""
        ...

    def get(self, id_or_name: str) -> Experiment:
        """The experiment with all its jobs."""
        ...

    def list(
        self, *, workspace: str | None = None, state: ExperimentState | None = None, limit: int = 20
    ) -> Sequence[Experiment]:
        """Experiments, newest first."""
        ...

    def stop(self, id_or_name: str) -> None:
        """Stop it; stopping one that has ended succeeds."""
        ...

    def logs(
        self,
        id_or_name: str,
        *,
        rank: int | None = None,
        task: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> Iterator[LogLine]:
        """Log lines of a job or of every job of an experiment; ``follow`` ends when the experiment has ended."""
        ...

    def wait(self, id_or_name: str, *, timeout: float | None = None) -> Experiment:
        """The experiment once it has ended.

        Raises:
            TimeoutError: ``timeout`` seconds passed before.
        """
        ...

    def whoami(self) -> Account:
        """The account this engine acts for."""
        ...

    def secret_list(self, workspace: str) -> Sequence[str]:
        """Names (never values) of the workspace's secrets."""
        ...

    def image_get(self, reference: str) -> ImageRecord | None:
        """The image, or None when the engine does not know it."""
        ...


def choose_engine_name(flag: str | None) -> EngineName:
    """The engine of a command: its ``--engine`` flag, else ``PRIMEBEAKER_ENGINE``, else ``beaker``.

    Raises:
        UserError: The flag or variable names no engine.
    """
    value = flag if flag is not None else os.environ.get("PRIMEBEAKER_ENGINE") or "beaker"
    for name in ENGINE_NAMES:
        if value == name:
            return name
    origin = "--engine" if flag is not None else "PRIMEBEAKER_ENGINE"
    raise UserError(f"{origin} = {value!r}: expected 'beaker' or 'local'", hint=did_you_mean(value, ENGINE_NAMES))
