"""Both experiments are found and stopped by receipt or by file, also after a crash of the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import CREATE_RL, CREATE_SERVICE, changing


@pytest.fixture
def config(primebeaker, run_file, recorder, healthy) -> Path:
    """The file of a run that was launched."""
    path = run_file()
    assert primebeaker("run", "launch", f"--config={path}", "--skip-preflight").code == 0
    recorder.log.unlink()
    return path


def _states(**states: str) -> list[dict]:
    return [
        {"match": ["experiment", "get", name], "stdout": json.dumps({"id": name, "state": state})}
        for name, state in {"01SERVICE": states["service"], "01RL": states["rl"]}.items()
    ]


@pytest.mark.parametrize(
    ("service", "rl", "code"),
    [("running", "running", 0), ("running", "failed", 4), ("canceled", "succeeded", 0), ("created", "preempted", 4)],
)
def test_status_tells_when_services_outlived_the_training(
    service: str, rl: str, code: int, primebeaker, config: Path, recorder
) -> None:
    recorder.answer(*_states(service=service, rl=rl))
    outcome = primebeaker("run", "status", f"--config={config}")
    assert outcome.code == code, outcome.err
    assert outcome.data == {"service": {"id": "01SERVICE", "state": service}, "rl": {"id": "01RL", "state": rl}}
    assert ("primebeaker run stop --receipt=" in outcome.err) is (code == 4)


def test_stop_ends_the_training_first(primebeaker, config: Path, recorder, mount: Path) -> None:
    recorder.answer(*_states(service="running", rl="running"))
    outcome = primebeaker("run", "stop", f"--receipt={mount}/primebeaker/runs/01SERVICE.json")
    assert outcome.code == 0, outcome.err
    assert changing(recorder) == [["stop", "01RL"], ["stop", "01SERVICE"]]


def test_stop_of_what_has_ended_succeeds(primebeaker, config: Path, recorder) -> None:
    recorder.answer(*_states(service="canceled", rl="failed"))
    outcome = primebeaker("run", "stop", f"--config={config}")
    assert outcome.code == 0
    assert changing(recorder) == []
    assert outcome.data["service"]["already_stopped"] is True


def test_a_dry_stop_calls_nothing(primebeaker, config: Path, recorder) -> None:
    outcome = primebeaker("run", "stop", f"--config={config}", "--dry-run")
    assert outcome.data["rl"]["command"] == ["beaker", "experiment", "stop", "01RL"]
    assert recorder.calls == []


@pytest.mark.parametrize("during", ["service", "rl"])
def test_a_launcher_that_was_killed_between_the_creations_leaves_a_way_to_both(
    during: str, primebeaker, recorder, healthy, run_file, mount: Path
) -> None:
    config = run_file()
    match = CREATE_SERVICE if during == "service" else CREATE_RL
    healthy({"match": match, "hang": 600})
    words = ["run", "launch", f"--config={config}", "--skip-preflight"]
    with subprocess.Popen([sys.executable, "-m", "primebeaker", *words], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while ["create", during] not in changing(recorder):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    # The call itself goes on without its launcher; here it would go on for long.
    (hanging,) = [call["pid"] for call in recorder.calls if call["rule"] == 0]
    with contextlib.suppress(ProcessLookupError):
        os.kill(hanging, signal.SIGKILL)
    (receipt,) = (mount / "primebeaker" / "runs").glob("*.json")
    state = json.loads(receipt.read_text())["state"]
    assert state == ("creating_service" if during == "service" else "service_created")
    recorder.answer({"match": ["experiment", "get"], "code": 1, "stderr": "lookup beaker.org: no such host"})
    assert primebeaker("run", "stop", f"--config={config}").code == 3, "what may run must not pass for stopped"
    created = {"created": "2099-01-01T00:00:00Z", "state": "running"}
    recorder.answer(
        {
            "match": ["experiment", "get", "me/primebeaker-tiny-rl-multinode"],
            "stdout": json.dumps({"id": "01RL", **created}),
        },
        *_states(service="running", rl="running"),
        {"match": ["experiment", "get"], "stdout": json.dumps({"id": "01SERVICE", **created})},
    )
    outcome = primebeaker("run", "status", f"--config={config}")
    expected_rl = {"id": None, "state": "missing"} if during == "service" else {"id": "01RL", "state": "running"}
    assert outcome.data == {"service": {"id": "01SERVICE", "state": "running"}, "rl": expected_rl}
    assert outcome.code == (4 if during == "service" else 0)
    assert primebeaker("run", "stop", f"--config={config}").code == 0
    stops = [call for call in changing(recorder) if call[0] == "stop"]
    assert stops == [["stop", "01RL"], ["stop", "01SERVICE"]][during == "service" :]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --receipt=PATH or --config=FILE"),
        (["--receipt=/no/such"], "receipt not found: /no/such"),
    ],
)
def test_wrong_arguments_are_one_line(words: list[str], message: str, primebeaker) -> None:
    outcome = primebeaker("run", "status", *words)
    assert outcome.code == 2
    assert outcome.errors[0].startswith(message)


def test_a_file_without_a_launch_has_no_receipt(primebeaker, run_file) -> None:
    outcome = primebeaker("run", "stop", f"--config={run_file()}", "--dry-run")
    assert outcome.code == 2
    assert outcome.errors[0].startswith(f"no receipt of {run_file()}")
