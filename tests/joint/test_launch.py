"""Both experiments are created, or neither stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from primebeaker.beaker.executable import BeakerExecutable
from primebeaker.joint.launch import RolledBack, launch_run
from primebeaker.joint.plan import plan_run

from ..waiting import until
from .conftest import CREATE_RL, CREATE_SERVICE, changing

FOUND = {"created": "2099-01-01T00:00:00Z", "jobs": []}


@pytest.fixture
def launch(primebeaker, run_file):
    return lambda *words, **parts: primebeaker("run", "launch", f"--config={run_file(**parts)}", *words)


def _receipts(mount: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in (mount / "primebeaker" / "runs").glob("*")]


def test_services_come_first_and_the_training_knows_them(launch, recorder, healthy, mount: Path) -> None:
    outcome = launch()
    assert outcome.code == 0, outcome.err
    assert changing(recorder) == [["create", "service"], ["create", "rl"]]
    assert list(outcome.data) == ["service_experiment_id", "service", "rl", "receipt"]
    assert outcome.data["service_experiment_id"] == "01SERVICE"
    (service, rl) = [next(iter(call["files"].values())) for call in recorder.calls if call["files"]]
    entries = rl["tasks"][0]["envVars"]
    assert {"name": "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID", "value": "01SERVICE"} in entries
    assert {"name": "BEAKER_TOKEN", "secret": "BEAKER_TOKEN"} in entries
    assert {"name": "WANDB_API_KEY", "secret": "wandb_api_key"} in entries, "as the workspace spells it"
    assert "BEAKER_TOKEN" not in json.dumps(service)
    (receipt,) = _receipts(mount)
    assert outcome.data["receipt"] == str(mount / "primebeaker" / "runs" / "01SERVICE.json")
    assert (receipt["state"], receipt["rl"]["experiment_id"]) == ("launched", "01RL")
    (copy,) = (mount / "outputs").rglob("primebeaker_run.json")
    assert json.loads(copy.read_text()) == receipt


def test_what_is_missing_in_either_workspace_stops_the_launch(launch, recorder, healthy, mount: Path) -> None:
    healthy(
        {"match": ["secret", "list", "ai2/training"], "stdout": '[{"name": "HF_TOKEN"}, {"name": "WANDB_API_KEY"}]'}
    )
    outcome = launch()
    assert outcome.code == 3
    assert outcome.errors[0].startswith("secret 'BEAKER_TOKEN' does not exist in workspace ai2/training")
    assert changing(recorder) == []
    assert not (mount / "primebeaker").exists()


def test_a_refused_training_stops_the_services(launch, recorder, healthy, mount: Path) -> None:
    healthy({"match": CREATE_RL, "code": 1, "stderr": "no such budget"})
    outcome = launch()
    assert (outcome.code, outcome.out) == (3, "")
    (line,) = outcome.errors
    assert line.index("no such budget") < line.index("stopped service experiment 01SERVICE")
    assert changing(recorder) == [["create", "service"], ["create", "rl"], ["stop", "01SERVICE"]]
    (receipt,) = _receipts(mount)
    assert (receipt["state"], receipt["rl"]) == ("rolled_back", None)


def test_a_lost_answer_stops_both(launch, recorder, healthy) -> None:
    name = "me/primebeaker-tiny-rl-multinode"
    healthy(
        {"match": CREATE_RL, "kill": signal.SIGKILL},
        {"match": ["experiment", "get", name], "stdout": json.dumps({"id": "01RL", **FOUND})},
    )
    outcome = launch()
    assert outcome.code == 3
    assert changing(recorder)[2:] == [["stop", "01RL"], ["stop", "01SERVICE"]]


def test_an_older_experiment_of_the_same_name_is_left_alone(launch, recorder, healthy) -> None:
    older = {"id": "01OLD", "created": "2020-01-01T00:00:00Z"}
    healthy(
        {"match": CREATE_RL, "kill": signal.SIGKILL},
        {"match": ["experiment", "get"], "stdout": json.dumps(older)},
    )
    assert launch().code == 3
    assert changing(recorder)[2:] == [["stop", "01SERVICE"]]


def test_a_name_that_is_taken_belongs_to_another_launch_however_young(launch, recorder, healthy) -> None:
    healthy(
        {"match": CREATE_RL, "code": 1, "stderr": "name already in use"},
        {"match": ["experiment", "get"], "stdout": json.dumps({"id": "01OTHER", **FOUND})},
    )
    outcome = launch()
    assert outcome.code == 3
    assert changing(recorder)[2:] == [["stop", "01SERVICE"]]


def test_a_refused_stack_leaves_nothing(launch, recorder, healthy, mount: Path) -> None:
    healthy({"match": CREATE_SERVICE, "code": 1, "stderr": "no"})
    outcome = launch()
    assert outcome.code == 3
    assert changing(recorder) == [["create", "service"]]
    assert _receipts(mount) == []


def test_a_stack_whose_answer_was_lost_is_found_and_stopped(launch, recorder, healthy) -> None:
    healthy(
        {"match": CREATE_SERVICE, "stdout": "junk"},
        {"match": ["experiment", "get"], "stdout": json.dumps({"id": "01FOUND", **FOUND})},
    )
    outcome = launch()
    assert outcome.code == 3
    assert changing(recorder) == [["create", "service"], ["stop", "01FOUND"]]


def test_an_unclear_stack_that_cannot_be_found_keeps_its_receipt(launch, recorder, healthy, mount: Path) -> None:
    healthy({"match": CREATE_SERVICE, "stdout": "junk"})
    outcome = launch()
    assert outcome.code == 3
    assert "literegistry-base" in outcome.errors[0]
    (receipt,) = _receipts(mount)
    assert (receipt["state"], receipt["service"]["experiment_id"]) == ("creating_service", None)


@pytest.mark.parametrize("reason", ["server error", "dial tcp: lookup beaker.org: no such host"])
def test_services_that_cannot_be_stopped_are_told_with_the_command(
    reason: str, recorder, healthy, run_file, mount: Path
) -> None:
    healthy(
        {"match": CREATE_RL, "code": 1, "stderr": "no"},
        {"match": ["experiment", "stop"], "code": 1, "stderr": reason},
    )
    pauses: list[float] = []
    with pytest.raises(RolledBack) as caught:
        launch_run(plan_run(run_file()), BeakerExecutable(), sleep=pauses.append)
    assert caught.value.exit_code == 3
    assert str(caught.value).endswith("beaker experiment stop 01SERVICE")
    assert pauses == [2, 4]
    assert [receipt["state"] for receipt in _receipts(mount)] == ["rollback_failed"]


def test_a_scratch_directory_that_cannot_be_written_stops_before_anything(
    launch, recorder, healthy, mount: Path
) -> None:
    (mount / "primebeaker").write_text("in the way")
    outcome = launch()
    assert outcome.code == 2
    assert changing(recorder) == []


def test_a_spec_that_cannot_be_written_stops_the_services(launch, recorder, healthy, mount: Path) -> None:
    (mount / "primebeaker").mkdir()
    (mount / "primebeaker" / "beaker_experiments").write_text("in the way")
    outcome = launch()
    assert outcome.code == 2
    assert changing(recorder) == [["create", "service"], ["stop", "01SERVICE"]]


@pytest.mark.parametrize(("state", "code"), [("running", 2), ("failed", 0)])
def test_a_second_launch_is_refused_while_the_first_is_active(state: str, code: int, launch, recorder, healthy) -> None:
    assert launch().code == 0
    healthy({"match": ["experiment", "get", "01RL"], "stdout": json.dumps({"id": "01RL", "state": state})})
    second = launch()
    assert second.code == code, second.err
    if code:
        assert "01RL" in second.errors[0]
        assert "01SERVICE" in second.errors[0]
        assert "primebeaker run status --receipt=" in second.errors[0]
        assert launch("--force").code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("during", ["service", "rl"])
def test_a_signal_waits_for_the_call_and_takes_everything_back(
    number: int, during: str, recorder, healthy, run_file, mount: Path
) -> None:
    match = CREATE_SERVICE if during == "service" else CREATE_RL
    made = "01SERVICE" if during == "service" else "01RL"
    healthy({"match": match, "hang": 1.5, "stdout": json.dumps({"id": made})})
    words = ["run", "launch", f"--config={run_file()}", "--skip-preflight"]
    with subprocess.Popen([sys.executable, "-m", "primebeaker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while ["create", during] not in changing(recorder):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, ""), err
    stops = [["stop", "01SERVICE"]] if during == "service" else [["stop", "01RL"], ["stop", "01SERVICE"]]
    assert [call for call in changing(recorder) if call[0] == "stop"] == stops
    assert "stopped service experiment 01SERVICE" in err
    assert [receipt["state"] for receipt in _receipts(mount)] == ["rolled_back"]


def test_a_signal_while_the_stack_s_answer_is_lost_keeps_its_code_and_what_may_exist(
    recorder, healthy, run_file, mount: Path
) -> None:
    healthy({"match": CREATE_SERVICE, "hang": 1.5, "stdout": "junk"})
    words = ["run", "launch", f"--config={run_file()}", "--skip-preflight"]
    with subprocess.Popen([sys.executable, "-m", "primebeaker", *words], stderr=subprocess.PIPE, text=True) as process:
        until(lambda: ["create", "service"] in changing(recorder), 60)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "was probably created and may be running" in err
    assert [receipt["state"] for receipt in _receipts(mount)] == ["creating_service"]


def test_a_hanging_creation_ends_in_a_rollback(recorder, healthy, launch, monkeypatch) -> None:
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_TIMEOUT_SECONDS", "2")
    healthy({"match": CREATE_RL, "hang": 600})
    outcome = launch("--skip-preflight")
    assert outcome.code == 3
    assert changing(recorder)[2:] == [["stop", "01SERVICE"]]


def test_only_the_third_ctrl_c_leaves_the_clean_up_and_it_tells_the_command(recorder, healthy, run_file) -> None:
    healthy(
        {"match": CREATE_RL, "code": 1, "stderr": "no"},
        {"match": ["experiment", "stop"], "hang": 600},
    )
    words = ["run", "launch", f"--config={run_file()}", "--skip-preflight"]
    with subprocess.Popen([sys.executable, "-m", "primebeaker", *words], stderr=subprocess.PIPE, text=True) as process:
        until(lambda: ["stop", "01SERVICE"] in changing(recorder), 60)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            # Two signals that are not yet delivered would count as one.
            time.sleep(0.3)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "primebeaker: beaker experiment stop 01SERVICE\n" in err
