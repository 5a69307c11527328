"""On the embedded engine both experiments really run, and the services end with the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Stands in front of the installed companion: its own launcher and config, with every task a short command.
SHORT_TASKS = """
import importlib.machinery, importlib.util, sys
_here = __file__.rpartition("/literegistry_base_deployment/")[0]
_spec = importlib.machinery.PathFinder.find_spec(
    "literegistry_base_deployment", [place for place in sys.path if place != _here])
_spec = importlib.util.spec_from_file_location(
    "native_base_deployment", _spec.origin, submodule_search_locations=_spec.submodule_search_locations)
_native = importlib.util.module_from_spec(_spec)
sys.modules["native_base_deployment"] = _native
_spec.loader.exec_module(_native)
BaseDeploymentConfig = _native.BaseDeploymentConfig


class BaseDeploymentLauncher(_native.BaseDeploymentLauncher):
    def build_spec(self, *, experiment_name=None):
        name, spec = super().build_spec(experiment_name=experiment_name)
        for task in spec["tasks"]:
            task["command"] = ["bash", "-c", "echo up; exec sleep 600"]
            del task["datasets"]
        return name, spec
"""


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An embedded engine of its own, with the short tasks and a stand-in for ``rl``; nothing is left running."""
    package = tmp_path / "shadow" / "literegistry_base_deployment"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SHORT_TASKS)
    programs = tmp_path / "programs"
    programs.mkdir()
    environment = {
        **os.environ,
        "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine"),
        "PRIMEBEAKER_ENGINE": "local",
        "PYTHONPATH": str(package.parent),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "BEAKER_TOKEN": "token-of-the-shell",
        "WANDB_API_KEY": "key-of-the-shell",
        "HF_TOKEN": "token-of-the-hub",
    }
    yield environment
    listed = _run(environment, "list", check=False)
    for experiment in json.loads(listed.stdout) if listed.returncode == 0 else []:
        _run(environment, "stop", experiment["id"], check=False)


def _run(environment: dict[str, str], *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker", *words, "--format=json"], env=environment, capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def _until(environment: dict[str, str], words: list[str], holds, seconds: float = 60) -> dict:
    deadline = time.monotonic() + seconds
    while True:
        seen = _run(environment, *words, check=False)
        document = json.loads(seen.stdout) if seen.stdout else {}
        if document and holds(document):
            return document
        assert time.monotonic() < deadline, (document, seen.stderr)
        time.sleep(0.3)


def test_a_stack_really_runs_and_stops(local: dict[str, str], tmp_path: Path) -> None:
    launched = _run(local, "services", "launch", f"--shared-dir={tmp_path}", "--registry=redis://h:1", "--yes")
    identifier = json.loads(launched.stdout)["experiment_id"]
    status = _until(local, ["services", "status", identifier], lambda seen: seen["state"] == "running")
    assert [task["name"] for task in status["tasks"]] == ["cache", "gateway", "python", "search", "terminal"]
    _run(local, "services", "stop", identifier)
    assert json.loads(_run(local, "services", "status", identifier).stdout)["state"] == "canceled"
    assert json.loads(_run(local, "services", "stop", identifier).stdout)["already_stopped"] is True


@pytest.mark.parametrize(("program", "state"), [("sleep 1", "succeeded"), ("exit 7", "failed")])
def test_the_services_of_a_joint_run_end_with_its_training(
    program: str, state: str, local: dict[str, str], run_file, mount: Path, tmp_path: Path
) -> None:
    rl = tmp_path / "programs" / "rl"
    rl.write_text(f"#!/bin/sh\nenv >{tmp_path}/seen\n{program}\n")
    rl.chmod(0o755)
    config = run_file(toml="single.toml", head="", service="registry: redis://h:1")
    launched = json.loads(_run(local, "run", "launch", f"--config={config}").stdout)
    assert launched["service_experiment_id"] != launched["rl"]["experiment_id"]
    told = json.loads(_run(local, "run", "stop", f"--config={config}", "--dry-run").stdout)
    assert told["rl"]["command"] == ["primebeaker", "stop", launched["rl"]["experiment_id"], "--engine=local"]
    seen = _until(
        local,
        ["run", "status", f"--config={config}"],
        lambda seen: (seen["rl"]["state"], seen["service"]["state"]) == (state, "canceled"),
    )
    assert seen["service"]["id"] == launched["service_experiment_id"]
    assert "token-of-the-shell" not in (tmp_path / "seen").read_text()
