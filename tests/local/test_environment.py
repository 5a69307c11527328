"""What a replica sees, and what it must not see."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from primebeaker.local import LocalEngine
from primebeaker.local.ids import is_id
from primebeaker.local.secret_store import SecretStore

from ..waiting import until

Launch = Callable[..., str]


def environment_of(engine: LocalEngine, experiment_id: str, rank: int = 0) -> dict[str, str]:
    """What the replica's ``env`` printed, before anything is masked."""
    engine.wait(experiment_id, timeout=30)
    job = next(job for job in engine.store.jobs(experiment_id) if job.replica_rank == rank)
    return dict(line.split("=", 1) for line in Path(job.log_path).read_text().split("\0") if "=" in line)


def test_a_replica_knows_its_place(engine: LocalEngine, launch: Launch):
    experiment_id = launch("env -0", replicas=2, leaderSelection=True, resources={"gpuCount": 0})
    seen = environment_of(engine, experiment_id, rank=1)
    job = engine.store.jobs(experiment_id)[1]
    folder = engine.home.job(experiment_id, job.id)
    expected = {
        "BEAKER_JOB_ID": job.id,
        "BEAKER_TASK_ID": job.task_id,
        "BEAKER_EXPERIMENT_ID": experiment_id,
        "BEAKER_WORKLOAD_ID": experiment_id,
        "BEAKER_JOB_KIND": "batch",
        "BEAKER_REPLICA_RANK": "1",
        "BEAKER_REPLICA_COUNT": "2",
        "BEAKER_LEADER_REPLICA_HOSTNAME": "127.0.0.1",
        "BEAKER_NODE_HOSTNAME": "127.0.0.1",
        "BEAKER_ASSIGNED_GPU_COUNT": "0",
        "PRIMEBEAKER_LOCAL_ENGINE": "1",
        "PRIMEBEAKER_LOCAL_RESULT_DIR": str(folder / "result"),
        "TMPDIR": str(folder / "tmp"),
        "VIRTUAL_ENV": sys.prefix,
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert seen["BEAKER_LEADER_REPLICA_NODE_ID"] == seen["BEAKER_NODE_ID"]
    assert is_id(seen["BEAKER_NODE_ID"])
    assert is_id(seen["BEAKER_RESULT_DATASET_ID"])
    assert seen["PATH"].split(":")[:2] == [f"{sys.prefix}/bin", str(engine.home.bin)]
    assert (folder / "result").is_dir()


def test_the_leader_is_named_only_when_one_was_asked_for(engine: LocalEngine, launch: Launch):
    assert "BEAKER_LEADER_REPLICA_HOSTNAME" not in environment_of(engine, launch("env -0"))


def test_nothing_of_the_submitting_shell_leaks_in(engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch):
    """A few base variables come along; tokens and GPUs of the shell do not."""
    for name in ("BEAKER_TOKEN", "WANDB_API_KEY", "HF_TOKEN", "MY_OWN", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
        monkeypatch.setenv(name, "leak")
    kept = {"LC_TIME": "C", "TZ": "UTC", "https_proxy": "http://proxy:1", "PRIMEBEAKER_LOCAL_X": "kept"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    seen = environment_of(engine, launch("env -0"))
    assert "leak" not in seen.values()
    assert {name: seen.get(name) for name in kept} == kept
    allowed = {
        "HOME",
        "PATH",
        "LANG",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "VIRTUAL_ENV",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }
    own = ("BEAKER_", "PRIMEBEAKER_", "LC_")
    known = {
        *allowed,
        *kept,
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "no_proxy",
        "all_proxy",
    }
    known |= {
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "PIP_CERT",
    }
    assert {name for name in seen if not name.startswith(own)} <= known


def test_gpus_of_the_shell_are_passed_to_tasks_that_ask_for_gpus(
    engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    seen = environment_of(engine, launch("env -0", resources={"gpuCount": 2}))
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["BEAKER_ASSIGNED_GPU_COUNT"]) == ("4,5", "2")


def test_the_spec_sets_variables_but_not_its_own_place(engine: LocalEngine, launch: Launch):
    variables = [{"name": "A", "value": "x=y\nz"}, {"name": "TMPDIR", "value": "/tmp"}, {"name": "EMPTY", "value": ""}]
    variables.append({"name": "BEAKER_REPLICA_RANK", "value": "9"})
    seen = environment_of(engine, launch("env -0", envVars=variables))
    assert (seen["A"], seen["TMPDIR"], seen["EMPTY"], seen["BEAKER_REPLICA_RANK"]) == ("x=y\nz", "/tmp", "", "0")


def test_secrets_reach_replicas_and_no_other_file(engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch):
    """From the store first, else the submitting process; an unknown one stays unset, with an event."""
    engine.secrets.write("ai2/lab", "stored", "value-of-stored-secret")
    monkeypatch.setenv("from_shell", "value-of-shell-secret")
    monkeypatch.setenv("stored", "value-that-loses")
    variables = [{"name": name.upper(), "secret": name} for name in ("stored", "from_shell", "nowhere")]
    script = 'echo "$STORED $FROM_SHELL ${NOWHERE-unset}" | rev'
    experiment_id = launch(script, envVars=variables)
    engine.wait(experiment_id, timeout=30)
    assert [line.text[::-1] for line in engine.logs(experiment_id)] == [
        "value-of-stored-secret value-of-shell-secret unset"
    ]
    details = [event.detail for event in engine.store.events(experiment_id)]
    assert details.count("secret nowhere not available locally") == 1
    for path in engine.home.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(engine.home.secrets):
            data = path.read_bytes()
            assert b"value-of" not in data, path
    modes = {path.stat().st_mode & 0o077 for path in engine.home.secrets.rglob("*")}
    assert modes == {0}


def test_logs_show_no_secret(engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN_S", "value-of-shell-secret")
    experiment_id = launch('echo "it is $T."', envVars=[{"name": "T", "secret": "TOKEN_S"}])
    engine.wait(experiment_id, timeout=30)
    monkeypatch.delenv("TOKEN_S")
    assert [line.text for line in engine.logs(experiment_id)] == ["it is ***."]


def test_a_restart_keeps_the_environment_of_the_submission(
    engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("TOKEN_S", "value-of-shell-secret")
    experiment_id = launch('echo "$TZ" "${#T}"', envVars=[{"name": "T", "secret": "TOKEN_S"}])
    engine.wait(experiment_id, timeout=30)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("TOKEN_S")
    engine.restart(experiment_id)
    engine.wait(experiment_id, timeout=30)
    assert [line.text for line in engine.logs(experiment_id)] == ["Europe/Berlin 21"] * 2


@pytest.mark.parametrize("rehearsing", [True, False])
def test_stand_ins_come_first_only_in_a_rehearsal(
    engine: LocalEngine, launch: Launch, tmp_path: Path, rehearsing: bool
):
    """The folder goes first on PATH where the replica's environment has PRIMEBEAKER_REHEARSAL=1."""
    stand_in = tmp_path / "stand-ins" / "env"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\necho stand-in $EXTRA\n")
    stand_in.chmod(0o755)
    variables = [{"name": "PRIMEBEAKER_REHEARSAL", "value": "1"}] if rehearsing else []
    experiment_id = launch(
        "env | head -n 1 | cut -c1-8",
        envVars=variables,
        datasets=[{"mountPath": "/nowhere/at/all", "source": {"weka": "bucket"}}],
        resources={"gpuCount": 64},
        rehearsal={"path_prepend": [str(stand_in.parent)], "env": {"EXTRA": "more"}, "faults": ["kept"]},
    )
    engine.wait(experiment_id, timeout=30)
    lines = [line.text for line in engine.logs(experiment_id)]
    assert (lines == ["stand-in"]) == rehearsing
    row = engine.store.experiment(experiment_id)
    assert row is not None
    assert row.rehearsal is not None
    assert row.rehearsal["faults"] == ["kept"]


def test_more_gpus_than_there_are_is_a_warning(engine: LocalEngine, write_spec: Callable[..., Path]):
    lines: list[str] = []
    told = LocalEngine(engine.home.root, warn=lines.extend)
    told.create(write_spec("true", resources={"gpuCount": 999}), name="gpus", workspace="a/b")
    assert len(lines) == 1
    assert lines[0].startswith("a task asks for 999 GPUs, this machine has ")


def test_secret_names_are_compared_without_case(tmp_path: Path):
    store = SecretStore(tmp_path / "secrets")
    store.write("a/b", "wandb_api_key", "x")
    assert store.read("a/b", "WANDB_API_KEY") == "x"
    assert store.read("a/other", "WANDB_API_KEY") is None
    assert store.names("a/b") == ["wandb_api_key"]


def test_a_replica_makes_experiments_of_its_own_that_outlive_it(
    engine: LocalEngine, launch: Launch, write_spec: Callable[..., Path], tmp_path: Path
):
    """``beaker`` on a replica's PATH is this engine's; what it creates goes on when the replica has ended."""
    inner = write_spec(f"while ! test -e {tmp_path}/go; do sleep 0.02; done; echo inner done")
    outer = launch(f"beaker --quiet experiment create -n inner -w a/b {inner}", name="outer")
    assert engine.wait(outer, timeout=30).state == "succeeded"
    assert engine.get("inner").state == "running"
    (tmp_path / "go").touch()
    assert engine.wait("inner", timeout=30).state == "succeeded"
    until(lambda: [line.text for line in engine.logs("inner")] == ["inner done"])


def test_the_home_is_private(engine: LocalEngine):
    assert engine.home.root.stat().st_mode & 0o077 == 0
    assert engine.home.database.stat().st_mode & 0o077 == 0
    assert os.access(engine.home.bin / "beaker", os.X_OK)
