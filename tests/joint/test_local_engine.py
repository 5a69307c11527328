"""On the embedded engine both experiments really run, and the services end with the training, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from primebeaker.local import LocalEngine

from ..waiting import until
from .processes import holders

# Looked for among all processes of the machine, where other tests may run beside this one.
TOKEN = f"token-of-shell-{os.getpid()}"
#: Long enough for everything below on a busy machine.
PATIENCE = 90.0

# Stands in front of the installed companion: its own launcher and config, with every task a short command.
SHORT_TASKS = """
import importlib.machinery, importlib.util, os, sys, time
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
            # Whether this machine has the mount is of no account.
            task["datasets"] = [{**task["datasets"][0], "mountPath": "/no/such/mount"}]
        return name, spec

    def submit(self):
        gate = os.environ.get("TEST_SERVICE_GATE")
        if gate:
            open(gate + ".reached", "w").close()
            while not os.path.exists(gate):
                time.sleep(0.05)
        return super().submit()
"""

# The real launcher, halted before or after the creation of the training, so that it can be killed there.
HALTED = """
import sys, time
from pathlib import Path
from primebeaker.cli import main
from primebeaker.local import LocalEngine

moment, reached, *words = sys.argv[1:]
create = LocalEngine.create


def halt():
    Path(reached).touch()
    time.sleep(600)


def halting(self, *arguments, **keywords):
    if moment == "before":
        halt()
    made = create(self, *arguments, **keywords)
    if moment == "after":
        halt()
    return made


LocalEngine.create = halting
sys.exit(main(words))
"""


class Run(NamedTuple):
    """A joint run on the embedded engine."""

    config: Path
    service: str
    rl: str


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    """An embedded engine of its own, with the short tasks and a place for programs; nothing is left running."""
    package = tmp_path / "shadow" / "literegistry_base_deployment"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SHORT_TASKS)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, value in {
        "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine"),
        "PRIMEBEAKER_ENGINE": "local",
        "PYTHONPATH": str(package.parent),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "BEAKER_TOKEN": TOKEN,
        "WANDB_API_KEY": "key-of-the-shell",
        "HF_TOKEN": "token-of-the-hub",
    }.items():
        monkeypatch.setenv(name, value)
    engine = LocalEngine()
    yield engine
    for experiment in engine.list():
        engine.stop(experiment.id)


@pytest.fixture
def config(tmp_path: Path, run_file) -> Callable[[str], Path]:
    """A run file whose training is a shell script."""

    def write(program: str) -> Path:
        rl = tmp_path / "programs" / "rl"
        rl.write_text(f"#!/bin/sh\n{program}\n")
        rl.chmod(0o755)
        return run_file(toml="single.toml", head="", service="registry: redis://h:1")

    return write


@pytest.fixture
def launched(engine: LocalEngine, primebeaker, config) -> Callable[[str], Run]:
    """Launch a run whose training is a shell script."""

    def launch(program: str) -> Run:
        path = config(program)
        outcome = primebeaker("run", "launch", f"--config={path}")
        assert outcome.code == 0, outcome.err
        # Neither images nor secrets that this machine has anyhow are worth a word.
        assert "secret '" not in outcome.err
        assert "belongs to" not in outcome.err
        return Run(path, outcome.data["service_experiment_id"], outcome.data["rl"]["experiment_id"])

    return launch


def test_a_stack_really_runs_and_stops(engine: LocalEngine, primebeaker, tmp_path: Path) -> None:
    words = [f"--shared-dir={tmp_path}", "--registry=redis://h:1", "--yes"]
    receipt = primebeaker("services", "launch", *words).data
    identifier = receipt["experiment_id"]
    assert receipt["stop"] == f"primebeaker services stop {identifier} --engine=local"
    until(lambda: engine.get(identifier).state == "running", PATIENCE)
    status = primebeaker("services", "status", identifier).data
    assert [task["name"] for task in status["tasks"]] == ["cache", "gateway", "python", "search", "terminal"]
    command = ["primebeaker", "stop", identifier, "--engine=local"]
    assert primebeaker("services", "stop", identifier, "--dry-run").data == {"command": command, "dry_run": True}
    assert primebeaker("services", "stop", identifier).data == {"command": command, "dry_run": False}
    assert primebeaker("services", "status", identifier).data["state"] == "canceled"
    assert primebeaker("services", "stop", identifier).data["already_stopped"] is True


def _preempt(engine: LocalEngine, run: Run) -> None:
    engine.preempt(run.rl)


def _terminate(engine: LocalEngine, run: Run) -> None:
    engine.stop(run.rl)


@pytest.mark.parametrize(
    ("program", "strike", "state"),
    [
        ("sleep 1", None, "succeeded"),
        ("exit 7", None, "failed"),
        ("kill -9 $$", None, "failed"),
        ("touch {up}; exec sleep 600", _preempt, "preempted"),
        ("touch {up}; exec sleep 600", _terminate, "canceled"),
    ],
    ids=["success", "failure", "a killed trainer", "preemption", "a stopped training"],
)
def test_the_services_of_a_joint_run_end_with_its_training(
    program: str, strike, state: str, engine: LocalEngine, launched, primebeaker, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    run = launched(program.format(up=up))
    if strike is not None:
        until(up.exists, PATIENCE)
        strike(engine, run)
    until(lambda: engine.get(run.service).state == "canceled", PATIENCE)
    until(lambda: engine.get(run.rl).state == state, PATIENCE)
    outcome = primebeaker("run", "status", f"--config={run.config}")
    assert (outcome.code, outcome.data["rl"]["state"]) == (0, state)
    assert primebeaker("run", "stop", f"--config={run.config}").data["service"]["already_stopped"] is True


def test_a_killed_replica_cannot_clean_up_and_run_stop_does(
    engine: LocalEngine, launched, primebeaker, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    run = launched(f"touch {up}; exec sleep 600")
    until(up.exists, PATIENCE)
    (job,) = engine.store.jobs(run.rl)
    assert job.pid is not None
    os.killpg(job.pid, signal.SIGKILL)
    until(lambda: engine.get(run.rl).state == "failed", PATIENCE)
    assert engine.get(run.service).state == "running"
    status = primebeaker("run", "status", f"--config={run.config}")
    assert status.code == 4
    assert "the training is failed but its services still run" in status.err
    stopped = primebeaker("run", "stop", f"--config={run.config}")
    assert stopped.code == 0, stopped.err
    assert stopped.data["service"]["command"] == ["primebeaker", "stop", run.service, "--engine=local"]
    assert engine.get(run.service).state == "canceled"
    assert primebeaker("run", "status", f"--config={run.config}").code == 0


@pytest.mark.parametrize("moment", ["during", "before", "after"])
def test_a_launcher_killed_around_the_second_creation_leaves_a_way_to_everything(
    moment: str, engine: LocalEngine, config, primebeaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while the services are created, before the training is, or before it could note the training."""
    gate, reached = tmp_path / "gate", tmp_path / "reached"
    if moment == "during":
        monkeypatch.setenv("TEST_SERVICE_GATE", str(gate))
        reached = tmp_path / "gate.reached"
    path = config("exec sleep 600")
    words = ["run", "launch", f"--config={path}", "--skip-preflight"]
    command = [sys.executable, "-c", HALTED, moment, str(reached), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        until(reached.exists, PATIENCE)
        launcher.kill()
    # The call to Beaker has a session of its own and goes on without the launcher.
    gate.touch()
    made = 2 if moment == "after" else 1
    until(lambda: [one.state for one in engine.list()] == ["running"] * made, PATIENCE)
    status = primebeaker("run", "status", f"--config={path}")
    assert status.data["service"]["state"] == "running", status.err
    assert (status.code, status.data["rl"]["state"]) == ((0, "running") if moment == "after" else (4, "missing"))
    stopped = primebeaker("run", "stop", f"--config={path}")
    assert stopped.code == 0, stopped.err
    assert {experiment.state for experiment in engine.list()} == {"canceled"}
    assert primebeaker("run", "status", f"--config={path}").code == 0


def test_without_a_token_the_services_end_too(
    engine: LocalEngine, launched, primebeaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BEAKER_TOKEN")
    run = launched("exit 0")
    until(lambda: engine.get(run.service).state == "canceled", PATIENCE)
    until(lambda: engine.get(run.rl).state == "succeeded", PATIENCE)
    shown = primebeaker("services", "status", run.service, "--format=text").out.splitlines()
    assert shown[0].endswith(f"({run.service}) in ai2/oe-agents: canceled")
    assert [line.split()[:3] for line in shown[2:4]] == [["TASK", "RANK", "STATE"], ["gateway", "0", "canceled"]]


def test_the_token_reaches_the_training_s_leader_alone(
    engine: LocalEngine, launched, primebeaker, mount: Path, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    run = launched(f"sleep 600 & env >{tmp_path}/seen; echo $BEAKER_TOKEN; touch {up}; wait")
    until(up.exists, PATIENCE)
    until(lambda: engine.get(run.service).state == "running", PATIENCE)
    (leader,) = engine.store.jobs(run.rl)
    seen = holders(TOKEN)
    # Beaker itself puts the token into the environment of the task's first process, which may be a shell.
    assert {holder.experiment for holder in seen} == {run.rl}, seen
    assert all("primebeaker.multinode" in holder.command for holder in seen), seen
    assert {holder.group for holder in seen} == {leader.pid}, seen
    assert not any(TOKEN in holder.command for holder in seen)
    assert TOKEN not in (tmp_path / "seen").read_text()
    assert "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID" not in (tmp_path / "seen").read_text()
    assert primebeaker("run", "stop", f"--config={run.config}").code == 0
    shown = primebeaker("run", "preview", f"--config={run.config}")
    assert TOKEN not in shown.out + shown.err
    stored = [path for place in (mount, tmp_path / "engine") for path in place.rglob("*") if path.is_file()]
    assert json.loads((mount / "primebeaker" / "runs" / f"{run.service}.json").read_text())["state"] == "launched"
    # The embedded engine keeps secrets in one private folder.
    leaks = [path for path in stored if TOKEN.encode() in path.read_bytes() and "secrets" not in path.parts]
    assert leaks == []
