"""A joint run's files below a temporary mount, with recorders for ``beaker``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ..services.conftest import Recorder, primebeaker, recorder

__all__ = ["Recorder", "primebeaker", "recorder"]

EXAMPLES = Path(__file__).parents[2] / "examples" / "rl"
CREATE_SERVICE = ["--format", "experiment", "create", "-n"]
CREATE_RL = ["experiment", "create", "--name"]


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """The mount, with a multi-node and a single-node TOML."""
    folder = tmp_path / "mount"
    folder.mkdir()
    shutil.copy(EXAMPLES / "multinode.toml", folder / "train.toml")
    shutil.copy(EXAMPLES / "config.toml", folder / "single.toml")
    return folder


@pytest.fixture
def run_file(mount: Path) -> Callable[..., Path]:
    """Write the run file; keyword arguments replace lines of its sections, by key."""

    def write(
        *, service: str = "", rl: str = "", lifecycle: str = "", toml: str = "train.toml", head: str | None = None
    ) -> Path:
        path = mount / "run.yaml"
        head = f"sqlite://{mount}/reg/run.sqlite3" if head is None else head
        lines = [
            "schema: primebeaker.run/v1",
            "service:",
            *([f"  head_registry: {head}"] if head else []),
            f"  shared_dir: {mount}/shared",
            "  terminal_replicas: 4",
            "  web_search_replicas: 0",
            *(f"  {line}" for line in service.splitlines()),
            "rl:",
            f"  toml: {toml}",
            "  image: beaker://01ABC",
            "  workspace: ai2/training",
            f"  mount_path: {mount}",
            *(f"  {line}" for line in rl.splitlines()),
            "lifecycle:" if lifecycle else "",
            *(f"  {line}" for line in lifecycle.splitlines()),
        ]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def healthy(recorder: Recorder) -> Callable[..., None]:
    """Let the recorder answer as a Beaker on which everything works; rules given come first."""

    def answer(*rules: dict) -> None:
        recorder.answer(
            *rules,
            {
                "match": ["image", "get"],
                "stdout": json.dumps({"id": "01I", "committed": "2026-01-02T00:00:00Z"}),
            },
            {
                "match": ["secret", "list"],
                "stdout": json.dumps([{"name": name} for name in ("HF_TOKEN", "wandb_api_key", "BEAKER_TOKEN")]),
            },
            {"match": CREATE_SERVICE, "stdout": '{"id": "01SERVICE"}'},
            {"match": CREATE_RL, "stdout": '{"id": "01RL"}'},
        )

    answer()
    return answer


def changing(recorder: Recorder) -> list[list[str]]:
    """The calls that create or stop something, each as its telling words."""
    told = []
    for words in recorder.words("beaker"):
        if "create" in words:
            told.append(["create", "service" if "-n" in words else "rl"])
        elif "stop" in words:
            told.append(["stop", words[-1]])
    return told
