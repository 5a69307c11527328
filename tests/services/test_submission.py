"""Submitting goes through the native launcher in a session of its own, under the name that was planned."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from primebeaker.beaker.engine import UnclearOutcome
from primebeaker.errors import ExternalError, PrimeBeakerError, UserError
from primebeaker.services.deployment import Deployment, plan_deployment
from primebeaker.services.stack_config import given_by_flags
from primebeaker.services.stacks import STACKS, load_native
from primebeaker.services.submission import experiment_id_of, submit_stack

CREATE = ["experiment", "create"]


def _plan(stack: str = "base", **values: object) -> Deployment:
    return plan_deployment(load_native(STACKS[stack]), given_by_flags(values))


@pytest.fixture
def planned(tmp_path: Path) -> Deployment:
    return _plan(shared_dir=str(tmp_path / "shared"), head_registry=str(tmp_path / "head"))


def test_the_submitted_spec_is_the_planned_one(recorder, planned: Deployment, tmp_path: Path) -> None:
    receipt = submit_stack(planned).document()
    (call,) = recorder.calls
    assert call["argv"][:-1] == [
        "--format",
        "json",
        "experiment",
        "create",
        "-n",
        planned.experiment_name,
        "-w",
        planned.workspace,
    ]
    assert list(call["files"].values()) == [json.loads(json.dumps(planned.spec))]
    assert list(receipt) == ["experiment_name", "experiment_id", "beaker", "client_registry", "workspace", "stop"]
    assert receipt["experiment_id"].startswith("01EXP")
    assert receipt["stop"] == f"primebeaker services stop {receipt['experiment_id']}"
    # The native launcher's own directories are there, its spec file is not.
    assert (tmp_path / "head").stat().st_mode & 0o7777 == 0o1777
    assert not Path(call["argv"][-1]).exists()


def test_the_password_reaches_beaker_and_nothing_else(recorder, tmp_path: Path) -> None:
    deployment = _plan(registry="redis://u:hunter2@h:1", shared_dir=str(tmp_path))
    recorder.answer({"match": CREATE, "stdout": '{"id": "01A", "note": "redis://u:hunter2@h:1"}'})
    receipt = submit_stack(deployment)
    (call,) = recorder.calls
    assert "hunter2" in json.dumps(call["files"])
    assert "hunter2" not in json.dumps(receipt.document()) + json.dumps(call["argv"])


@pytest.mark.parametrize(
    ("printed", "experiment_id"),
    [
        ({"id": "01A"}, "01A"),
        ([{"id": "01A"}], "01A"),
        ({"experimentId": "01A", "id": "x"}, "01A"),
        ({"experiment_id": "01A", "jobs": [{"id": "01J"}]}, "01A"),
        ({"experiment": {"id": "01A"}}, "01A"),
        ({"experiments": [{"id": "01A"}]}, "01A"),
        ({"id": "", "experiment": {"id": "01A"}}, "01A"),
        ([{"id": "01A"}, {"id": "01A"}], "01A"),
        ([{"id": "01A"}, {"id": "01B"}], None),
        ({"jobs": [{"id": "01J"}], "tasks": [{"id": "01T"}]}, None),
        ([], None),
        ("01A", None),
    ],
)
def test_the_experiment_id_is_the_record_s_own(printed: object, experiment_id: str | None) -> None:
    assert experiment_id_of(printed) == experiment_id


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        ({"code": 1, "stderr": "Error: no such budget\nask someone"}, ExternalError, "no such budget ask someone"),
        ({"stdout": "Experiment 01A submitted"}, UnclearOutcome, "'Experiment 01A submitted'"),
        ({"stdout": '{"jobs": []}'}, UnclearOutcome, "no experiment ID"),
        ({"stdout": '[{"id": "1"}, {"id": "2"}]'}, UnclearOutcome, "several experiment IDs"),
        ({"kill": signal.SIGKILL}, UnclearOutcome, "beaker was killed by signal 9; experiment literegistry-base"),
    ],
)
def test_every_unclear_end_names_the_experiment(
    rule: dict, kind: type[PrimeBeakerError], words: str, recorder, planned: Deployment
) -> None:
    recorder.answer({"match": CREATE, **rule})
    with pytest.raises(kind) as caught:
        submit_stack(planned)
    assert caught.value.exit_code == 3
    assert words in str(caught.value)
    assert planned.experiment_name in str(caught.value)
    assert len(recorder.calls) == 1


def test_a_hanging_beaker_is_given_up_and_may_have_created_it(recorder, planned: Deployment) -> None:
    recorder.answer({"match": CREATE, "hang": 600})
    with pytest.raises(UnclearOutcome, match="gave no answer in time"):
        submit_stack(planned, limit=6)
    (call,) = recorder.calls
    assert call["argv"][2:4] == CREATE


def test_a_missing_beaker_creates_nothing(monkeypatch, tmp_path: Path, planned: Deployment) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExternalError, match="beaker is not on PATH, nothing was created"):
        submit_stack(planned)
    assert not (tmp_path / "shared").exists()


def test_the_engine_s_beaker_comes_first(recorder, planned: Deployment, tmp_path: Path) -> None:
    other = tmp_path / "engine"
    other.mkdir()
    (other / "beaker").write_text('#!/bin/sh\necho \'{"id": "01LOCAL"}\'\n')
    (other / "beaker").chmod(0o755)
    assert submit_stack(planned, beaker_directory=other).experiment_id == "01LOCAL"
    assert recorder.calls == []
    assert str(other) not in os.environ["PATH"]


@pytest.mark.parametrize(
    ("stack", "field", "given"),
    [
        ("base", "shared_dir", {"shared_dir": "{file}/shared"}),
        ("podman", "coordination_root", {"coordination_root": "{file}/coop"}),
        ("base", "head_registry", {"shared_dir": "{directory}", "head_registry": "{file}/head"}),
    ],
)
def test_a_directory_that_cannot_be_made_is_one_line_naming_its_field(
    stack: str, field: str, given: dict[str, str], recorder, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    values = {name: text.format(file=tmp_path / "file", directory=tmp_path) for name, text in given.items()}
    with pytest.raises(UserError) as caught:
        submit_stack(_plan(stack, **values))
    assert str(caught.value).startswith(f"{field}: {tmp_path / 'file'}")
    assert recorder.calls == []
