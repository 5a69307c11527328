"""What a TOML must hold to be launched, each rule alone."""

from __future__ import annotations

import pytest

from primebeaker.errors import UserError
from primebeaker.launch.plan import plan_launch
from primebeaker.launch.settings import LaunchSettings


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        ("rl", {"output_dir": None}, "/weka/run.toml: output_dir: the key is missing; set it to a directory under the mount"),
        ("rl", {"output_dir": 3}, "output_dir = 3: expected a non-empty string"),
        ("rl", {"wandb": None}, "/weka/run.toml: [wandb]: the table is missing; add [wandb]"),
        ("rl", {"wandb.name": 3}, "wandb.name = 3: expected a non-empty string"),
        ("rl", {"wandb.offline": True}, "wandb.offline = true: Prime-RL's rl refuses it at the top level; set trainer.wandb.offline = true and orchestrator.wandb.offline = true instead"),
        ("rl", {"wandb.offline": "yes"}, 'wandb.offline = "yes": expected true or false'),
        ("rl", {"dry_run": True}, "dry_run = true: the job would end at once; remove it"),
        ("rl", {"slurm": {"job_name": "x"}}, "slurm: Prime-RL would call sbatch inside the container; remove [slurm]"),
        ("rl", {"clean_output_dir": True}, "clean_output_dir = true: the task restarts automatically, and every restart would delete the run's checkpoints; set it to false"),
        ("rl", {"env_vars": {"CUDA_VISIBLE_DEVICES": "0"}}, "env_vars.CUDA_VISIBLE_DEVICES"),
        ("rl", {"trainer.env_vars": {"WANDB_SHARED_MODE": "1"}}, "trainer.env_vars.WANDB_SHARED_MODE"),
        ("rl", {"max_steps": "3"}, "max_steps = \"3\": expected an integer"),
        ("rl", {"deployment.type": "nodes"}, "expected 'single_node' or 'multi_node'"),
        ("rl-nodes", {"trainer.model": None}, "[trainer.model]: the table is missing"),
        ("rl-nodes", {"inference": None}, "[inference]: the table is missing"),
        ("rl-nodes", {"inference.parallel": None}, "[inference.parallel]: the table is missing"),
        ("rl", {"orchestrator.train.source": [{"legacy": {"id": "x", "args": {"local_search_model_path": ""}}}]}, "orchestrator.train.source[0].legacy.args.local_search_model_path"),
        ("sft", {"data": None}, "[data]: the table is missing"),
        ("sft", {"val": None}, "[val]: the table is missing"),
        ("sft", {"val.data": None}, "[val.data]: the table is missing"),
        ("sft", {"ckpt": None}, "[ckpt]: the table is missing"),
        ("sft", {"data.name": None}, "data.name: the key is missing"),
        ("sft", {"val.data.name": None}, "val.data.name: the key is missing"),
        ("sft", {"val.interval": None}, "val.interval: the key is missing"),
        ("sft", {"val.interval": 0}, "val.interval = 0: expected a whole number of at least 1"),
        ("sft", {"ckpt.interval": None}, "ckpt.interval: the key is missing"),
        ("sft", {"max_steps": None}, "max_steps: the key is missing"),
        ("sft", {"max_steps": True}, "max_steps = true: expected a whole number of at least 1"),
        ("sft", {"val.eval_on_start": False}, "val.eval_on_start = false: validation must run before the first step"),
        ("sft", {"val.eval_on_start": None}, "val.eval_on_start: validation must run before the first step"),
        ("sft", {"max_steps": 1}, "val.interval = 2: validation would never run within max_steps = 1; set it to 1 or less"),
        ("sft", {"val.interval": 6}, "val.interval = 6: checkpoints are saved every 5 steps (ckpt.interval)"),
        ("sft-nodes", {"val.interval": 6}, "val.interval = 6: checkpoints are saved every 5 steps"),
        ("sft-nodes", {"data": None}, "[data]: the table is missing"),
    ],
)  # fmt: skip
def test_refused(lines, base, changes, expected) -> None:
    found = lines(base, changes)
    assert any(expected in line for line in found), found
    assert all(line.startswith("/weka/run.toml:") for line in found)


@pytest.mark.parametrize(
    ("kind", "base", "expected"),
    [
        ("rl", "sft", "[data]: this TOML is for sft training, not for rl; use primebeaker sft"),
        ("sft", "rl", "[orchestrator]: this TOML is for rl training, not for sft; use primebeaker rl"),
    ],
)
def test_a_toml_of_the_other_kind_is_one_line(run_cli, toml, mount, kind, base, expected) -> None:
    code, out, err = run_cli(kind, "preview", "--toml", str(toml(base)), "--mount-path", str(mount))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and expected in err


def test_one_mistake_is_one_line(lines) -> None:
    """The launch's own rule about a key says more than the field check, and is not repeated by it."""
    assert len(lines("rl", {"deployment.num_train_gpus": "4"})) == 1
    assert len(lines("rl", {"clean_output_dir": "yes"})) == 1


def test_the_line_of_a_key(lines, mount) -> None:
    (line,) = lines("rl", {"dry_run": True})
    number = int(line.split(":")[1])
    assert (mount / "run.toml").read_text().splitlines()[number - 1] == "dry_run = true"


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        ("rl", {"ckpt.resume_step": None}, "a restarted task will stop, because Prime-RL refuses a directory that already holds checkpoints; set ckpt.resume_step = -1"),
        ("rl", {"inference": None}, "[inference] is absent: no inference server is started"),
        ("rl-nodes", {"clean_output_dir": True}, "clean_output_dir = true: "),
        ("rl", {"orchestrator.max_stpes": 3}, "orchestrator.max_stpes = 3: unknown field; did you mean orchestrator.max_steps?"),
        ("rl", {"orchestrator.train.source": [{"legacy": {"id": "primebeaker.environments.jtc_lable_env"}}]}, "jtc_label_env"),
        ("rl", {"wandb.name": "a b"}, "the experiment is named 'a-b'; the W&B name stays as it is"),
    ],
)  # fmt: skip
def test_warned_about(plan, base, changes, expected) -> None:
    warnings = plan(base, changes).warnings
    assert any(expected in warning for warning in warnings), warnings


def test_a_clean_toml_has_no_warning(plan) -> None:
    for base in ("sft", "rl", "sft-nodes", "rl-nodes"):
        assert plan(base).warnings == ()


def test_modes_of_the_field_check(plan, lines) -> None:
    unknown = {"orchestrator.max_stpes": 3}
    assert "max_stpes" in "".join(lines("rl", unknown, toml_check="strict"))
    assert plan("rl", unknown, toml_check="off").warnings == ()
    assert "orchestrator.batch_size" in "".join(lines("rl", {"orchestrator.batch_size": "x"}))
    plan("rl", {"orchestrator.batch_size": "x"}, toml_check="off")


def test_multi_node_forms_may_leave_things_out(plan) -> None:
    plan("sft-nodes", {"ckpt": None, "max_steps": None})
    assert plan("rl-nodes", {"slurm": {"job_name": "x"}}).topology.nodes == 2


NEW_SFT = """
output_dir = "runs"
max_steps = 4
[run]
name = "exp 1"
[monitors.wandb]
project = "p"
entity = "team"
[deployment]
type = "{type}"
{gpus}
[data]
type = "sft"
name = "a/b"
[val]
interval = 1
eval_on_start = true
[val.data]
type = "sft"
name = "a/b"
[ckpt]
interval = 2
[resume]
"""


@pytest.fixture
def plan_new(mount):
    """Plan a TOML of the newer Prime-RL generation."""

    def make(kind: str, text: str, **settings):
        path = mount / "new.toml"
        path.write_text(text)
        given = {"image": "beaker://01KZVDND2PYP538F5JSGJ469EC", "mount_path": str(mount), "launch_id": "l1"}
        return plan_launch(kind, LaunchSettings(toml=path, **{**given, **settings}))

    return make


def test_the_newer_generation(plan_new, mount, variables) -> None:
    made = plan_new("sft", NEW_SFT.format(type="single_node", gpus="num_train_gpus = 2"))
    assert made.generation == "0.8"
    assert made.experiment_name == "exp-1"
    found = variables(made.spec)
    assert found["OUTPUT_DIR"] == f"{mount}/runs/exp 1"
    assert found["EXPERIMENT_NAME"] == "exp 1"
    assert found["WANDB_ENTITY"] == "team"
    assert found["NUM_GPUS"] == "2"
    assert made.warnings[1:] == ()
    nodes = plan_new("sft", NEW_SFT.format(type="multi_node", gpus="num_train_nodes = 3"))
    assert nodes.topology.nodes == 3
    kept = plan_new(
        "sft", NEW_SFT.replace('name = "exp 1"', 'name = "n"\ndir = "d"').format(type="single_node", gpus="")
    )
    assert variables(kept.spec)["OUTPUT_DIR"] == f"{mount}/runs/d"


def test_the_newer_generation_needs_an_image_and_a_name(plan_new) -> None:
    text = NEW_SFT.format(type="single_node", gpus="").replace('name = "exp 1"', "")
    with pytest.raises(UserError) as caught:
        plan_new("sft", text, image=None)
    assert "the catalogued images hold Prime-RL 0.7; pass --image" in str(caught.value)
    assert "run.name: Prime-RL would invent a name at every start" in str(caught.value)


def test_what_the_newer_generation_cannot_do_here(plan_new) -> None:
    with pytest.raises(UserError, match="multi-node SFT with online evals is not supported"):
        plan_new("sft", NEW_SFT.format(type="multi_node", gpus="num_train_nodes = 2") + "\n[inference]\n")
    rl = """
output_dir = "runs"
[run]
name = "x"
[monitors.wandb]
[deployment]
type = "multi_node"
num_train_nodes = 1
num_infer_nodes = 1
[trainer.model]
[orchestrator]
[inference.vllm]
tensor_parallel_size = 1
"""
    with pytest.raises(UserError, match="multi-node RL is supported for Prime-RL 0"):
        plan_new("rl", rl, registry="redis://h:1")


def test_keys_of_two_generations_are_refused(lines) -> None:
    text = "\n".join(lines("rl", {"monitors": {"wandb": {}}, "clean": True}))
    assert "0.8" in text
