"""From a training TOML to sub-configs, by the built-in resolver and by config classes that validate."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from primebeaker.errors import UserError, UserErrors
from primebeaker.prime_rl import builtin
from primebeaker.prime_rl.contract import DEFAULT, GEN_0_8
from primebeaker.prime_rl.resolve import (
    RLWiring,
    pin_resume_step,
    refuse_rl,
    resolve_rl,
    resolve_sft,
    wire_rl,
    with_environment_namespace,
)
from primebeaker.prime_rl.subconfigs import digest, write_subconfigs

SOURCE = Path(__file__).parents[2] / "src"

MIXED = """
max_steps = 4
output_dir = "/out"
[deployment]
type = "multi_node"
gpus_per_node = 8
num_train_nodes = 1
num_infer_nodes = 2
[model]
name = "m/x"
[wandb]
project = "p"
name = "n"
[ckpt]
interval = 2
resume_step = -1
[env_vars]
SHARED = "1"
OMP_NUM_THREADS = "4"
[trainer.model]
cp = 4
[trainer.env_vars]
SHARED = "2"
[orchestrator]
batch_size = 8
[inference]
api_server_count = 12
[inference.parallel]
tp = 1
dp = 12
"""


def toml(text: str = MIXED) -> dict:
    return tomllib.loads(text)


def test_shared_keys_reach_every_side() -> None:
    resolved = resolve_rl(toml(), validation="never")
    assert resolved.trainer["max_steps"] == resolved.orchestrator["max_steps"] == 4
    assert resolved.trainer["output_dir"] == "/out"
    assert resolved.orchestrator["output_dir"] == "/out/run_default"
    assert resolved.inference["model"]["name"] == "m/x"
    assert resolved.trainer["wandb"] == resolved.orchestrator["wandb"] == {"project": "p", "name": "n"}
    assert resolved.trainer["ckpt"]["interval"] == resolved.orchestrator["ckpt"]["interval"] == 2
    assert resolved.notices == (builtin.NOTICE,)


def test_defaults_of_a_multi_node_run() -> None:
    resolved = resolve_rl(toml(), validation="never")
    assert (resolved.broadcast, resolved.transport, resolved.ranks_filter) == ("nccl", "zmq", "0")
    assert (resolved.router_port, resolved.nccl_port, resolved.zmq_port) == (8000, 29501, 5555)
    assert resolved.router_policy == "consistent_hash"
    assert resolved.inference["backend_port"] == 8100


def test_lora_defaults_to_the_file_system() -> None:
    resolved = resolve_rl(toml(MIXED.replace("cp = 4", "cp = 4\nlora = {rank = 8}")), validation="never")
    assert resolved.broadcast == "filesystem"
    assert resolved.nccl_port is None


def test_engines_follow_the_routers_port() -> None:
    resolved = resolve_rl(toml(MIXED + "\n[inference.server]\nport = 9000\n"), validation="never")
    assert resolved.inference["backend_port"] == 9100


def test_environment_order_is_defaults_then_shared_then_own() -> None:
    resolved = resolve_rl(toml(), validation="never")
    assert resolved.env("trainer")["SHARED"] == "2"
    assert resolved.env("orchestrator")["SHARED"] == "1"
    assert resolved.env("inference")["OMP_NUM_THREADS"] == "4"
    assert resolved.env("inference")["VLLM_ENGINE_READY_TIMEOUT_S"] == "4200"


def test_a_mixed_node_gets_the_true_world_size_and_worker_count() -> None:
    wired = wire_rl(
        resolve_rl(toml(), validation="never"),
        RLWiring(infer_ranks=12, trainer_gpus=4, router_port=8001, nccl_port=29502, zmq_port=5557),
    )
    for table in (wired.trainer, wired.orchestrator):
        assert table["weight_broadcast"]["inference_world_size"] == 12
        assert table["weight_broadcast"]["port"] == 29502
        assert table["rollout_transport"]["port"] == 5557
    assert wired.trainer["weight_broadcast"]["host"] == "0.0.0.0"
    assert wired.orchestrator["num_train_workers"] == 1
    assert wired.inference["router"] == "None"
    assert wired.inference["server"]["port"] == 8001


def test_disagreeing_keys_are_reported_together() -> None:
    values = toml(MIXED + '\n[orchestrator.wandb]\nname = "other"\n[orchestrator.model]\nname = "y"\n')
    with pytest.raises(UserErrors) as caught:
        resolve_rl(values, validation="never")
    assert len(caught.value.errors) == 2
    assert "wandb.name = 'n' and orchestrator.wandb.name = 'other' disagree" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"inference": None}, r"\[inference\] is required"),
        ({"inference.router": "None"}, "inference.router = 'None'"),
        ({"inference.router": {"type": "llm-d"}}, "inference.router.type = 'llm-d': expected 'vllm-router'"),
        ({"inference.enable_expert_parallel": True}, "inference.enable_expert_parallel = true"),
        ({"inference.deployment": {"type": "disaggregated"}}, "prefill and decode nodes are not supported"),
        ({"weight_broadcast": {"type": "nixl"}}, "nobody starts that server"),
        ({"inference.server": {"port": 44536}}, "expected at most 44535"),
    ],
)
def test_what_the_role_cannot_run_is_refused(change: dict, line: str) -> None:
    values = toml()
    for key, value in change.items():
        table, _, name = key.rpartition(".")
        if value is None:
            del values[name]
        else:
            (values[table] if table else values)[name] = value
    with pytest.raises(UserError, match=line):
        refuse_rl(values)


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("jtc_label_env", "primebeaker.environments.jtc_label_env"),
        ("old.pkg.jtc_label_env:load_environment", "primebeaker.environments.jtc_label_env"),
        ("primebeaker.environments.jtc_label_env", "primebeaker.environments.jtc_label_env"),
        ("org/other-env", "org/other-env"),
        ("theirs:load", "theirs:load"),
    ],
)
def test_bundled_environments_are_named_by_a_loadable_path(identifier: str, expected: str) -> None:
    values = {"orchestrator": {"train": {"source": [{"legacy": {"id": identifier}}]}}}
    changed = with_environment_namespace(values)
    assert changed["orchestrator"]["train"]["source"][0]["legacy"]["id"] == expected
    assert values["orchestrator"]["train"]["source"][0]["legacy"]["id"] == identifier


def test_another_function_of_a_bundled_environment_is_refused() -> None:
    values = {"orchestrator": {"eval": {"env": [{"legacy": {"id": "jtc_label_env:other"}}]}}}
    with pytest.raises(UserError, match="loaded by its module alone"):
        with_environment_namespace(values)


def test_the_resume_step_is_pinned_on_every_side() -> None:
    values = toml(MIXED + "\n[trainer.ckpt]\nresume_step = -1\n")
    assert pin_resume_step(values, 20)["ckpt"]["resume_step"] == 20
    fresh = pin_resume_step(values, None)
    assert "resume_step" not in fresh["ckpt"]
    assert "resume_step" not in fresh["trainer"]["ckpt"]
    assert pin_resume_step({"resume": {"dir": "x"}}, 3, GEN_0_8)["resume"] == {"step": 3}


def test_sft_leaves_launcher_keys_out() -> None:
    values = toml('max_steps = 2\nclean_output_dir = true\n[deployment]\ntype = "multi_node"\nnum_nodes = 2\n[log]\n')
    resolved = resolve_sft(values, validation="never")
    assert resolved.config == {"max_steps": 2, "log": {"ranks_filter": [0]}}
    assert resolved.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_sub_configs_are_whole_and_carry_their_digest(tmp_path: Path) -> None:
    table = {"a": 1, "s": 'quote " and\nnewline', "list": [{"x": 1.5}, {"y": []}], "empty": {}, "none": None}
    written = write_subconfigs(tmp_path / "configs", {"trainer.toml": table}, DEFAULT, stamp="e1")["trainer.toml"]
    data = Path(written.path).read_bytes()
    assert tomllib.loads(data.decode()) == {k: v for k, v in table.items() if v is not None}
    assert written.sha256 == digest(data)
    assert [path.name for path in (tmp_path / "configs").iterdir()] == ["trainer.toml"]


def test_generation_0_8_has_places_of_its_own() -> None:
    values = tomllib.loads(
        """
        output_dir = "out"
        max_steps = 4
        [run]
        name = "r1"
        [model]
        name = "m/x"
        [monitors.wandb]
        project = "p"
        [monitors.file]
        [ckpt]
        [resume]
        [orchestrator]
        [inference.vllm]
        tensor_parallel_size = 2
        """
    )
    resolved = resolve_rl(pin_resume_step(values, 20, GEN_0_8), contract=GEN_0_8, validation="never")
    for table in (resolved.trainer, resolved.orchestrator):
        assert table["output_dir"] == "out/r1"
        assert table["monitors"] == {"wandb": {"project": "p"}, "file": {}}
        assert (table["resume"], table["ckpt"]) == ({"step": 20}, {})
    assert resolved.inference["vllm"] == {"tensor_parallel_size": 2, "model": "m/x"}
    assert "model" not in resolved.inference
    assert (resolved.model_name, resolved.tp) == ("m/x", 2)


def test_generation_0_8_sub_configs_are_json(tmp_path: Path) -> None:
    written = write_subconfigs(tmp_path, {"sft.json": {"router": None}}, GEN_0_8, stamp="e1")["sft.json"]
    assert json.loads(Path(written.path).read_text()) == {"router": None}


def test_a_failed_write_leaves_the_old_sub_configs(tmp_path: Path) -> None:
    write_subconfigs(tmp_path, {"a.toml": {"v": 1}}, DEFAULT, stamp="e1")
    with pytest.raises((TypeError, ValueError)):
        write_subconfigs(tmp_path, {"a.toml": {"v": 2}, "b.toml": {"v": object()}}, DEFAULT, stamp="e2")
    assert tomllib.loads((tmp_path / "a.toml").read_text()) == {"v": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


CLASSES = """
from typing import Literal
from pydantic import BaseModel, ConfigDict, Field, model_validator

class Base(BaseModel):
    model_config = ConfigDict(extra="forbid")
class Model(Base):
    name: str = "d"
    cp: int = Field(1, ge=1)
class Trainer(Base):
    model: Model = Model()
    max_steps: int
class A(Base):
    type: Literal["a"] = "a"
    port: int = 1
class B(Base):
    type: Literal["b"] = "b"
class RLConfig(Base):
    trainer: Trainer
    orchestrator: dict = {}
    inference: dict = {}
    slurm: dict | None = None
    transport: A | B = Field(A(), discriminator="type")
    @model_validator(mode="after")
    def guard(self):
        if self.slurm is None:
            raise ValueError("Must use SLURM for multi-node deployment.")
        if self.trainer.model.name == "taskset":
            raise ModuleNotFoundError("taskset 'x' not found")
        return self
"""


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A namespace package that answers like Prime-RL's config package."""
    root = tmp_path / "site"
    (root / "prime_rl" / "configs").mkdir(parents=True)
    (root / "prime_rl" / "utils").mkdir()
    (root / "prime_rl" / "configs" / "rl.py").write_text(CLASSES)
    (root / "prime_rl" / "utils" / "config.py").write_text(
        "def to_toml_dict(model, exclude=None):\n"
        "    return model.model_dump(mode='json') if hasattr(model, 'model_dump') else model\n"
    )
    return root


def resolve_with(classes: Path, values: dict, validation: str = "required") -> subprocess.CompletedProcess[str]:
    program = (
        "import json, sys\n"
        "from primebeaker.prime_rl.resolve import resolve_rl\n"
        "from primebeaker.errors import PrimeBeakerError\n"
        "try:\n"
        f"    r = resolve_rl(json.loads(sys.argv[1]), validation={validation!r})\n"
        "except PrimeBeakerError as error:\n"
        "    print(error); sys.exit(error.exit_code)\n"
        "print(json.dumps([r.trainer, r.notices]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(values)],
        env={"PYTHONPATH": f"{classes}:{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_config_classes_validate_and_get_the_empty_slurm_table(classes: Path) -> None:
    done = resolve_with(classes, {"trainer": {"max_steps": 2}})
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        [{"model": {"name": "d", "cp": 1}, "max_steps": 2}, []],
    )


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (
            {"trainer": {"max_steps": "two", "model": {"cpp": 1, "cp": 0}}, "transport": {"type": "a", "port": "x"}},
            [
                "trainer.model.cp = 0: expected greater than or equal to 1",
                "trainer.model.cpp: unknown key; did you mean 'cp'?",
                "trainer.max_steps = 'two': expected a whole number",
                "transport.port = 'x': expected a whole number",
            ],
        ),
        ({"trainer": {}}, ["trainer.max_steps: this key is required"]),
        (
            {"trainer": {"max_steps": 1}, "transport": {"type": "c"}},
            ["transport.type = 'c': expected one of 'a', 'b'"],
        ),
        ({"trainer": {"max_steps": 1, "model": {"name": "taskset"}}}, ["refused by Prime-RL: taskset 'x' not found"]),
    ],
)
def test_faults_are_told_one_line_each_in_our_words(classes: Path, values: dict, lines: list[str]) -> None:
    done = resolve_with(classes, values)
    assert done.returncode == 2
    assert done.stdout.splitlines() == lines
    assert "pydantic" not in done.stdout + done.stderr


def test_a_broken_config_package_is_a_fault_where_required_and_a_notice_else(classes: Path) -> None:
    (classes / "prime_rl" / "configs" / "rl.py").write_text("import no_such_module\n")
    required = resolve_with(classes, {"trainer": {"max_steps": 2}})
    assert required.returncode == 2
    assert "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'" in required.stdout
    fallback = resolve_with(classes, {"trainer": {"max_steps": 2}}, validation="auto")
    assert "config not validated by Prime-RL" in json.loads(fallback.stdout)[1][0]
