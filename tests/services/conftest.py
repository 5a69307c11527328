"""Fixtures of the service stacks' tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from primebeaker.cli import main


@dataclass(frozen=True)
class Outcome:
    """What one command line gave."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        """The error lines without their prefix."""
        prefix = "primebeaker: error: "
        return [line.removeprefix(prefix) for line in self.err.splitlines() if line.startswith(prefix)]


@pytest.fixture
def primebeaker(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run one command line in this process; output of child processes is captured too."""

    def call(*words: str) -> Outcome:
        capfd.readouterr()
        code = main(list(words))
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
