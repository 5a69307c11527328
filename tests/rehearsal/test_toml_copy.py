"""The rehearsed copy: tiny figures, own folders, everything else as the user wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.config import TomlDocument
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.toml_copy import copy_toml

from .conftest import ROOT

RL = TomlDocument.from_path(ROOT / "examples/rl/config.toml")
SFT = TomlDocument.from_path(ROOT / "examples/sft/config.toml")


def test_rl_copy(tmp_path: Path) -> None:
    copied = copy_toml(RL, "rl", RehearsalOptions(rollouts=3, examples=2), work_dir=tmp_path, base=ROOT)
    values = copied.document.values
    assert values["output_dir"] == str(tmp_path / "output")
    assert (values["orchestrator"]["batch_size"], values["orchestrator"]["group_size"]) == (6, 3)
    assert values["trainer"]["wandb"]["offline"] is values["orchestrator"]["wandb"]["offline"] is True
    dataset = values["orchestrator"]["train"]["source"][0]["legacy"]["args"]["dataset"]
    assert dataset == str(ROOT / "examples/rl/data/train.jsonl")
    assert values["inference"] == RL.values["inference"]
    # What is not edited stays to the byte, comments included.
    assert RL.text.splitlines()[0] in copied.document.text


def test_sft_copy(tmp_path: Path) -> None:
    values = copy_toml(SFT, "sft", RehearsalOptions(), work_dir=tmp_path, base=ROOT).document.values
    assert values["data"]["name"] == values["val"]["data"]["name"] == str(ROOT / "examples/sft/data")
    assert values["wandb"]["offline"] is True


@pytest.mark.parametrize(
    ("most", "asked", "steps", "interval"), [(100, None, 4, 2), (2, None, 2, 1), (100, 12, 12, 6), (1, None, 1, 1)]
)
def test_steps_and_checkpoint_interval(tmp_path: Path, most: int, asked: int | None, steps: int, interval: int) -> None:
    source = RL.with_value("max_steps", most).with_value("ckpt.interval", 50)
    copied = copy_toml(source, "rl", RehearsalOptions(steps=asked), work_dir=tmp_path, base=ROOT)
    assert copied.steps == copied.document.get("max_steps") == steps
    assert copied.document.get("ckpt.interval") == interval


def test_a_pinned_resume_step_is_left_out_and_told(tmp_path: Path) -> None:
    copied = copy_toml(RL.with_value("ckpt.resume_step", 20), "rl", RehearsalOptions(), work_dir=tmp_path, base=ROOT)
    assert copied.document.get("ckpt.resume_step") is None
    assert copied.left_out == ("ckpt.resume_step: a rehearsal starts in an empty directory",)


def test_cleaning_is_never_rehearsed(tmp_path: Path) -> None:
    source = RL.with_value("clean_output_dir", True)
    copied = copy_toml(source, "rl", RehearsalOptions(), work_dir=tmp_path, base=ROOT)
    assert copied.document.get("clean_output_dir") is False
