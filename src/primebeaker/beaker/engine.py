"""The seam between what is launched and where it runs.

Two implementations: the ``beaker`` executable (:mod:`primebeaker.beaker.executable`) and the embedded engine
(:mod:`primebeaker.local`).  Nothing above this seam knows which one it talks to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from primebeaker.beaker.models import Account, CreatedExperiment, Experiment, ExperimentState, ImageRecord, Job, LogLine
from primebeaker.errors import ExternalError, PrimeBeakerError, UserError, did_you_mean

__all__ = [
    "ENGINE_NAMES",
    "Engine",
    "EngineName",
    "NameTaken",
    "PreflightAnswers",
    "UnclearOutcome",
    "choose_engine_name",
]

EngineName = Literal["beaker", "local"]
ENGINE_NAMES: tuple[EngineName, ...] = ("beaker", "local")


class UnclearOutcome(ExternalError):
    """The creating call ended without an answer: the experiment may exist, so nothing may be undone or repeated."""


class NameTaken(ExternalError):
    """The creating call was refused because another experiment has the name: what has it is not ours."""


@dataclass
class PreflightAnswers:
    """What an engine said before a launch; a question that could not be answered is under ``problems``."""

    account: Account
    #: Names of the workspace's secrets, or None when the engine could not list them.
    secrets: Sequence[str] | None = None
    #: Image -> its record, or None when the engine does not know it.
    images: dict[str, ImageRecord | None] = field(default_factory=dict)
    #: ``secrets`` or an image -> why there is no answer.
    problems: dict[str, PrimeBeakerError] = field(default_factory=dict)


class Engine(Protocol):
    """Create, look at and end experiments. Implementations inherit from it.

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

    def jobs(self, ids: Sequence[str]) -> Sequence[Job]:
        """The jobs of these ids."""
        ...

    def preflight(self, workspace: str, images: Sequence[str] = ()) -> PreflightAnswers:
        """What must be known before a launch: the account, the workspace's secrets, the images.

        Raises:
            ExternalError: There is no account; the other questions are answered or end up under ``problems``.
        """
        answers = PreflightAnswers(account=self.whoami())
        try:
            answers.secrets = self.secret_list(workspace)
        except PrimeBeakerError as error:
            answers.problems["secrets"] = error
        for image in images:
            try:
                answers.images[image] = self.image_get(image)
            except PrimeBeakerError as error:
                answers.problems[image] = error
        return answers


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
