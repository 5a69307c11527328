"""Fixtures of the whole suite: recorder executables that stand in for `beaker` and `docker`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = r"""#!%(python)s -S
import json, os, sys, time
home = %(home)r
words = sys.argv[1:]
with open(home + "/calls.jsonl", "a") as stream:
    stream.write(json.dumps({"argv": words, "pid": os.getpid(), "env": {k: os.environ.get(k) for k in ("NO_COLOR",)}}) + "\n")
with open(home + "/answers.json") as stream:
    answers = json.load(stream)
line = " ".join(words)
match = max((key for key in answers if line.startswith(key)), key=len, default=None)
if match is None:
    sys.stderr.write("unexpected call: " + line + "\n")
    sys.exit(99)
answer = answers[match]
if answer.get("child"):
    import subprocess
    subprocess.Popen(["sleep", "600"])
time.sleep(answer.get("sleep", 0))
sys.stdout.write(answer.get("stdout", ""))
sys.stderr.write(answer.get("stderr", ""))
sys.stdout.flush()
sys.exit(answer.get("code", 0))
"""


class Recorder:
    """One program in a folder of its own.

    Args:
        home: Where the program, its answers and its calls are kept.
        name: The program's name.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.path = home / "bin" / name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._answers: dict[str, dict[str, Any]] = {}
        self.path.write_text(_PROGRAM % {"python": sys.executable, "home": str(home)})
        self.path.chmod(0o755)
        self._save()

    def answer(
        self, words: str, stdout: Any = "", *, stderr: str = "", code: int = 0, sleep: float = 0, child: bool = False
    ) -> None:
        """Answer calls that begin with ``words``; the longest match counts. A non-string stdout is printed as JSON."""
        text = stdout if isinstance(stdout, str) else json.dumps(stdout)
        self._answers[words] = {"stdout": text, "stderr": stderr, "code": code, "sleep": sleep, "child": child}
        self._save()

    @property
    def calls(self) -> list[list[str]]:
        """The words of each call, in the order they came."""
        return [entry["argv"] for entry in self._entries()]

    @property
    def pids(self) -> list[int]:
        """The process ids of the calls."""
        return [entry["pid"] for entry in self._entries()]

    def called(self, *words: str) -> list[list[str]]:
        """The calls that begin with ``words``."""
        return [call for call in self.calls if call[: len(words)] == list(words)]

    def _entries(self) -> list[dict[str, Any]]:
        path = self.home / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _save(self) -> None:
        (self.home / "answers.json").write_text(json.dumps(self._answers))


@pytest.fixture
def recorder(tmp_path: Path) -> Callable[[str], Recorder]:
    """Make a recorder of a name, in a folder of its own."""
    return lambda name: Recorder(tmp_path / f"{name}-recorder", name)


@pytest.fixture
def beaker(recorder: Callable[[str], Recorder], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A recorder in place of the `beaker` program, logged in, with the two default secrets and a finished image."""
    program = recorder("beaker")
    program.answer("account whoami", [{"id": "us_1", "name": "me"}])
    program.answer("secret list", [{"name": "WANDB_API_KEY"}, {"name": "HF_TOKEN"}])
    program.answer(
        "image get",
        [
            {
                "id": "01KZVDND2PYP538F5JSGJ469EC",
                "committed": "2026-08-12T16:42:40Z",
                "workspaceRef": {"fullName": "ai2/oe-agents"},
            }
        ],
    )
    program.answer(
        "experiment create",
        "Experiment \x1b[1m01EXPERIMENT\x1b[0m submitted. See progress at https://beaker.org/ex/01EXPERIMENT\n",
    )
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_BINARY", str(program.path))
    monkeypatch.delenv("PRIMEBEAKER_ENGINE", raising=False)
    return program
