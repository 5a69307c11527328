"""A mounted bucket with training TOMLs in it, and ways to preview them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from primebeaker.cli import main
from primebeaker.config import dump_toml_document
from primebeaker.launch.plan import LaunchPlan, plan_launch
from primebeaker.launch.settings import LaunchSettings

SFT: dict[str, Any] = {
    "max_steps": 10,
    "output_dir": "runs/sft",
    "deployment": {"type": "single_node", "num_gpus": 2, "gpus_per_node": 2},
    "data": {"type": "sft", "name": "PrimeIntellect/Reverse-Text-SFT"},
    "val": {"interval": 2, "eval_on_start": True, "data": {"type": "sft", "name": "PrimeIntellect/Reverse-Text-SFT"}},
    "ckpt": {"interval": 5, "resume_step": -1},
    "wandb": {"project": "p", "name": "tiny-sft"},
}
RL: dict[str, Any] = {
    "max_steps": 10,
    "output_dir": "runs/rl",
    "deployment": {"type": "single_node", "gpus_per_node": 2, "num_train_gpus": 1, "num_infer_gpus": 1},
    "wandb": {"project": "p", "name": "tiny-rl"},
    "orchestrator": {"batch_size": 4, "train": {"source": [{"name": "a", "legacy": {"id": "x", "args": {}}}]}},
    "trainer": {"model": {}},
    "inference": {"parallel": {"tp": 1, "dp": 1}},
    "ckpt": {"interval": 5, "resume_step": -1},
}
SFT_NODES = {**SFT, "deployment": {"type": "multi_node", "num_nodes": 4, "gpus_per_node": 8}}
RL_NODES: dict[str, Any] = {
    **RL,
    "deployment": {"type": "multi_node", "gpus_per_node": 8, "num_train_nodes": 1, "num_infer_nodes": 2},
    "trainer": {"model": {"dp_replicate": 4}},
    "inference": {"parallel": {"tp": 2, "dp": 6}, "api_server_count": 6},
}
TOMLS = {"sft": SFT, "rl": RL, "sft-nodes": SFT_NODES, "rl-nodes": RL_NODES}


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` with dotted keys set, or removed where the value is None."""
    document: dict[str, Any] = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *tables, name = path.split(".")
        place = document
        for table in tables:
            place = place.setdefault(table, {})
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return document


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    path = tmp_path / "weka"
    path.mkdir()
    return path


@pytest.fixture
def toml(mount: Path) -> Callable[..., Path]:
    """Write a named base TOML with changes into the mount and return its path."""

    def write(base: str | Mapping[str, Any], changes: Mapping[str, Any] | None = None, name: str = "run.toml") -> Path:
        document = changed(TOMLS[base] if isinstance(base, str) else base, changes or {})
        path = mount / name
        path.write_text(dump_toml_document(document))
        return path

    return write


@pytest.fixture
def plan(mount: Path, toml: Callable[..., Path]) -> Callable[..., LaunchPlan]:
    """Plan a base TOML with changes and settings."""

    def make(base: str, changes: Mapping[str, Any] | None = None, **settings: Any) -> LaunchPlan:
        kind: Any = base.split("-")[0]
        if base == "rl-nodes":
            settings.setdefault("registry", "redis://host:6379")
        given = {"toml": toml(base, changes), "mount_path": str(mount), "launch_id": "l1", "wandb_run_id": "w1"}
        return plan_launch(kind, LaunchSettings(**{**given, **settings}))

    return make


@pytest.fixture
def lines(plan: Callable[..., LaunchPlan], mount: Path) -> Callable[..., list[str]]:
    """The error lines of a plan that must fail, the mount shown as ``/weka``."""

    def fail(base: str, changes: Mapping[str, Any] | None = None, **settings: Any) -> list[str]:
        with pytest.raises(ValueError) as caught:
            plan(base, changes, **settings)
        return str(caught.value).replace(str(mount), "/weka").splitlines()

    return fail


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line in this process: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def preview_cli(run_cli: Callable[..., tuple[int, str, str]], mount: Path) -> Callable[..., dict[str, Any]]:
    """A preview through the command line that must succeed: its document."""

    def run(kind: str, path: Path, *words: str) -> dict[str, Any]:
        code, out, err = run_cli(kind, "preview", f"--toml={path}", f"--mount-path={mount}", *words)
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return run


@pytest.fixture
def variables() -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """Plain variables of a spec's only task, and its secrets as ``secret:NAME``."""

    def read(spec: Mapping[str, Any]) -> dict[str, str]:
        entries = spec["tasks"][0]["envVars"]
        return {entry["name"]: entry.get("value", f"secret:{entry.get('secret')}") for entry in entries}

    return read
