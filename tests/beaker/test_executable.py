"""The engine over the `beaker` program, with a recorder in its place."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from primebeaker.beaker.engine import choose_engine_name
from primebeaker.beaker.executable import BeakerExecutable
from primebeaker.beaker.parse import parse_created, parse_experiment, parse_job, parse_json
from primebeaker.beaker.process import plain_text, run
from primebeaker.errors import ExternalError, UserError

ZERO = "0001-01-01T00:00:00Z"


def job(identifier="01J", rank=0, task="rl", **status):
    return {
        "id": identifier, "name": "task-0", "kind": "execution",
        "execution": {"task": "01T", "experiment": "01E", "replicaRank": rank, "spec": {"name": task}},
        "status": {"created": "2026-01-01T00:00:00Z", **status},
    }  # fmt: skip


def experiment(*jobs, **more):
    return {
        "id": "01E", "name": "me/exp", "fullName": "me/exp", "author": {"name": "me"}, "description": "d",
        "workspaceRef": {"fullName": "ai2/w"}, "created": "2026-01-01T00:00:00.123456789Z", "jobs": list(jobs), **more,
    }  # fmt: skip


def test_an_experiment_with_its_jobs(beaker) -> None:
    beaker.answer("experiment get", [experiment(job(started="2026-01-01T00:00:01Z", exited=ZERO, finalized=None))])
    found = BeakerExecutable().get("01E")
    assert (found.id, found.name, found.workspace, found.author, found.state) == (
        "01E",
        "exp",
        "ai2/w",
        "me",
        "running",
    )
    assert found.jobs[0].task == "rl"
    assert beaker.calls == [["experiment", "get", "01E", "--format", "json"]]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "created"),
        ({"scheduled": "2026-01-01T00:00:01Z"}, "scheduled"),
        ({"started": "2026-01-01T00:00:01Z"}, "running"),
        ({"started": "2026-01-01T00:00:01Z", "canceled": "2026-01-01T00:00:02Z"}, "running"),
        ({"canceled": "2026-01-01T00:00:02Z"}, "canceled"),
        ({"exited": "2026-01-01T00:00:02Z", "exitCode": 0}, "succeeded"),
        ({"exited": "2026-01-01T00:00:02Z", "exitCode": 7}, "failed"),
        ({"finalized": "2026-01-01T00:00:02Z", "canceled": "2026-01-01T00:00:02Z", "canceledCode": 1}, "preempted"),
        ({"failed": "2026-01-01T00:00:02Z"}, "failed"),
        ({"started": ZERO, "exited": ZERO, "finalized": ZERO}, "created"),
    ],
)
def test_job_states(status, state) -> None:
    assert parse_job(job(**status)).state == state


def test_the_newest_job_of_a_replica_counts() -> None:
    first = job("01A", finalized="2026-01-01T00:00:02Z", canceled="2026-01-01T00:00:02Z", canceledCode=1)
    second = {**job("01B", started="2026-01-01T00:00:04Z")}
    second["status"]["created"] = "2026-01-01T00:00:03Z"
    assert parse_experiment(experiment(second, first)).state == "running"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"stderr": "experiment not found\nhelp", "code": 1}, "beaker refused experiment 01E: experiment not found"),
        ({"stdout": "<html>"}, "beaker printed no JSON about experiment 01E: <html>"),
        ({"stdout": []}, "beaker gave no experiment 01E: expected one JSON object"),
    ],
)
def test_faults_are_one_line(beaker, answer, expected) -> None:
    beaker.answer("experiment get", **answer)
    with pytest.raises(ExternalError) as caught:
        BeakerExecutable().get("01E")
    assert str(caught.value) == expected


def test_reading_calls_end_in_time(beaker, monkeypatch) -> None:
    monkeypatch.setattr("primebeaker.beaker.executable.READ_TIMEOUT_SECONDS", 0.3)
    beaker.answer("account whoami", sleep=600, child=True)
    with pytest.raises(ExternalError, match="no answer within"):
        BeakerExecutable().whoami()


def test_list_is_newest_first_and_needs_a_workspace(beaker) -> None:
    old, new = experiment(), experiment(id="01F", created="2026-02-01T00:00:00Z")
    beaker.answer("workspace experiments ai2/w", [old, new])
    assert [found.id for found in BeakerExecutable().list(workspace="ai2/w")] == ["01F", "01E"]
    assert [found.id for found in BeakerExecutable().list(workspace="ai2/w", limit=1)] == ["01F"]
    with pytest.raises(UserError, match="--workspace"):
        BeakerExecutable().list()


def test_logs_of_every_job_with_times(beaker) -> None:
    beaker.answer("experiment get", [experiment(job("01A", 0), job("01B", 1))])
    beaker.answer("job logs 01A", "2026-01-01T00:00:01.5Z one\n2026-01-01T00:00:02Z \x1b[31mtwo\x1b[0m\nplain\n")
    beaker.answer("job logs 01B", "2026-01-01T00:00:01Z three")
    lines = list(BeakerExecutable().logs("01E"))
    assert [(line.replica_rank, line.text) for line in lines] == [(0, "one"), (0, "two"), (0, "plain"), (1, "three")]
    assert lines[0].timestamp == datetime(2026, 1, 1, 0, 0, 1, 500000, UTC)
    assert [line.text for line in BeakerExecutable().logs("01E", rank=1)] == ["three"]
    assert [line.text for line in BeakerExecutable().logs("01E", tail=1)] == ["plain", "three"]
    assert {line.text for line in BeakerExecutable().logs("01E", follow=True)} == {"one", "two", "plain", "three"}
    since = datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert [line.text for line in BeakerExecutable().logs("01E", rank=0, since=since)] == ["two", "plain"]


def test_wait_ends_with_the_experiment(beaker) -> None:
    beaker.answer("experiment get", [experiment(job(exited="2026-01-01T00:00:02Z", exitCode=7))])
    assert BeakerExecutable().wait("01E").state == "failed"
    beaker.answer("experiment get", [experiment(job())])
    with pytest.raises(TimeoutError):
        BeakerExecutable().wait("01E", timeout=0.1)


def test_a_stop_that_hangs_is_given_up(beaker, monkeypatch) -> None:
    monkeypatch.setattr("primebeaker.beaker.executable._STOP_TIMEOUT_SECONDS", 0.5)
    beaker.answer("experiment stop 01E", sleep=600)
    with pytest.raises(ExternalError, match="beaker refused experiment 01E: no answer in time"):
        BeakerExecutable().stop("01E")


def test_stop_and_jobs_and_images(beaker) -> None:
    engine = BeakerExecutable()
    beaker.answer("experiment stop 01E", "01E")
    engine.stop("01E")
    beaker.answer("experiment stop 01F", stderr="no such experiment", code=1)
    with pytest.raises(ExternalError, match="no such experiment"):
        engine.stop("01F")
    beaker.answer("job get", [job("01A"), job("01B", 1)])
    assert [found.id for found in engine.jobs(["01A", "01B"])] == ["01A", "01B"]
    assert engine.jobs([]) == ()
    beaker.answer("image get", stderr="Error: image not found", code=1)
    assert engine.image_get("me/x") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\x1b[32mExperiment 01X submitted. See progress at https://b.org/ex/01X\x1b[0m\n",
            ("01X", "https://b.org/ex/01X"),
        ),
        ("Experiment 01X submitted", ("01X", None)),
        ('[{"id": "01X", "name": "n"}]', ("01X", None)),
        ('uploading {50%}\n{"id": "01X"}', ("01X", None)),
        ("", (None, None)),
        ('[{"id": "a"}, {"id": "b"}]', (None, None)),
    ],
)
def test_what_a_creation_printed(text, expected) -> None:
    created = parse_created(text)
    assert (created.experiment_id, created.url) == expected
    assert "\x1b" not in created.stdout


def test_the_last_json_value_counts() -> None:
    assert parse_json('{"a": 1} then [{"b": 2}]') == [{"b": 2}]
    with pytest.raises(ValueError, match="no JSON"):
        parse_json("nothing { here")


def test_output_is_free_of_colours_and_credentials(recorder) -> None:
    program = recorder("tool")
    program.answer("x", "\x1b[1mbold\x1b[0m", stderr="token hf_" + "a" * 20, code=3)
    done = run([str(program.path), "x"], timeout=10)
    assert done.stdout == "bold"
    assert done.message == "token ***"
    assert plain_text("\x1b]8;;http://x\x07link\x1b]8;;\x07") == "link"


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ExternalError, match="/not/there cannot be run: No such file or directory"):
        run(["/not/there"], timeout=1)


def test_engine_names(monkeypatch) -> None:
    monkeypatch.delenv("PRIMEBEAKER_ENGINE", raising=False)
    assert choose_engine_name(None) == "beaker"
    monkeypatch.setenv("PRIMEBEAKER_ENGINE", "local")
    assert choose_engine_name(None) == "local"
    assert choose_engine_name("beaker") == "beaker"
    monkeypatch.setenv("PRIMEBEAKER_ENGINE", "lokal")
    with pytest.raises(
        UserError, match="PRIMEBEAKER_ENGINE = 'lokal': expected 'beaker' or 'local'; did you mean 'local'"
    ):
        choose_engine_name(None)
