"""The variables of a role: each rule, and all faults together."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.errors import UserError, UserErrors
from primebeaker.roles.config_choice import choose_config, contract_of
from primebeaker.roles.inputs import read_gateway_inputs, read_inputs


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run.toml").write_text("max_steps = 1\n")
    return {
        "BEAKER_REPLICA_RANK": "1",
        "BEAKER_REPLICA_COUNT": "2",
        "TOTAL_NODES": "2",
        "GPUS_PER_NODE": "8",
        "BEAKER_ASSIGNED_GPU_COUNT": "8",
        "TRAINER_GPU_COUNT": "4",
        "MIXED_INFER_GPU_COUNT": "4",
        "TOTAL_INFER_RANKS": "12",
        "CONFIG_PATH": str(tmp_path / "run.toml"),
        "OUTPUT_DIR": str(tmp_path / "a" / "out"),
        "WORKING_DIR": str(tmp_path),
        "SCRATCH": str(tmp_path),
        "RENDEZVOUS_DIR": str(tmp_path / "rdzv"),
        "LAUNCH_ID": "l-1",
        "RENDEZVOUS_TIMEOUT_SECONDS": "1800",
        "REGISTRY": "redis://u:topsecret9@h:6379",
        "GATEWAY_PORT": "1212",
        "GATEWAY_WORKERS": "8",
        "REQUIRED_LITEREGISTRY_SERVICES": '{"terminal":8}',
        "LOCAL_SEARCH_MODEL_PATHS_JSON": '["localsearch:a"]',
    }


def read(env: dict[str, str], kind: str = "rl", **settings):
    return read_inputs(kind, env, choose_config=choose_config, **settings)  # type: ignore[arg-type]


def test_a_right_environment_is_read_whole(env: dict[str, str]) -> None:
    inputs = read(env)
    assert (inputs.rank, inputs.nodes, inputs.infer_ranks) == (1, 2, 12)
    assert inputs.required_services == {"terminal": 8}
    assert inputs.search_paths == ("localsearch:a",)
    assert inputs.tunables.grace == 10
    assert inputs.tunables.heartbeat_timeout == 180
    assert inputs.tunables.drain_timeout == 1800
    assert inputs.tunables.inference_ready_timeout == 4200
    assert inputs.tunables.poll == 1
    assert inputs.tunables.stall == 0
    assert not Path(env["OUTPUT_DIR"]).exists(), "checking creates nothing"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("BEAKER_REPLICA_RANK", "2", "a whole number from 0 to 1"),
        ("BEAKER_REPLICA_RANK", None, "is not set: expected a whole number from 0 to 1"),
        ("BEAKER_REPLICA_RANK", "1.0", "a whole number from 0 to 1"),
        ("TOTAL_NODES", "1025", "a whole number from 1 to 1024"),
        ("TOTAL_NODES", "3", "expected BEAKER_REPLICA_COUNT = 2"),
        ("GPUS_PER_NODE", "0", "a whole number of at least 1"),
        ("GPUS_PER_NODE", "9", "at most BEAKER_ASSIGNED_GPU_COUNT = 8"),
        ("TRAINER_GPU_COUNT", "0", "a whole number of at least 1"),
        ("TRAINER_GPU_COUNT", "5", "MIXED_INFER_GPU_COUNT = 9: expected at most GPUS_PER_NODE = 8"),
        ("MIXED_INFER_GPU_COUNT", "-1", "a whole number of at least 0"),
        ("TOTAL_INFER_RANKS", "16", "12, since 12 GPUs make engines of 1 each"),
        ("CONFIG_PATH", "run.toml", "an absolute path"),
        ("CONFIG_PATH", "/nope/run.toml", "a readable file"),
        ("OUTPUT_DIR", "out", "an absolute path"),
        ("SCRATCH", "", "an absolute path"),
        ("RENDEZVOUS_DIR", "/dev/null/x", "a directory that exists or can be created"),
        ("LAUNCH_ID", "a/b", "1 to 128 letters"),
        ("LAUNCH_ID", "x" * 129, "1 to 128 letters"),
        ("RENDEZVOUS_TIMEOUT_SECONDS", "0", "a number above 0"),
        ("RENDEZVOUS_TIMEOUT_SECONDS", "inf", "a number above 0"),
        ("REGISTRY", "http://h", "a LiteRegistry URI"),
        ("REGISTRY", None, "is not set: expected a LiteRegistry URI"),
        ("GATEWAY_PORT", "65536", "a whole number from 1 to 65535"),
        ("GATEWAY_WORKERS", "0", "a whole number of at least 1"),
        ("REQUIRED_LITEREGISTRY_SERVICES", '{"a":0}', "a JSON object of service names"),
        ("REQUIRED_LITEREGISTRY_SERVICES", '{"a":true}', "a JSON object of service names"),
        ("LOCAL_SEARCH_MODEL_PATHS_JSON", '[""]', "a JSON array of non-empty strings"),
        ("PRIMEBEAKER_GRACE_SECONDS", "301", "a number of at least 0 up to 300"),
        ("PRIMEBEAKER_POLL_SECONDS", "0.01", "a number of at least 0.05 up to 10"),
        ("PRIMEBEAKER_STALL_SECONDS", "soon", "a number of at least 0"),
    ],
)
def test_each_fault_is_one_line_naming_variable_value_and_expectation(
    env: dict[str, str], name: str, value: str | None, expected: str
) -> None:
    changed = {key: text for key, text in env.items() if key != name} | ({name: value} if value is not None else {})
    with pytest.raises(UserError) as caught:
        read(changed)
    line = next(line for line in str(caught.value).splitlines() if expected in line)
    assert name in line
    if value:
        assert value in line or name == "TRAINER_GPU_COUNT"


def test_all_faults_are_reported_together(env: dict[str, str]) -> None:
    with pytest.raises(UserErrors) as caught:
        read(env | {"LAUNCH_ID": "", "GATEWAY_PORT": "x", "SCRATCH": "rel", "PRIMEBEAKER_GRACE_SECONDS": "-1"})
    assert len(caught.value.errors) == 4


def test_the_registrys_password_is_never_in_a_message(env: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        read(env | {"REGISTRY": "mongodb://u:topsecret9@h"})
    assert "topsecret9" not in str(caught.value)


def test_the_rank_may_be_absent_on_a_single_node(env: dict[str, str]) -> None:
    changed = env | {"TOTAL_NODES": "1", "TOTAL_INFER_RANKS": "4"}
    del changed["BEAKER_REPLICA_RANK"], changed["BEAKER_REPLICA_COUNT"]
    assert read(changed).rank == 0


def test_gpus_that_do_not_divide_into_engines_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(UserError, match="4 inference GPUs of one replica do not divide into engines of 3"):
        read(env, tensor_parallel=lambda path: 3)
    assert read(env | {"TOTAL_INFER_RANKS": "6"}, tensor_parallel=lambda path: 2).infer_ranks == 6


def test_more_gpus_than_the_machine_shows_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(UserError, match="at most the 4 GPUs that nvidia-smi lists"):
        read(env, gpus_seen=4)


def test_sft_needs_two_nodes_and_none_of_the_rl_variables(env: dict[str, str]) -> None:
    names = ("BEAKER_REPLICA_RANK", "GPUS_PER_NODE", "CONFIG_PATH", "OUTPUT_DIR", "WORKING_DIR", "SCRATCH")
    names += ("RENDEZVOUS_DIR", "LAUNCH_ID", "RENDEZVOUS_TIMEOUT_SECONDS", "TOTAL_NODES")
    own = {name: env[name] for name in names}
    assert read(own, "sft").nodes == 2
    with pytest.raises(UserError, match="TOTAL_NODES = '1': expected a whole number from 2 to 1024"):
        read(own | {"TOTAL_NODES": "1", "BEAKER_REPLICA_RANK": "0"}, "sft")


def test_the_snapshot_is_read_while_it_has_the_recorded_digest(env: dict[str, str], tmp_path: Path) -> None:
    import hashlib

    snapshot = tmp_path / "snapshot.toml"
    snapshot.write_text("max_steps = 2\n")
    recorded = env | {
        "PRIMEBEAKER_CONFIG_SNAPSHOT": str(snapshot),
        "PRIMEBEAKER_CONFIG_SHA256": hashlib.sha256(snapshot.read_bytes()).hexdigest(),
    }
    chosen = choose_config(recorded)
    assert chosen.path == snapshot
    assert "changed since the launch; the snapshot" in chosen.notices[0]
    snapshot.write_text("max_steps = 3\n")
    chosen = choose_config(recorded)
    assert chosen.path == tmp_path / "run.toml"
    assert "is used, since no valid snapshot exists" in chosen.notices[0]


def test_gateway_variables_of_a_single_node_task(env: dict[str, str]) -> None:
    assert read_gateway_inputs(env).gateway_port == 1212
    with pytest.raises(UserErrors):
        read_gateway_inputs({})


@pytest.mark.parametrize(
    ("values", "generation"),
    [
        ({"orchestrator": {}, "wandb": {}}, "0.7"),
        ({"orchestrator": {}, "inference": {"vllm": {"tensor_parallel_size": 2}}}, "0.8"),
        ({"monitors": {"file": {}}}, "0.8"),
        ({"deployment": {"type": "multi_node", "num_train_nodes": 2}}, "0.8"),
        ({"deployment": {"type": "multi_node", "num_nodes": 2}}, "0.7"),
        ({}, "0.7"),
    ],
)
def test_every_phase_takes_a_toml_for_the_same_generation(values: dict, generation: str) -> None:
    assert contract_of(values).generation == generation


def test_keys_of_two_generations_are_a_mistake() -> None:
    with pytest.raises(UserError, match="keys of two Prime-RL generations"):
        contract_of({"wandb": {}, "monitors": {"wandb": {}}, "orchestrator": {}})
