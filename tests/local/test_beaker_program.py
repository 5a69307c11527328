"""The ``beaker`` program of the engine's home, called as launchers call the stock one."""

from __future__ import annotations

import json
import pty
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from primebeaker.local import LocalEngine
from primebeaker.local.ids import is_id

from ..waiting import until

Beaker = Callable[..., subprocess.CompletedProcess[str]]
Launch = Callable[..., str]


@pytest.fixture
def beaker(engine: LocalEngine) -> Beaker:
    def call(*words: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [engine.home.bin / "beaker", *words], capture_output=True, text=True, timeout=60, **options
        )
        assert result.returncode == code, result.stderr
        return result

    return call


def as_json(result: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(result.stdout)


def test_the_calls_of_literegistry_launchers(engine: LocalEngine, beaker: Beaker, write_spec: Callable[..., Path]):
    """``beaker --format json experiment create -n N -w W FILE``, then ``beaker experiment stop ID``."""
    spec = write_spec("exec sleep 600", context={"priority": "normal", "minRuntime": "0h", "autoResume": True})
    created = as_json(beaker("--format", "json", "experiment", "create", "-n", "stack", "-w", "ai2/lab", str(spec)))
    assert [set(one) for one in created] == [{"id", "name"}]
    experiment_id = created[0]["id"]
    assert is_id(experiment_id)
    assert engine.get("stack").id == experiment_id
    assert beaker("experiment", "stop", experiment_id).stdout == f"{experiment_id}\n"
    assert engine.wait(experiment_id, timeout=30).state == "canceled"


def test_create_tells_the_id_in_three_ways(beaker: Beaker, write_spec: Callable[..., Path]):
    spec = write_spec("true")
    text = beaker("experiment", "create", "--name=one", "--workspace=a/b", str(spec)).stdout
    experiment_id = text.split()[1]
    assert text == f"Experiment {experiment_id} submitted. See progress at local://ex/{experiment_id}\n"
    assert is_id(beaker("experiment", "create", "-n", "two", "--quiet", "-", input=spec.read_text()).stdout.strip())


def test_get_has_the_stock_shape(engine: LocalEngine, beaker: Beaker, launch: Launch):
    """Field by field, for a replica that failed and one that was canceled because of it."""
    script = 'test "$BEAKER_REPLICA_RANK" = 0 && sleep 0.2 && exit 7; exec sleep 600'
    experiment_id = launch(
        script,
        replicas=2,
        propagateFailure=True,
        envVars=[{"name": "T", "secret": "tok"}],
        result={"path": "/tmp/beaker-result"},
        context={"priority": "high"},
    )
    engine.wait(experiment_id, timeout=30)
    (shape,) = as_json(beaker("experiment", "get", experiment_id, "--format", "json"))
    author = {"id": shape["author"]["id"], "name": engine.account, "displayName": engine.account}
    workspace = {"id": shape["workspaceRef"]["id"], "name": "lab", "fullName": "ai2/lab"}
    assert {key: value for key, value in shape.items() if key not in ("jobs", "created")} == {
        "id": experiment_id,
        "name": f"{engine.account}/exp",
        "fullName": f"{engine.account}/exp",
        "author": author,
        "workspaceRef": workspace,
        "description": "a test",
        "state": "failed",
    }
    datetime.fromisoformat(shape["created"])
    failed, canceled = shape["jobs"]
    for rank, job in enumerate(shape["jobs"]):
        execution = job["execution"]
        assert set(job) == {"id", "name", "kind", "author", "workspace", "execution", "status"}
        assert (job["name"], job["kind"], job["author"], job["workspace"]) == (
            "main",
            "execution",
            author,
            workspace["id"],
        )
        assert set(execution) == {"task", "experiment", "replicaRank", "spec", "result"}
        assert (execution["experiment"], execution["replicaRank"]) == (experiment_id, rank)
        assert execution["spec"]["envVars"] == [{"name": "T", "secret": "tok"}]
        assert all(is_id(value) for value in (job["id"], execution["task"], execution["result"]["beaker"]))
        assert set(job["status"]) == {
            "created", "scheduled", "started", "exited", "failed", "finalized", "canceled", "canceledFor",
            "canceledCode", "exitCode", "message",
        }  # fmt: skip
        assert job["status"]["failed"] is None
        times = [datetime.fromisoformat(job["status"][key]) for key in ("created", "scheduled", "started", "exited")]
        assert times == sorted(times)
    assert _outcome(failed) == (None, None, None, 7, "ended with 7")
    reason = "canceled because main rank 0 ended with 7"
    assert _outcome(canceled) == (canceled["status"]["exited"], reason, 8, 143, reason)
    (same,) = as_json(beaker("job", "get", failed["id"], "--format=json"))
    assert same == failed
    assert as_json(beaker("--format", "json", "job", "list", "--experiment", experiment_id)) == shape["jobs"]


def _outcome(job: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("canceled", "canceledFor", "canceledCode", "exitCode", "message")
    return tuple(job["status"][name] for name in names)


def test_lists(engine: LocalEngine, beaker: Beaker, launch: Launch):
    first, second = launch("true", name="one"), launch("true", name="two")
    for experiment_id in (first, second):
        engine.wait(experiment_id, timeout=30)
    assert [one["id"] for one in as_json(beaker("experiment", "list", "--format", "json"))] == [second, first]
    assert as_json(beaker("workspace", "experiments", "ai2/other", "--format", "json")) == []
    assert beaker("workspace", "experiments", "ai2/lab", "--quiet").stdout.split() == [second, first]


def test_job_logs_and_stop(engine: LocalEngine, beaker: Beaker, launch: Launch):
    experiment_id = launch("echo hello; exec sleep 600")
    (job,) = engine.store.jobs(experiment_id)
    until(lambda: beaker("job", "logs", job.id, "--no-timestamps").stdout == "hello\n")
    stamp, _, text = beaker("job", "logs", job.id).stdout.partition(" ")
    assert datetime.fromisoformat(stamp).tzinfo is not None
    assert text == "hello\n"
    assert beaker("job", "stop", job.id).stdout == f"{job.id}\n"
    assert beaker("job", "logs", job.id, "--follow", "--no-timestamps").stdout == "hello\n"
    assert engine.wait(experiment_id, timeout=30).state == "canceled"


def test_secrets_are_read_through_a_pipe_only(engine: LocalEngine, beaker: Beaker):
    beaker("secret", "write", "--workspace", "a/b", "TOK", input="value-of-secret")
    (listed,) = as_json(beaker("secret", "list", "--workspace", "a/b", "--format", "json"))
    assert listed["name"] == "TOK"
    assert "value-of-secret" not in json.dumps(listed)
    assert beaker("secret", "read", "--workspace", "a/b", "TOK").stdout == "value-of-secret"
    _, theirs = pty.openpty()
    words = [engine.home.bin / "beaker", "secret", "read", "--workspace", "a/b", "TOK"]
    refused = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60)
    assert refused.returncode == 1
    assert "not printed on a terminal" in refused.stderr


def test_images_and_account(engine: LocalEngine, beaker: Beaker):
    (image,) = as_json(beaker("image", "get", "ai2/prime", "--workspace", "ai2/lab", "--format", "json"))
    assert (image["id"], image["workspaceRef"]["fullName"]) == ("ai2/prime", "ai2/lab")
    datetime.fromisoformat(image["committed"])
    assert "image not found" in beaker("image", "get", "not an image", code=1).stderr
    (account,) = as_json(beaker("account", "whoami", "--format", "json"))
    assert (account["id"], account["name"]) == (engine.whoami().id, engine.account)
    assert "primebeaker local engine" in beaker("--version").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster", "list"], "Error: cluster list: not supported by the local engine"),
        ([], "Error: beaker without a command: not supported by the local engine"),
        (["experiment", "stop", "nobody"], "Error: nobody: no such experiment"),
        (
            ["experiment", "list", "--frmat", "json"],
            "--frmat: not supported by the local engine; did you mean '--format'",
        ),
        (["experiment", "create", "-n", "x", "-w", "a/b", "nowhere.json"], "nowhere.json: cannot be read"),
        (["secret", "list"], "--workspace: is required"),
        (["job", "get", "01NOBODY"], "no such"),
    ],
)
def test_mistakes_end_with_1_as_the_stock_client(beaker: Beaker, words: list[str], message: str):
    result = beaker(*words, code=1)
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_a_spec_that_beaker_would_expand_is_refused(engine: LocalEngine, beaker: Beaker, write_spec, launch: Launch):
    """Raw template braces are refused; written as escapes they reach the task unchanged."""
    spec = write_spec("echo '{{.Env.HOME}}'")
    assert f"{spec}:1: holds '{{{{'" in beaker("experiment", "create", "-n", "x", str(spec), code=1).stderr
    spec.write_text(spec.read_text().replace("{{", r"\u007b\u007b").replace(".HOME}}", r".HOME\u007d\u007d"))
    beaker("experiment", "create", "-n", "y", str(spec))
    engine.wait("y", timeout=30)
    assert [line.text for line in engine.logs("y")] == ["{{.Env.HOME}}"]


def test_a_yaml_spec(engine: LocalEngine, beaker: Beaker, tmp_path: Path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "version: v2\ntasks:\n  - name: main\n    image: {beaker: x}\n    command: [sh, -c, 'echo $A']\n"
        "    envVars: [{name: A, value: no}]\n"
    )
    beaker("experiment", "create", "-n", "x", str(spec))
    engine.wait("x", timeout=30)
    assert [line.text for line in engine.logs("x")] == ["no"]
    spec.write_text("version: v2\ntasks: [}\n")
    assert f"{spec}:2" in beaker("experiment", "create", "-n", "z", str(spec), code=1).stderr
