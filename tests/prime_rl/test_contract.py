"""The names and paths of each supported Prime-RL version."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import DEFAULT, GEN_0_7, GEN_0_8, contract_for
from primebeaker.prime_rl.layout import parse_step

OUT = Path("/weka/me/run")


def test_the_default_contract_is_the_catalogued_version() -> None:
    assert DEFAULT is GEN_0_7
    assert DEFAULT.version == "v0.7.1.dev83"


def test_generation_0_7_nests_the_orchestrator() -> None:
    layout = GEN_0_7.layout(OUT)
    assert layout.trainer_metadata(20) == OUT / "checkpoints/step_20/trainer/.metadata"
    assert layout.trainer_shard(20, 3) == OUT / "checkpoints/step_20/trainer/__3_0.distcp"
    assert layout.orchestrator_progress(20) == OUT / "run_default/checkpoints/step_20/orchestrator/progress.pt"
    assert layout.broadcast(2) == OUT / "run_default/broadcasts/step_2"
    assert layout.weight_snapshot(2) == OUT / "weights/step_2"
    assert layout.rollout_roots == (OUT / "rollouts", OUT / "run_default/rollouts")


def test_generation_0_8_has_one_tree() -> None:
    layout = GEN_0_8.layout(OUT)
    assert layout.orchestrator_progress(20) == OUT / "checkpoints/step_20/orchestrator/progress.pt"
    assert layout.broadcast(2) == OUT / "broadcasts/step_2"
    assert layout.rollout_roots == (OUT / "rollouts",)


def test_a_checkpoint_directory_of_its_own_moves_checkpoints_and_weights_of_the_trainer() -> None:
    layout = GEN_0_7.layout(OUT, ckpt_output_dir=Path("/ssd/c"))
    assert layout.trainer_checkpoint(1) == Path("/ssd/c/checkpoints/step_1/trainer")
    assert layout.weight_snapshot(1) == Path("/ssd/c/weights/step_1")
    assert layout.orchestrator_checkpoint(1) == OUT / "run_default/checkpoints/step_1/orchestrator"


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("trainer", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("orchestrator", {}),
        (
            "inference",
            {
                "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
                "VLLM_ENGINE_READY_TIMEOUT_S": "4200",
                "UCX_TLS": "all",
            },
        ),
    ],
)
def test_default_environment_of_each_component(component: str, expected: dict[str, str]) -> None:
    common = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
    assert DEFAULT.default_env(component) == common | expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_0", 0),
        ("step_20", 20),
        ("step_020", None),
        ("step_20.bak", None),
        ("step_", None),
        ("step_-1", None),
        ("steps_1", None),
        ("step_٣", None),
    ],
)
def test_only_exact_step_names_are_steps(name: str, step: int | None) -> None:
    assert parse_step(name) == step


def test_an_unknown_generation_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"'0\.9': expected 0\.7 or 0\.8"):
        contract_for("0.9")
