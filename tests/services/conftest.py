"""Fixtures of the service stacks' tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class Recorder:
    """Recorder executables named ``docker`` and ``beaker``, first on ``PATH``."""

    directory: Path
    log: Path
    script: Path

    def answer(self, *rules: dict[str, Any]) -> None:
        """Set the scripted answers."""
        self.script.write_text(json.dumps(rules))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def words(self, program: str) -> list[list[str]]:
        """The arguments of all calls of one program."""
        return [call["argv"] for call in self.calls if call["program"] == program]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put recorders first on ``PATH``; without rules they answer as working programs do."""
    directory = tmp_path / "recorders"
    directory.mkdir()
    source = (Path(__file__).parent / "recorder.py").read_text()
    for program in ("docker", "beaker"):
        path = directory / program
        path.write_text(f"#!{sys.executable} -IS\n{source}")
        path.chmod(0o755)
    found = Recorder(directory, tmp_path / "calls.jsonl", tmp_path / "script.json")
    found.answer()
    monkeypatch.setenv("RECORDER_FILE", str(found.log))
    monkeypatch.setenv("RECORDER_SCRIPT", str(found.script))
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return found
