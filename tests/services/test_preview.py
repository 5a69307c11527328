"""``services preview`` is the native launcher's own preview, checked, explained and with passwords masked."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
from pathlib import Path

import pytest

from primebeaker.services.masking import masked
from primebeaker.services.stacks import STACKS, load_native


def _random_values(stack: str, seed: int) -> dict[str, object]:
    chance = random.Random(seed)
    values: dict[str, object] = {
        "service_clusters": tuple(chance.sample(["ai2/jupiter", "ai2/saturn", "ai2/ceres"], chance.randint(1, 3))),
        "gateway_workers": chance.randint(1, 16),
        "docker_mirror_soft_affinity": chance.random() < 0.5,
        "gateway_timeout": chance.choice([30.5, 840.0]),
        "workspace": "ai2/test",
        "min_runtime_hours": chance.randint(0, 4),
        "name_prefix": chance.choice(["My Stack", "123"]),
    }
    match chance.randint(0, 3):
        case 0:
            values["registry"] = "redis://cache.example:6379"
        case 1:
            values["head_registry"] = chance.choice(["/weka/reg", "sqlite:///weka/r.db", "redis://h:1/"])
        case 2:
            values["registry"] = "head+file:///weka/reg"
        case _:
            pass
    if stack == "base":
        values |= {
            "python_replicas": chance.randint(0, 5),
            "terminal_replicas": chance.randint(0, 5),
            "web_search_replicas": chance.randint(0, 2),
            "omit_service_resources": chance.random() < 0.5,
            "hf_home": chance.choice([None, "/weka/hf"]),
        }
        if chance.random() < 0.5:
            values |= {
                "generation_model": "/weka/models/Q 3",
                "generation_replicas": chance.randint(1, 3),
                "max_num_seqs": chance.choice([None, 64]),
            }
        if chance.random() < 0.5:
            values |= {
                "local_search_replicas": chance.randint(1, 4),
                "local_search_corpus_jsonl": "/weka/c.jsonl",
                "local_search_index_dir": "/weka/index",
            }
    else:
        values |= {
            "podman_replicas": chance.randint(1, 9),
            "docker_mirror_replicas": chance.randint(0, 3),
            "warmup_enabled": chance.random() < 0.5,
            "podman_session_memory": chance.choice([None, "4g"]),
            "podman_max_sessions": chance.choice([None, 3]),
            "podman_session_idle_timeout": chance.choice([None, 60.5]),
            "omit_resources": chance.random() < 0.5,
        }
    return values


def _flag(name: str, value: object) -> str:
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"--{name}={'none' if value is None else value}"


@pytest.mark.parametrize("stack", ["base", "podman"])
@pytest.mark.parametrize("seed", range(20))
def test_the_preview_equals_the_native_one(stack: str, seed: int, primebeaker) -> None:
    values = _random_values(stack, seed)
    group = ["services"] if stack == "base" else ["services", "podman"]
    outcome = primebeaker(*group, "preview", *[_flag(name, value) for name, value in values.items()])
    assert outcome.code == 0, outcome.err
    native = load_native(STACKS[stack])
    launcher = native.launcher_class(native.config_class(**values))
    _, spec = launcher.build_spec(experiment_name=outcome.data["experiment_name"])
    assert outcome.data["config"] == json.loads(json.dumps(launcher.preview()["config"]))
    assert outcome.data["spec"] == json.loads(json.dumps(spec))
    # The same length and form as the native name, but for its time stamp and random parts.
    form = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{10}-[0-9a-f]{8}$")
    assert form.sub("", outcome.data["experiment_name"]) == form.sub("", launcher.preview()["experiment_name"])


@pytest.mark.parametrize("group", [["services"], ["services", "podman"]])
def test_a_preview_touches_nothing(group: list[str], primebeaker, tmp_path: Path, monkeypatch) -> None:
    called = tmp_path / "called"
    beaker = tmp_path / "bin" / "beaker"
    beaker.parent.mkdir()
    beaker.write_text(f"#!/bin/sh\ntouch {called}\nexit 99\n")
    beaker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{beaker.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = primebeaker(*group, "preview", f"--head-registry={tmp_path}/reg")
    assert outcome.code == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--registry=redis://h:1"], "redis://h:1"),
        (["--registry=rediss://h:1"], "rediss://h:1"),
        (["--registry=head+sqlite:///p.db"], "head+sqlite:///p.db"),
        (["--registry=sqlite:///p.db"], "sqlite:///p.db"),
        (["--registry=/abs/path"], "/abs/path"),
        (["--head-registry=/abs/path"], "head+file:///abs/path"),
        (["--head-registry=file:///p/"], "head+file:///p"),
        (["--head-registry=sqlite:///p.db"], "head+sqlite:///p.db"),
        (["--head-registry=redis://h:1/"], "head+redis://h:1"),
    ],
)
def test_clients_get_the_uri_they_must_use(words: list[str], expected: str, primebeaker) -> None:
    for group in (["services"], ["services", "podman"]):
        assert primebeaker(*group, "preview", *words).data["client_registry"] == expected


def test_a_stack_without_registry_coordinates_below_its_own_name(primebeaker) -> None:
    base = primebeaker("services", "preview", "--shared-dir=/weka/team/").data
    assert base["client_registry"] == f"head+file:///weka/team/.literegistry-coop/{base['experiment_name']}"
    outcome = primebeaker("services", "podman", "preview", "--coordination-root=/weka/coop")
    assert outcome.data["client_registry"] == f"head+file:///weka/coop/{outcome.data['experiment_name']}"
    assert "client_registry" in outcome.err
    assert "Redis of its own" in outcome.err


def test_the_default_tasks(primebeaker) -> None:
    def tasks(*words: str) -> list[str]:
        return [task["name"] for task in primebeaker("services", *words).data["spec"]["tasks"]]

    assert tasks("preview", "--head-registry=/weka/x") == [
        "redis",
        "gateway",
        "python",
        "terminal",
        "cache",
        "search",
    ]
    assert "podman-warmup" in tasks("podman", "preview")
    assert "podman-warmup" not in tasks("podman", "preview", "--no-warmup-enabled")


PASSWORDS = ["hunter2", 'it\'s-a-"quoted"-one', "back\\slash"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_is_never_shown_and_is_warned_of(password: str, primebeaker) -> None:
    outcome = primebeaker("services", "preview", f"--registry=redis://u:{password}@h:1")
    assert outcome.code == 0
    everything = outcome.out + outcome.err
    assert password not in everything
    assert json.dumps(password)[1:-1] not in everything
    assert "redis://u:***@h:1" in outcome.out
    assert "registry: the password in redis://u:***@h:1 is visible" in outcome.err


def test_masking_keeps_other_text() -> None:
    assert masked({"a": ["redis://u:p@h", 1, None], "b": "http://h:80/x@y"}) == {
        "a": ["redis://u:***@h", 1, None],
        "b": "http://h:80/x@y",
    }


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (["--python-replicas=300"], ["services base: python_replicas: python_replicas must be between 0 and 128"]),
        (
            ["--service-priority=low"],
            ["services base: service_priority: service_priority must be normal, high, or urgent"],
        ),
        (["--affinity-ttl-seconds=0"], ["services base: affinity TTL must be positive"]),
        (["--head-registry=foo://x"], ["services base: endpoint registry must use file://, sqlite://, or redis://"]),
        (
            ["--registry=redis://h", "--head-registry=/x"],
            ["services base: registry: supply only one of registry or head_registry"],
        ),
        (
            ["--terminal-replcas=2", "--podman-replicas=1"],
            [
                "unknown flag --terminal-replcas of the base stack; did you mean --terminal-replicas? "
                "primebeaker services fields --stack=base lists all",
                "--podman-replicas is no flag of the base stack; it belongs to the podman stack "
                "(primebeaker services podman …)",
            ],
        ),
        (
            ["--python-replicas=2.0", "--max-num-seqs=x"],
            ["--python-replicas = '2.0': expected an integer", "--max-num-seqs = 'x': expected an integer"],
        ),
        (
            ["--python-replicas=1", "--python_replicas=2"],
            ["--python-replicas is given twice, as '1' and '2'; give it once"],
        ),
        (["--service-cluster=a", "--service-clusters=b"], ["give only one of service_clusters, service_cluster"]),
        (["--vllm-image=docker://x"], ["--vllm-image: expected a Beaker image, not a docker:// one"]),
        (["stray"], ["unexpected word 'stray'; flags start with --"]),
    ],
)
def test_a_mistake_is_one_line(words: list[str], errors: list[str], primebeaker) -> None:
    outcome = primebeaker("services", "preview", *words)
    assert (outcome.code, outcome.out, outcome.errors) == (2, "", errors)


@pytest.mark.parametrize("value", ["hf token", "x/y", "a" * 129, "ghp_" + "0" * 200])
def test_a_token_where_a_secret_name_belongs_is_not_echoed(value: str, primebeaker) -> None:
    outcome = primebeaker("services", "preview", f"--hf-token-secret={value}")
    assert outcome.code == 2
    assert value not in outcome.err
    assert outcome.errors[0].startswith("--hf-token-secret: expected the name of a Beaker secret")


def test_beaker_scheme_is_removed_from_images_and_session_images_pass_unchanged(primebeaker) -> None:
    config = primebeaker(
        "services", "podman", "preview", "--podman-image=beaker://01ABC", "--podman-session-image=docker.io/x:1"
    ).data["config"]
    assert (config["podman_image"], config["podman_session_image"]) == ("01ABC", "docker.io/x:1")


def test_repeated_list_flags_accumulate(primebeaker) -> None:
    outcome = primebeaker("services", "preview", "--service-cluster=a,b", "--service_cluster", "c")
    assert outcome.data["config"]["service_clusters"] == ["a", "b", "c"]


@pytest.mark.parametrize("group", [["services"], ["services", "podman"]])
def test_groups_print_help(group: list[str], primebeaker) -> None:
    for words in (group, [*group, "--help"], [*group, "preview", "--help"]):
        outcome = primebeaker(*words)
        assert (outcome.code, outcome.err) == (0, "")
        assert "preview" in outcome.out


def test_a_missing_distribution_is_one_line_with_the_command_that_installs_it(primebeaker, monkeypatch) -> None:
    from primebeaker.services import stacks

    monkeypatch.setitem(stacks.STACKS, "base", dataclasses.replace(STACKS["base"], module="no_such_module"))
    outcome = primebeaker("services", "fields")
    assert (outcome.code, outcome.errors) == (
        2,
        ["literegistry-base-deployment is not installed; pip install 'primebeaker[runtime]'"],
    )
