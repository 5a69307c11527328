"""A whole family of runs on disk: SFT, RL from it, resumes, RL from RL, a joint run, evaluations in each state."""

from __future__ import annotations

import json
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from primebeaker.watcher.roots import Given
from primebeaker.watcher.update import ScanOptions, update

OLD = 1_700_000_000


def write(path: Path, text: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def age(root: Path, when: float = OLD) -> None:
    """Make every file old, so that nothing counts as being written."""
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            os.utime(Path(folder) / name, (when, when), follow_symlinks=False)
    os.utime(root, (when, when))


def as_nobody(tree: Tree) -> None:
    """Scan as a user for whom mode bits count: root reads what it likes."""
    if os.geteuid() != 0:
        tree.update()
        return
    for folder in (tree.root, *tree.root.parents):
        if folder.owner() == "root" and str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o777)
    for path in tree.root.glob("index.sqlite3*"):
        path.chmod(0o666)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(65534)
            tree.update()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@dataclass
class Tree:
    root: Path

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def database(self) -> Path:
        return self.root / "index.sqlite3"

    def train(self, name: str, text: str) -> Path:
        return write(self.repo / "examples/configs/train" / f"{name}.toml", text)

    def sft(self, name: str, *, base: str = "Qwen/Qwen3-0.6B", more: str = "") -> Path:
        return self.train(
            name,
            f'output_dir = "{self.runs / name}"\nmax_steps = 20\n{more}\n[model]\nname = "{base}"\n'
            f'[data]\ntype = "sft"\nname = "org/chat"\n[wandb]\nproject = "p"\nentity = "e"\nname = "{name}"\n',
        )

    def rl(self, name: str, base: str, *, more: str = "") -> Path:
        return self.train(
            name,
            f'output_dir = "{self.runs / name}"\nmax_steps = 20\n{more}\n[trainer.model]\nname = "{base}"\n'
            f"[trainer.optim]\nlr = 1e-5\n[orchestrator]\nbatch_size = 8\n",
        )

    def checkpoint(self, run: str, step: int) -> Path:
        path = self.runs / run / "weights" / f"step_{step}"
        write(path / "model.safetensors", "x")
        return path

    def evaluation(self, name: str, model: str, *, more: str = "", run_dir: str | None = None) -> Path:
        place = run_dir or str(self.results / name)
        return write(
            self.repo / "examples/configs/eval" / f"{name}.yaml",
            f"evaluation:\n  model: {model}\n  run_dir: {place}\n{more}",
        )

    def averages(self, name: str, **means: float) -> Path:
        rows = [
            {
                "dataset": key,
                "runs": 3,
                "mean_accuracy": value,
                "stdev_accuracy": 0.03,
                "min_accuracy": value - 0.01,
                "max_accuracy": value + 0.01,
            }
            for key, value in means.items()
        ]
        return write(self.results / name / "averages.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def given(self, **more: Any) -> Given:
        return Given(
            repo_root=str(self.repo),
            output_roots=(str(self.runs),),
            launch_spec_roots=(str(self.repo / "specs"),),
            **more,
        )

    def update(self, **options: Any) -> dict[str, Any]:
        given = options.pop("given", None) or self.given()
        dry_run = options.pop("dry_run", False)
        return update(self.database, given, ScanOptions(**options), warn=lambda _line: None, dry_run=dry_run)


@pytest.fixture(autouse=True)
def _no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the test trees have W&B ids; nobody shall be asked for them."""
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    for folder in (made.repo / "examples/configs/train", made.repo / "examples/configs/eval", made.runs, made.results):
        folder.mkdir(parents=True)
    return made


@pytest.fixture
def family(tree: Tree) -> Tree:
    """SFT -> RL (two resumes) -> RL, evaluations, everything hours old."""
    tree.sft("chat-sft")
    sft = tree.checkpoint("chat-sft", 20)
    rl = tree.rl("math-rl", str(sft))
    for step in (5, 10, 15):
        tree.checkpoint("math-rl", step)
    spec = write(
        tree.repo / "specs/math-rl.json",
        json.dumps(
            {
                "tasks": [
                    {
                        "envVars": [
                            {"name": "OUTPUT_DIR", "value": str(tree.runs / "math-rl")},
                            {"name": "CONFIG_PATH", "value": str(rl)},
                            {"name": "WANDB_RUN_ID", "value": "w1"},
                            {"name": "WANDB_PROJECT", "value": "p"},
                            {"name": "WANDB_ENTITY", "value": "e"},
                            {"name": "HF_TOKEN", "value": "hf_" + "x" * 20},
                        ]
                    }
                ]
            }
        ),
    )
    write(
        spec.with_name("math-rl.receipt.json"),
        json.dumps(
            {
                "experiment_id": "01A",
                "experiment_name": "math-rl",
                "workspace": "ai2/x",
                "submitted_at": "2023-11-01T00:00:00Z",
            }
        ),
    )
    for attempt, step, day in (("one", 5, 2), ("two", 10, 3)):
        generated = tree.runs / f"math-rl/primebeaker_resume/configs/math-rl-{attempt}.toml"
        write(generated, rl.read_text() + f"[ckpt]\nresume_step = {step}\n")
        write(
            tree.runs / f"math-rl/primebeaker_resume/attempts/{attempt}.json",
            json.dumps(
                {
                    "attempt_id": attempt,
                    "status": "submitted",
                    "created_at": f"2023-11-0{day}T00:00:00Z",
                    "source_experiment_id": "01A",
                    "child_experiment_id": f"01{attempt}",
                    "checkpoint": {"step": step},
                    "source_config_path": str(rl),
                    "generated_config_path": str(generated),
                }
            ),
        )
    tree.rl("math-rl2", str(tree.runs / "math-rl/weights/step_15"))
    tree.checkpoint("math-rl2", 20)
    tree.evaluation("rl-full", str(tree.runs / "math-rl/weights/step_15"), more="  datasets: [a, b]\n  runs: 3\n")
    tree.averages("rl-full", a=0.5, b=0.7)
    tree.evaluation("sft-part", str(sft), more="  datasets: [a, b]\n")
    tree.averages("sft-part", a=0.4)
    tree.evaluation("hub", "Qwen/Qwen3-0.6B")
    tree.averages("hub", a=0.3)
    age(tree.root, time.time() - 7200)
    return tree
