"""``primebeaker.run/v1`` is checked whole before anything is created."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EXAMPLES, changing


def _variables(spec: dict) -> dict[str, str]:
    return {entry["name"]: entry.get("value", entry.get("secret")) for entry in spec["tasks"][0]["envVars"]}


@pytest.fixture
def preview(primebeaker, run_file):
    def call(**parts: str) -> dict:
        outcome = primebeaker("run", "preview", f"--config={run_file(**parts)}")
        assert outcome.code == 0, outcome.err
        return outcome.data

    return call


def test_a_preview_shows_both_experiments_and_touches_nothing(preview, recorder, mount: Path) -> None:
    # Where the TOML's relative paths begin for a task; a preview warns of data that is not there.
    shutil.copytree(EXAMPLES / "data", mount / "examples" / "rl" / "data")
    before = sorted(mount.rglob("*"))
    shown = preview(rl="required_services: {terminal: 4}\nenvironment: {RATIO: 1.50, ON: true, N: 0x10, TEXT: a b}")
    assert [path for path in sorted(mount.rglob("*")) if path not in before] == [mount / "run.yaml"]
    assert recorder.calls == []
    assert list(shown) == ["service", "rl", "warnings"]
    assert {task["name"] for task in shown["service"]["spec"]["tasks"]} == {"redis", "gateway", "python", "terminal"}
    variables = _variables(shown["rl"]["spec"])
    assert variables["REGISTRY"] == f"head+sqlite://{mount}/reg/run.sqlite3"
    assert variables["PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID"] == "<created-at-launch>"
    assert variables["BEAKER_TOKEN"] == "BEAKER_TOKEN"
    assert (variables["RATIO"], variables["ON"], variables["N"], variables["TEXT"]) == ("1.50", "true", "0x10", "a b")
    assert shown["rl"]["spec"]["tasks"][0]["context"]["autoResume"] is False
    assert shown["warnings"] == []


def test_without_clean_up_the_launch_is_a_plain_one(preview) -> None:
    task = preview(toml="single.toml", lifecycle="cleanup_service_on_training_exit: false")["rl"]["spec"]["tasks"][0]
    assert not {entry["name"] for entry in task["envVars"]} & {
        "BEAKER_TOKEN",
        "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID",
    }
    assert task["context"]["autoResume"] is True
    assert task["command"][0] == "bash"


def test_a_single_node_task_with_services_to_stop_is_not_restarted(preview) -> None:
    task = preview(toml="single.toml")["rl"]["spec"]["tasks"][0]
    assert task["context"]["autoResume"] is False


@pytest.mark.parametrize(
    ("head", "service", "rl", "registry"),
    [
        ("", "registry: redis://h:1", "", "redis://h:1"),
        ("", "registry: redis://h:1", "registry: redis://other:1", "redis://other:1"),
        ("{mount}/reg", "", "", "head+file://{mount}/reg"),
        ("file://{mount}/reg/", "", "", "head+file://{mount}/reg"),
        ("redis://h:6379/", "", "", "head+redis://h:6379"),
        ("head+sqlite://{mount}/x", "", "", "head+sqlite://{mount}/x"),
        ("", "", "registry: redis://h:1", "redis://h:1"),
    ],
)
def test_the_training_uses_the_stack_s_registry(
    head: str, service: str, rl: str, registry: str, preview, mount: Path
) -> None:
    shown = preview(head=head.format(mount=mount), service=service, rl=rl)
    assert _variables(shown["rl"]["spec"])["REGISTRY"] == registry.format(mount=mount)


def test_another_registry_and_missing_services_are_warned_of(preview) -> None:
    warnings = preview(rl="registry: redis://other:1\nrequired_services: {terminal: 9, judge: 1, python: 1}")[
        "warnings"
    ]
    assert any("the training would not see this stack" in warning for warning in warnings)
    assert any("(terminal: 4 of 9, judge: none of 1)" in warning for warning in warnings)


def test_a_secret_the_user_wrote_replaces_the_default(preview) -> None:
    assert _variables(preview(rl="secrets: {HF_TOKEN: mine}\nwandb_secret: null")["rl"]["spec"]).keys() >= {"HF_TOKEN"}
    variables = _variables(preview(rl="secrets: {HF_TOKEN: mine}\nwandb_secret: null")["rl"]["spec"])
    assert variables["HF_TOKEN"] == "mine"
    assert "WANDB_API_KEY" not in variables


def test_lists_of_pairs_and_aliases_are_accepted(preview) -> None:
    shown = preview(
        rl="cluster: ai2/a, ai2/b\nenv: ['A=x=y']\nsecret: [TOKEN_X=name]\nrequired_service: ['localsearch:a=b=2']"
    )
    task = shown["rl"]["spec"]["tasks"][0]
    assert task["constraints"]["cluster"] == ["ai2/a", "ai2/b"]
    variables = _variables(shown["rl"]["spec"])
    assert (variables["A"], variables["TOKEN_X"]) == ("x=y", "name")
    assert json.loads(variables["REQUIRED_LITEREGISTRY_SERVICES"]) == {"localsearch:a=b": 2}


def test_setup_text_is_not_expanded_and_other_values_are(preview, monkeypatch) -> None:
    monkeypatch.setenv("WHERE", "ai2/here")
    monkeypatch.setenv("HOURS", "3")
    shown = preview(rl="setup_command: echo $REGISTRY $$ ${X\nclusters: [$WHERE]\nmin_runtime_hours: ${HOURS}")
    task = shown["rl"]["spec"]["tasks"][0]
    assert _variables(shown["rl"]["spec"])["PRIMEBEAKER_SETUP_COMMAND"] == "echo $REGISTRY $$ ${X"
    assert task["constraints"]["cluster"] == ["ai2/here"]
    assert task["context"]["minRuntime"] == "3h"


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"rl": "bugdet: x"}, "FILE:12: rl.bugdet: unknown key; did you mean budget?"),
    ({"rl": 'min_runtime_hours: "4"'}, "FILE:12: rl.min_runtime_hours: expected an integer, found a string ('4')"),
    ({"rl": "clusters: [a]\ncluster: b"}, "FILE:13: rl: give only one of clusters, cluster"),
    ({"rl": "secrets: {BEAKER_TOKEN: x}"}, "FILE:12: rl.secrets.BEAKER_TOKEN: managed by lifecycle"),
    ({"rl": "required_services: {terminal: 0}"}, "FILE:12: rl.required_services.terminal: expected a whole number of at least 1"),
    ({"rl": "rl: x", "toml": "nope.toml"}, "FILE:8: rl.toml: no such file: MOUNT/nope.toml"),
    ({"rl": "scratch_dir: /elsewhere"}, "FILE:12: rl.scratch_dir"),
    ({"rl": "environment: {API_TOKEN: x}"}, "FILE:12: rl.environment.API_TOKEN"),
    ({"rl": "environment: {A: null}"}, "FILE:12: rl.environment.A: expected a string, a number or a boolean"),
    ({"rl": "registry: ''"}, "FILE:12: rl.registry: the text: expected a non-empty string"),
    ({"rl": "budget: ${UNSET_HERE}"}, "FILE:12: rl.budget: environment variable UNSET_HERE is not set"),
    ({"rl": "rendezvous_timeout_seconds: 5", "toml": "single.toml"}, "FILE:12: rl.rendezvous_timeout_seconds: has no meaning for a single-node launch"),
    ({"rl": "wandb_secret: a\nsecrets: {WANDB_API_KEY: b}"}, "WANDB_API_KEY is set by both"),
    ({"rl": "budget: a\nbudget: b"}, "FILE:13: budget: given twice, first on line 12"),
    ({"toml": "broken.toml"}, "MOUNT/broken.toml:1:8: not valid TOML"),
    ({"toml": "nodes.toml"}, "MOUNT/nodes.toml:12: deployment.num_infer_nodes = -3: expected a whole number"),
    ({"head": ""}, "FILE: service needs registry or head_registry"),
    ({"service": "terminal_replcas: 1"}, "FILE:7: service.terminal_replcas: unknown field; did you mean terminal_replicas?"),
    ({"service": "python_replicas: 999"}, "services base: python_replicas: python_replicas must be between 0 and 128"),
    ({"lifecycle": "cleanup_service_on_training_exit: 'false'"}, "FILE:13: lifecycle.cleanup_service_on_training_exit: expected true or false"),
    ({"lifecycle": "cleanup_service_on_training_exit: 1"}, "FILE:13: lifecycle.cleanup_service_on_training_exit: expected true or false"),
    ({"lifecycle": "beaker_token_secret: a token"}, "FILE:13: lifecycle.beaker_token_secret: expected the name of a Beaker secret"),
    ({"lifecycle": "clean: true"}, "FILE:13: lifecycle.clean: unknown key"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
def test_a_mistake_is_found_before_anything_is_created(
    parts: dict[str, str], message: str, primebeaker, recorder, run_file, mount: Path, monkeypatch
) -> None:
    monkeypatch.delenv("UNSET_HERE", raising=False)
    (mount / "broken.toml").write_text("key = [")
    (mount / "nodes.toml").write_text(
        (mount / "train.toml").read_text().replace("num_infer_nodes = 2", "num_infer_nodes = -3")
    )
    config = run_file(**parts)
    before = sorted(mount.rglob("*"))
    outcome = primebeaker("run", "launch", f"--config={config}")
    errors = [line.replace(str(config), "FILE").replace(str(mount), "MOUNT") for line in outcome.errors]
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    assert any(line.startswith(message) for line in errors), errors
    assert changing(recorder) == []
    assert sorted(mount.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: primebeaker.services/v1\n", "FILE:1: schema: expected 'primebeaker.run/v1'"),
        ("schema: primebeaker.run/v1\nrl: {toml: x}\n", "FILE: service: required"),
        ("schema: primebeaker.run/v1\nservice:\nrl: {}\n", "service: expected a mapping, found nothing (FILE:2)"),
    ],
)
def test_the_header_is_checked(text: str, message: str, primebeaker, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(text)
    outcome = primebeaker("run", "preview", f"--config={config}")
    assert outcome.code == 2
    assert outcome.errors[0].replace(str(config), "FILE").startswith(message)


def test_a_missing_file_is_one_line(primebeaker, tmp_path: Path) -> None:
    assert primebeaker("run", "preview", f"--config={tmp_path}/no.yaml").errors == [
        f"run YAML not found: {tmp_path}/no.yaml"
    ]


def test_independent_mistakes_are_reported_together(primebeaker, run_file: Callable[..., Path]) -> None:
    config = run_file(rl="bugdet: x\npriority: soon", service="python_replicas: 999")
    assert len(primebeaker("run", "preview", f"--config={config}").errors) == 3
