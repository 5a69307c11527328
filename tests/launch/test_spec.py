"""The experiment spec: what Beaker's own client reads out of it, and each documented variable."""

from __future__ import annotations

import json

import pytest
from beaker import BeakerExperimentSpec
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.beaker.spec import escape_templates, spec_json
from primebeaker.local.specfile import read_spec

ALL = ("sft", "rl", "sft-nodes", "rl-nodes")


def dropped(ours, theirs):
    """Keys of our spec that the official client did not keep; it ignores those it does not know."""
    if isinstance(ours, dict):
        return [key for key in ours if key not in theirs] + [
            name for key in ours if key in theirs for name in dropped(ours[key], theirs[key])
        ]
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else ()
    return [name for one, other in pairs for name in dropped(one, other)]


@pytest.mark.parametrize("base", ALL)
def test_the_official_client_reads_every_key(plan, tmp_path, base) -> None:
    made = plan(
        base,
        budget="ai2/b",
        memory="256GiB",
        shared_memory="64GiB",
        cpu_count=8.0,
        timeout_hours=1.5,
        environment=(("A", "1"),),
    )
    path = tmp_path / "spec.json"
    path.write_text(spec_json(made.spec))
    loaded = BeakerExperimentSpec.from_file(path)
    assert dropped(made.spec, loaded.to_json()) == []
    assert dropped({**made.spec, "unknown": 1}, loaded.to_json()) == ["unknown"]
    assert loaded.budget == "ai2/b"
    assert read_spec(path.read_bytes(), str(path)) == made.spec, "the embedded engine reads the same"
    assert loaded.tasks[0].command == made.spec["tasks"][0]["command"]


def test_single_node_task(plan) -> None:
    spec = plan("rl").spec
    assert list(spec) == ["version", "description", "tasks"]
    (task,) = spec["tasks"]
    assert list(task) == [
        "name",
        "image",
        "command",
        "envVars",
        "datasets",
        "result",
        "resources",
        "context",
        "constraints",
    ]
    assert task["name"] == "rl"
    assert task["command"][:2] == ["bash", "-c"]
    assert task["resources"] == {"gpuCount": 2}
    assert task["context"] == {"priority": "high", "minRuntime": "0h", "autoResume": True}
    assert task["constraints"] == {"cluster": ["ai2/holmes"]}
    assert task["result"] == {"path": "/tmp/beaker-result"}
    assert spec["description"] == "PrimeBeaker RL tiny-rl"


def test_multi_node_task(plan, mount) -> None:
    (task,) = plan("rl-nodes", clusters=("ai2/x", "ai2/y", "ai2/x"), priority="urgent", min_runtime_hours=4).spec[
        "tasks"
    ]
    assert task["name"] == "prime-rl-multinode"
    assert task["command"] == ["python3", "-m", "primebeaker.multinode", "role", "rl"]
    assert {key: task[key] for key in list(task)[3:9]} == {
        "replicas": 2, "leaderSelection": True, "synchronizedStartTimeout": "4h", "hostNetworking": True,
        "propagateFailure": True, "propagatePreemption": True,
    }  # fmt: skip
    assert task["datasets"] == [{"mountPath": str(mount), "source": {"weka": "oe-adapt-default"}}]
    assert task["resources"] == {"gpuCount": 8}
    assert task["context"] == {"priority": "urgent", "minRuntime": "4h", "autoResume": False}
    assert task["constraints"] == {"cluster": ["ai2/x", "ai2/y"]}


@pytest.mark.parametrize(
    ("base", "words"),
    [("sft", "SFT tiny-sft"), ("sft-nodes", "multi-node SFT tiny-sft"), ("rl-nodes", "multi-node RL tiny-rl")],
)
def test_default_description(plan, base, words) -> None:
    assert plan(base).spec["description"] == f"PrimeBeaker {words}"
    assert plan(base, description="None").spec["description"] == "None"


def test_variables_of_every_form(plan, variables, mount) -> None:
    common = {
        "HOME", "CONFIG_PATH", "OUTPUT_DIR", "EXPERIMENT_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "WORKING_DIR", "SCRATCH",
        "LAUNCH_ID", "PRIMEBEAKER_CONFIG_SHA256", "PRIMEBEAKER_CONFIG_SNAPSHOT", "PRIMEBEAKER_VERSION", "WANDB_API_KEY", "HF_TOKEN",
    }  # fmt: skip
    nodes = {"WANDB_SHARED_RUN_ID", "RENDEZVOUS_DIR", "RENDEZVOUS_TIMEOUT_SECONDS", "TOTAL_NODES", "GPUS_PER_NODE"}
    gateway = {"GATEWAY_PORT", "GATEWAY_WORKERS", "REQUIRED_LITEREGISTRY_SERVICES", "LOCAL_SEARCH_MODEL_PATHS_JSON"}
    mixed = {"TOTAL_INFER_RANKS", "TRAINER_GPU_COUNT", "MIXED_INFER_GPU_COUNT"}
    expected = {
        "sft": common | {"NUM_GPUS"},
        "rl": common | {"NUM_GPUS", "WANDB_SHARED_RUN_ID"},
        "sft-nodes": common | nodes,
        "rl-nodes": common | nodes | gateway | mixed | {"WANDB_SHARED_MODE", "REGISTRY"},
    }
    for base, names in expected.items():
        assert set(variables(plan(base).spec)) == names, base


def test_values_of_multi_node_rl(plan, variables, mount) -> None:
    search = {"legacy": {"id": "x", "args": {"local_search_model_path": "b"}}}
    other = {"legacy": {"id": "x", "args": {"local_search_model_path": "a"}}}
    made = plan(
        "rl-nodes",
        {"orchestrator.train.source": [search, other], "orchestrator.eval": {"source": [search]}},
        required_services=(("terminal", 2), ("localsearch:a/b", 1)),
        setup_command='echo "{{.Env.HOME}}"\n# done\\',
        wandb_entity="me",
        environment=(("Z", "1"), ("B", "x=y")),
        secrets=(("OTHER", "s"),),
    )
    found = variables(made.spec)
    assert found == {
        "B": "x=y",
        "CONFIG_PATH": f"{mount}/run.toml",
        "EXPERIMENT_NAME": "tiny-rl",
        "GATEWAY_PORT": "1212",
        "GATEWAY_WORKERS": "8",
        "GPUS_PER_NODE": "8",
        "HOME": str(mount),
        "LAUNCH_ID": "l1",
        "LOCAL_SEARCH_MODEL_PATHS_JSON": '["a","b"]',
        "MIXED_INFER_GPU_COUNT": "4",
        "OUTPUT_DIR": f"{mount}/runs/rl",
        "PRIMEBEAKER_CONFIG_SHA256": made.config_sha256,
        "PRIMEBEAKER_CONFIG_SNAPSHOT": f"{mount}/primebeaker/beaker_experiments/tiny-rl-l1.toml",
        "PRIMEBEAKER_SETUP_COMMAND": 'echo "{{.Env.HOME}}"\n# done\\',
        "PRIMEBEAKER_VERSION": "0.4.0",
        "REGISTRY": "redis://host:6379",
        "RENDEZVOUS_DIR": f"{mount}/primebeaker/rendezvous/tiny-rl-l1",
        "RENDEZVOUS_TIMEOUT_SECONDS": "1800",
        "REQUIRED_LITEREGISTRY_SERVICES": '{"localsearch:a/b":1,"terminal":2}',
        "SCRATCH": str(mount),
        "TOTAL_INFER_RANKS": "6",
        "TOTAL_NODES": "2",
        "TRAINER_GPU_COUNT": "4",
        "WANDB_ENTITY": "me",
        "WANDB_RESUME": "allow",
        "WANDB_RUN_ID": "w1",
        "WANDB_SHARED_MODE": "1",
        "WANDB_SHARED_RUN_ID": "w1",
        "WORKING_DIR": str(mount),
        "Z": "1",
        "HF_TOKEN": "secret:HF_TOKEN",
        "OTHER": "secret:s",
        "WANDB_API_KEY": "secret:WANDB_API_KEY",
    }
    names = [entry["name"] for entry in made.spec["tasks"][0]["envVars"]]
    assert names[:-3] == sorted(names[:-3])
    assert names[-3:] == ["HF_TOKEN", "OTHER", "WANDB_API_KEY"]


def test_a_live_config_has_no_snapshot(plan, variables) -> None:
    assert "PRIMEBEAKER_CONFIG_SNAPSHOT" not in variables(plan("sft", live_config=True).spec)


@pytest.mark.parametrize(
    ("settings", "expected"), [({"registry": "redis://h:1"}, False), ({"registry": "redis://h:1", "gateway_port": 99}, True),
                               ({"registry": "redis://h:1", "required_services": (("a", 1),)}, True)]
)  # fmt: skip
def test_single_node_rl_starts_the_gateway_only_when_asked(plan, variables, settings, expected) -> None:
    found = variables(plan("rl", **settings).spec)
    assert ("GATEWAY_PORT" in found) is expected
    assert found["REGISTRY"] == "redis://h:1"


@pytest.mark.parametrize(("hours", "shown"), [(1.0, "1h"), (0.5, "0.5h"), (1e6, "1000000h")])
def test_time_limits_are_durations(plan, hours, shown) -> None:
    assert plan("sft", timeout_hours=hours).spec["tasks"][0]["timeout"] == shown


@given(st.text(alphabet='{}\\"ab\n'))
def test_a_spec_file_never_holds_a_template(text) -> None:
    """Beaker expands ``{{…}}`` of the file, so none may be there, and the text must come back unchanged."""
    written = spec_json({"description": text, "tasks": [{}]})
    assert "{{" not in written and "}}" not in written
    assert json.loads(written) == {"description": text, "tasks": [{}]}
    assert escape_templates(written) == written
