"""Make the reference tree of the watcher's figures: runs with two checkpoints, evaluations of five benchmarks each.

``python tools/watcher_tree.py FOLDER [RUNS] [EVALUATIONS]`` makes it and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

BENCHMARKS = ("frontier_science", "healthbench", "profbench", "researchqa", "wildguard_test")

_TOML = """\
output_dir = "{run}"
max_steps = 200
seed = {index}

[ckpt]
interval = 100

[trainer.model]
name = "{model}"
seq_len = 32768

[trainer.optim]
type = "adamw"
lr = {rate}
weight_decay = 0.01
betas1 = 0.9
betas2 = 0.95

[trainer.scheduler]
type = "cosine"
warmup_steps = 10
min_lr = 1e-7

[trainer.loss]
kl_tau = 0.001

[orchestrator]
batch_size = 256
group_size = 16
seq_len = 32768
oversampling_factor = 1.5

[[orchestrator.train.env]]
id = "terminal-tool-label"
dataset = "{root}/data/train_{group}.jsonl"

[inference.model]
name = "{model}"

[wandb]
project = "post-training"
entity = "lab"
name = "run-{index:05d}"
"""

_YAML = """\
workflow: standard
image: beaker://lab/eval
workspace: ai2/lab
budget: ai2/lab
evaluation:
  model: {model}
  run_dir: {result}
  datasets: [{names}]
  runs: 3
  verifier_tools: terminal
  verifier_max_iters: 16
  max_new_tokens: 10000
  batch_size: 512
  temperature: 1.0
  cluster: ai2/holmes
  priority: high
  model_replicas: 8
tags: [bench, run-{run:05d}]
"""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def make_tree(root: Path, runs: int, evaluations: int) -> None:
    """Write the tree; every file is a day old."""
    old = time.time() - 86_400
    configs = root / "repo/examples/configs"
    for folder in (
        configs / "train",
        configs / "eval",
        root / "runs",
        root / "results",
        root / "repo/beaker_experiments",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    for index in range(runs):
        run = f"{root}/runs/run-{index:05d}"
        parent = f"{root}/runs/run-{index // 10:05d}/weights/step_200"
        model = "Qwen/Qwen3-8B" if index < 10 else parent
        text = _TOML.format(run=run, index=index, model=model, rate=1e-6 * (1 + index % 7), root=root, group=index % 50)
        _write(f"{configs}/train/run-{index:05d}.toml", text)
        for step in (100, 200):
            Path(f"{run}/weights/step_{step}").mkdir(parents=True)
            _write(f"{run}/weights/step_{step}/model.safetensors", "x")
            os.utime(f"{run}/weights/step_{step}/model.safetensors", (old, old))
            os.utime(f"{run}/weights/step_{step}", (old, old))
        _write(f"{run}/metrics.jsonl", json.dumps({"step": 1, "loss/mean": 1.0}) + "\n")
        os.utime(f"{run}/metrics.jsonl", (old, old))
        os.utime(f"{run}/weights", (old, old))
        os.utime(run, (old, old))
        os.utime(f"{configs}/train/run-{index:05d}.toml", (old, old))
    for index in range(evaluations):
        run, step = index % runs, 100 + 100 * (index % 2)
        result = f"{root}/results/{index // 1000:03d}-{index:06d}"
        yaml = f"{configs}/eval/{index:06d}.yaml"
        model = f"{root}/runs/run-{run:05d}/weights/step_{step}"
        _write(yaml, _YAML.format(model=model, result=result, names=", ".join(BENCHMARKS), run=run))
        os.utime(yaml, (old, old))
        Path(result).mkdir()
        mean = 0.2 + 0.6 * ((index * 7919) % 1000) / 1000
        rows = [
            {
                "dataset": name,
                "runs": 3,
                "mean_accuracy": round(mean + 0.02 * n, 4),
                "stdev_accuracy": 0.02,
                "min_accuracy": round(mean + 0.02 * n - 0.02, 4),
                "max_accuracy": round(mean + 0.02 * n + 0.02, 4),
            }
            for n, name in enumerate(BENCHMARKS)
        ]
        lines = [json.dumps(row) + "\n" for row in rows]
        _write(f"{result}/averages.jsonl", "".join(lines))
        _write(f"{result}/failures.jsonl", "")
        _write(f"{result}/evals.log", "done\n")
        for name in ("averages.jsonl", "failures.jsonl", "evals.log"):
            os.utime(f"{result}/{name}", (old + index % 3600, old + index % 3600))
        os.utime(result, (old, old))


def main() -> int:
    """Make the tree named on the command line."""
    root = Path(sys.argv[1]).absolute()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    evaluations = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
    began = time.monotonic()
    make_tree(root, runs, evaluations)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"name": "watcher_tree", "runs": runs, "evaluations": evaluations, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
