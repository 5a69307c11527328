"""The index and ``rl checkpoints`` judge the same steps alike."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule
from primebeaker.prime_rl.checkpoints import read_step
from primebeaker.prime_rl.layout import Layout
from primebeaker.watcher import details
from primebeaker.watcher.database import reading
from primebeaker.watcher.references import resolve_reference

from .conftest import Tree, age, write


def state(layout: Layout, step: int = 5) -> Path:
    trainer = layout.trainer_checkpoint(step)
    for rank in range(2):
        write(trainer / f"__{rank}_0.distcp", "x" * 64)
    write(trainer / ".metadata", b"m")
    progress = layout.orchestrator_progress(step)
    progress.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(progress, "w") as archive:
        archive.writestr("progress", "1")
    return trainer


def lacks(tree: Tree, run: str) -> list[str] | None:
    tree.update()
    with reading(tree.database) as connection:
        entity = resolve_reference(connection, f"{run}@5", kinds=("checkpoint",))
        found: list[str] | None = details.checkpoint_detail(connection, entity)["checkpoint"]["lacks"]
    return found


DAMAGE: dict[str, Callable[[Layout, Path], object]] = {
    "whole": lambda _layout, _trainer: None,
    "no metadata": lambda _layout, trainer: (trainer / ".metadata").unlink(),
    "empty metadata": lambda _layout, trainer: (trainer / ".metadata").write_bytes(b""),
    "no first shard": lambda _layout, trainer: (trainer / "__0_0.distcp").unlink(),
    "empty first shard": lambda _layout, trainer: (trainer / "__0_0.distcp").write_bytes(b""),
    "no progress": lambda layout, _trainer: layout.orchestrator_progress(5).unlink(),
    "torn progress": lambda layout, _trainer: layout.orchestrator_progress(5).write_bytes(b"PK\x03\x04torn"),
    "saving": lambda _layout, trainer: write(trainer / ".metadata.tmp", "x"),
}


@pytest.mark.parametrize("generation", ["0.7", "0.8"])
@pytest.mark.parametrize("name", DAMAGE)
def test_both_name_the_same_missing_parts(tree: Tree, generation: str, name: str) -> None:
    tree.rl("r", "Qwen/Qwen3-0.6B")
    layout = find_layout(tree.runs / "r", generation=generation)  # type: ignore[arg-type]
    trainer = state(layout)
    age(tree.root, time.time() - 7200)
    DAMAGE[name](layout, trainer)
    judged = read_step(layout, rl_rule(2), 5)
    assert judged is not None
    assert lacks(tree, "r") == list(judged.missing)
    assert judged.complete == (name == "whole")


def test_the_orchestrators_part_may_come_later(tree: Tree) -> None:
    tree.rl("r", "Qwen/Qwen3-0.6B")
    layout = find_layout(tree.runs / "r", generation="0.7")
    state(layout)
    progress = layout.orchestrator_progress(5)
    content = progress.read_bytes()
    progress.unlink()
    age(tree.root, time.time() - 7200)
    assert lacks(tree, "r") == ["orchestrator progress.pt"]
    progress.write_bytes(content)
    assert lacks(tree, "r") == []


def test_fine_tuning_has_no_orchestrator_and_weights_alone_no_state(tree: Tree) -> None:
    tree.sft("s")
    state(find_layout(tree.runs / "s", generation="0.7"))
    (tree.runs / "s/run_default/checkpoints/step_5/orchestrator/progress.pt").unlink()
    tree.sft("w")
    tree.checkpoint("w", 5)
    assert lacks(tree, "s") == []
    assert lacks(tree, "w") is None
    assert json.dumps(lacks(tree, "s")) == "[]"
