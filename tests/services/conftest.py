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
from primebeaker.services.images.table import stack_images


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


_BUILD_SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
[[ -z "$1" ]]
for repository in {repositories}; do
  "$DOCKER_BIN" build --tag "$repository:$2" .
done
echo "built on stdout"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A LiteRegistry checkout whose companions' build scripts only call docker."""
    root = tmp_path / "checkout"
    for module, project, version, stack in (
        ("literegistry_base_deployment", "literegistry-base-deployment", "0.1.7", "base"),
        ("literegistry_podman_beaker", "literegistry-podman-beaker", "0.2.21", "podman"),
    ):
        folder = root / module
        (folder / "scripts").mkdir(parents=True)
        (folder / "docker").mkdir()
        (folder / "docker" / "Dockerfile.redis").write_text("FROM x\nARG LITEREGISTRY_VERSION=9.9.9\n")
        (folder / "pyproject.toml").write_text(f'[project]\nname = "{project}"\nversion = "{version}"\n')
        repositories = " ".join(image.repository for image in stack_images(stack, local_search=True))
        (folder / "scripts" / "build-images.sh").write_text(_BUILD_SCRIPT.format(repositories=repositories))
    return root


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "state"
