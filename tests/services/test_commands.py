"""``services launch|status|stop``: preflight, one JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..waiting import until

GOOD_IMAGE = {
    "match": ["image", "get"],
    "stdout": json.dumps({"id": "01I", "workspaceRef": {"fullName": "ai2/test"}, "committed": "2026-01-02T00:00:00Z"}),
}
SECRETS = {
    "match": ["secret", "list"],
    "stdout": json.dumps([{"name": "serper_api_key"}, {"name": "JINA_API_KEY"}]),
}
CREATED = {"match": ["experiment", "create"], "stdout": '{"id": "01EXP"}'}


@pytest.fixture
def launch(primebeaker, recorder, tmp_path: Path):
    def call(*words: str):
        return primebeaker("services", "launch", "--workspace=ai2/test", f"--shared-dir={tmp_path / 'shared'}", *words)

    return call


def _created(recorder) -> list[list[str]]:
    return [words for words in recorder.words("beaker") if words[2:4] == ["experiment", "create"]]


def test_a_launch_prints_the_receipt_alone(launch, recorder) -> None:
    recorder.answer(GOOD_IMAGE, SECRETS, CREATED)
    outcome = launch("--registry=redis://u:hunter2@h:1")
    assert outcome.code == 0, outcome.err
    assert outcome.data["experiment_id"] == "01EXP"
    assert outcome.data["client_registry"] == "redis://u:***@h:1"
    assert "hunter2" not in outcome.out + outcome.err
    (call,) = [call for call in recorder.calls if call["files"]]
    assert "redis://u:hunter2@h:1" in json.dumps(call["files"])


def test_missing_secrets_and_images_stop_the_launch_and_are_all_named(launch, recorder, tmp_path: Path) -> None:
    recorder.answer(
        {"match": ["image", "get", "goncalof/literegistry-base-terminal"], "code": 1, "stderr": "Error: Not Found"},
        {
            "match": ["image", "get", "goncalof/literegistry-redis"],
            "stdout": '{"id": "01I", "committed": "0001-01-01T00:00:00Z"}',
        },
        GOOD_IMAGE,
        {"match": ["secret", "list"], "stdout": "[]"},
    )
    outcome = launch()
    assert (outcome.code, outcome.out) == (3, "")
    for words in (
        "secret 'SERPER_API_KEY' does not exist in workspace ai2/test",
        "beaker secret write --workspace ai2/test JINA_API_KEY",
        "terminal_image: image 'goncalof/literegistry-base-terminal' does not exist",
        "redis_image: image 'goncalof/literegistry-redis' is not committed",
        "primebeaker services images install --workspace=ai2/test",
    ):
        assert words in outcome.err
    assert _created(recorder) == []
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize(
    "rules",
    [
        [{"match": ["image", "get"], "code": 1, "stderr": "boom"}, {"match": ["secret", "list"], "code": 1}],
        [{"match": ["image", "get"], "stdout": "junk"}, {"match": ["secret", "list"], "stdout": "junk"}],
        [
            {"match": ["image", "get"], "stdout": "{}"},
            {"match": ["secret", "list"], "code": 2, "stderr": "no such command"},
        ],
        [
            {**GOOD_IMAGE, "stdout": GOOD_IMAGE["stdout"].replace("ai2/test", "ai2/other")},
            SECRETS,
        ],
    ],
    ids=["refuses", "junk", "no id", "another workspace"],
)
def test_what_cannot_be_answered_is_a_warning_only(rules: list[dict], launch, recorder) -> None:
    recorder.answer(*rules, CREATED)
    outcome = launch()
    assert outcome.code == 0, outcome.err
    assert "primebeaker: warning: " in outcome.err
    assert outcome.data["experiment_id"] == "01EXP"


def test_skipping_the_preflight_asks_nothing(launch, recorder) -> None:
    recorder.answer(CREATED)
    assert launch("--skip-preflight").code == 0
    assert len(recorder.calls) == 1


def test_a_preview_asks_only_with_preflight(primebeaker, recorder) -> None:
    recorder.answer(GOOD_IMAGE, SECRETS)
    assert primebeaker("services", "preview").code == 0
    assert recorder.calls == []
    outcome = primebeaker("services", "preview", "--preflight")
    assert outcome.code == 0, outcome.err
    assert {tuple(words[:2]) for words in recorder.words("beaker")} == {
        ("account", "whoami"),
        ("secret", "list"),
        ("image", "get"),
    }


def test_a_used_directory_that_becomes_world_writable_is_warned_of(launch, recorder, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir(mode=0o755)
    (head / "file").write_text("")
    recorder.answer(CREATED)
    words = ["--skip-preflight", f"--head-registry={head}"]
    outcome = launch(*words)
    assert f"{head} has mode 0755 and is not empty" in outcome.err
    assert head.stat().st_mode & 0o7777 == 0o1777
    head.chmod(0o755)
    assert "is not empty" not in launch(*words, "--yes").err
    sqlite = launch("--skip-preflight", f"--head-registry=sqlite://{tmp_path}/head/r.db")
    assert "is not empty" not in sqlite.err, "it has the mode already"


def test_a_yaml_launch_submits(primebeaker, recorder, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        f"schema: primebeaker.services/v1\nservices:\n  coordination_root: {tmp_path}\n  podman_replicas: 1\n"
    )
    recorder.answer(CREATED)
    outcome = primebeaker(
        "services",
        "podman",
        "yaml",
        "launch",
        f"--config={tmp_path / 's.yaml'}",
        "--skip-preflight",
        "--podman-replicas=2",
    )
    assert outcome.code == 0, outcome.err
    assert outcome.data["experiment_name"].startswith("literegistry-podman")


def test_stop_prints_the_command_and_keeps_beaker_s_words_off_stdout(primebeaker, recorder) -> None:
    recorder.answer({"match": ["experiment", "stop"], "stdout": "Stopping 01A\n"})
    outcome = primebeaker("services", "stop", "01A")
    assert outcome.data == {"command": ["beaker", "experiment", "stop", "01A"], "dry_run": False}
    assert ["experiment", "stop", "01A"] in recorder.words("beaker")


def test_stopping_what_has_ended_is_success(primebeaker, recorder) -> None:
    ended = dict.fromkeys(("canceled", "finalized"), "2026-01-02T00:00:00Z")
    job = {"id": "01J", "execution": {"spec": {"name": "redis"}}, "status": ended}
    recorder.answer({"match": ["experiment", "get"], "stdout": json.dumps({"id": "01A", "jobs": [job]})})
    assert primebeaker("services", "podman", "stop", "01A").data["already_stopped"] is True


def test_a_dry_stop_calls_nothing(primebeaker, recorder) -> None:
    assert primebeaker("services", "stop", "01A", "--dry-run").data["dry_run"] is True
    assert recorder.calls == []


@pytest.mark.parametrize("identifier", ["", "a b", "a\tb"])
def test_an_impossible_id_is_refused(identifier: str, primebeaker, recorder) -> None:
    outcome = primebeaker("services", "stop", identifier)
    assert (outcome.code, recorder.calls) == (2, [])
    assert outcome.errors[0].startswith(f"experiment ID {identifier!r}")


def test_status_tells_tasks_and_replicas(primebeaker, recorder) -> None:
    jobs = [
        {
            "id": f"01J{rank}",
            "execution": {"spec": {"name": "terminal"}, "replicaRank": rank},
            "status": {"started": "2026-01-02T00:00:00Z"},
        }
        for rank in range(2)
    ]
    recorder.answer(
        {"match": ["experiment", "get"], "stdout": json.dumps([{"id": "01A", "name": "stack", "jobs": jobs}])}
    )
    status = primebeaker("services", "status", "01A").data
    assert (status["experiment_id"], status["state"]) == ("01A", "running")
    assert [(task["name"], [replica["state"] for replica in task["replicas"]]) for task in status["tasks"]] == [
        ("terminal", ["running", "running"])
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_creation_says_that_the_experiment_may_exist(number: int, recorder, tmp_path: Path) -> None:
    recorder.answer({"match": ["experiment", "create"], "hang": 600})
    words = ["services", "launch", "--skip-preflight", "--yes", f"--shared-dir={tmp_path / 'shared'}"]
    with subprocess.Popen([sys.executable, "-m", "primebeaker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        until(lambda: recorder.calls, 60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert "while beaker ran; experiment literegistry-base" in err
    assert "may be running" in err
