"""Make the pictures of ``docs/watcher.md``: each page in light, dark and narrow, in a real Chromium.

Usage: ``python tools/watcher_screenshots.py [FOLDER]`` (default ``docs/images/watcher``).  Needs Debian's ``chromium``.
It makes a small tree of runs, indexes it, serves it on a free port and visits every page.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
VIEWS = {
    "light": ({"width": 1360, "height": 900}, "light"),
    "dark": ({"width": 1360, "height": 900}, "dark"),
    "narrow": ({"width": 390, "height": 844}, "light"),
}
BENCHMARKS = ("frontier_science", "healthbench", "profbench", "researchqa", "wildguard_test")


def write(path: Path, text: str) -> None:
    """Write a file, its folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def curve(run: Path, steps: int, generator: random.Random, *, stage: str) -> None:
    """A metric log that looks like training."""
    lines = []
    for step in range(1, steps + 1):
        wave = generator.gauss(0, 0.03)
        row: dict[str, float] = {"step": step, "time": 1_760_000_000 + 60 * step}
        if stage == "sft":
            row |= {"loss/mean": 2.2 * math.exp(-step / 90) + 0.8 + wave, "optim/grad_norm": 1.2 + abs(wave) * 8}
            if step % 10 == 0:
                row["val/loss"] = 2.1 * math.exp(-step / 85) + 0.86 + wave / 2
        else:
            row |= {
                "train/agg/all/terminal/reward/mean": 0.75 / (1 + math.exp(-(step - 90) / 45)) + wave,
                "optim/grad_norm": 0.4 + abs(wave) * 6,
                "entropy/all/mean": 0.9 * math.exp(-step / 160) + abs(wave),
                "perf/throughput": 10400 + 300 * wave * 10,
            }
            if step % 20 == 0:
                row["eval/terminal/all/test/avg@4"] = 0.66 / (1 + math.exp(-(step - 100) / 50)) + wave / 2
        lines.append(json.dumps(row))
    write(run / "metrics.jsonl", "\n".join(lines) + "\n")


def make_tree(root: Path) -> None:
    """A family of six runs with their evaluations."""
    generator = random.Random(7)
    configs, runs, results = root / "repo/examples/configs", root / "runs", root / "results"
    family = [
        ("chat-sft-v2", "sft", "Qwen/Qwen3-8B", 200),
        ("terminal-rl-a", "rl", "chat-sft-v2", 240),
        ("terminal-rl-b", "rl", "chat-sft-v2", 240),
        ("research-rl", "rl", "terminal-rl-b", 160),
        ("code-sft", "sft", "Qwen/Qwen3-8B", 120),
        ("judge-ablation", "rl", "code-sft", 80),
    ]
    ends: dict[str, Path] = {}
    for index, (name, stage, base, steps) in enumerate(family):
        run = runs / name
        model = str(ends.get(base, base))
        table = f'[model]\nname = "{model}"\n[data]\ntype = "sft"\nname = "{root}/data/{name}_train.jsonl"\n'
        table += "[optim]\nlr = 2e-5\n"
        if stage == "rl":
            table = (
                f'[trainer.model]\nname = "{model}"\n[trainer.optim]\nlr = {(1 + index) * 1e-6}\n[trainer.loss]\n'
                f"kl_tau = 0.001\n[orchestrator]\nbatch_size = {128 * (1 + index % 2)}\ngroup_size = 16\n"
            )
        head = f'output_dir = "{run}"\nmax_steps = {steps}\n'
        wandb = f'[wandb]\nproject = "post-training"\nentity = "lab"\nname = "{name}"\n'
        write(configs / f"train/{name}.toml", head + table + wandb)
        for step in range(steps // 4, steps + 1, steps // 4):
            write(run / f"weights/step_{step}/model.safetensors", "x" * 4000)
            write(run / f"checkpoints/step_{step}/trainer/__0_0.distcp", "x")
            write(run / f"checkpoints/step_{step}/trainer/.metadata", "x")
            write(run / f"run_default/checkpoints/step_{step}/orchestrator/progress.pt", "x")
            skill = 0.3 + 0.08 * index + 0.25 * step / steps
            for part, names in (("core", BENCHMARKS[:3]), ("wide", BENCHMARKS[3:])):
                place = results / f"{name}-{step}-{part}"
                write(
                    configs / f"eval/{name}-{step}-{part}.yaml",
                    f"evaluation:\n  model: {run}/weights/step_{step}\n  run_dir: {place}\n"
                    f"  datasets: [{', '.join(names)}]\n  runs: 3\n",
                )
                kept = names if (index + step) % 3 or part == "core" else names[:1]
                rows = [
                    {
                        "dataset": dataset,
                        "runs": 3,
                        "mean_accuracy": min(mean := skill * (0.8 + 0.4 * generator.random()), 0.98),
                        "stdev_accuracy": 0.02,
                        "min_accuracy": min(mean, 0.98) - 0.02,
                        "max_accuracy": min(min(mean, 0.98) + 0.02, 1),
                    }
                    for dataset in kept
                ]
                write(place / "averages.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        ends[name] = run / f"weights/step_{steps}"
        curve(run, steps, generator, stage=stage)
        spec = {
            "tasks": [
                {
                    "envVars": [
                        {"name": "OUTPUT_DIR", "value": str(run)},
                        {"name": "CONFIG_PATH", "value": f"{configs}/train/{name}.toml"},
                        {"name": "WANDB_RUN_ID", "value": f"w{index}kx"},
                    ]
                }
            ]
        }
        write(root / f"repo/beaker_experiments/{name}.json", json.dumps(spec))
        receipt = {"experiment_id": f"01J{index}", "experiment_name": name, "submitted_at": "2026-10-01T08:00:00Z"}
        write(root / f"repo/beaker_experiments/{name}.receipt.json", json.dumps(receipt))
    write(
        root / "repo/data/chat_manifest.json",
        json.dumps(
            {
                "name": "chat mix v2",
                "train_path": f"{root}/data/chat-sft-v2_train.jsonl",
                "sources": [
                    {"name": "dialogue", "parquet": "d.parquet", "weight": 0.5},
                    {"name": "tool calls", "parquet": "t.parquet", "weight": 0.3},
                    {"name": "science", "parquet": "s.parquet", "weight": 0.2},
                ],
            }
        ),
    )
    write(configs / "train/broken.toml", "[trainer\n")
    old = time.time() - 9000
    for folder, folders, files in os.walk(root):
        for item in [*folders, *files]:
            os.utime(Path(folder) / item, (old, old))
    (runs / "research-rl/metrics.jsonl").touch()


def settle(page: Page) -> None:
    """Wait until the curves are drawn."""
    page.wait_for_load_state("load")
    if page.locator(".curves").count():
        page.wait_for_selector(".curves .uplot, .curves .muted:not(:has-text('Reading'))", timeout=15_000)
    page.wait_for_timeout(250)


def visit(address: str, folder: Path) -> list[str]:
    """Take the pictures; returns script errors and pages that are too wide."""
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for view, (size, scheme) in VIEWS.items():
            context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
            page = context.new_page()
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(address + "runs")
            keys = dict(
                page.eval_on_selector_all(
                    "tr[id^=r-]", "rows => rows.map(row => [row.querySelector('th a').textContent, row.id.slice(2)])"
                )
            )
            run = keys["terminal-rl-b"]
            page.goto(address + f"runs/{run}")
            checkpoint = page.locator(".matrix th a").last.get_attribute("href").rpartition("/")[2]
            evaluation = page.locator(".matrix td a").first.get_attribute("href").rpartition("/")[2]
            refs = "&".join(f"ref={keys[name]}" for name in ("terminal-rl-a", "terminal-rl-b", "research-rl"))
            for name, path in {
                "overview": "",
                "runs": "runs",
                "run": f"runs/{run}",
                "checkpoint": f"checkpoints/{checkpoint}",
                "evaluations": "evaluations",
                "evaluation": f"evaluations/{evaluation}",
                "compare": f"compare?{refs}",
                "lineage": f"lineage/{run}",
                "issues": "issues",
            }.items():
                page.goto(address + path)
                settle(page)
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                if wide > 1:
                    problems.append(f"{name} in {view}: {wide} pixels too wide")
                page.screenshot(path=folder / f"{name}-{view}.png", full_page=True)
            context.close()
        browser.close()
    return problems


def main() -> int:
    """Make the tree, serve it, visit every page."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/watcher")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="watcher-") as name:
        root = Path(name) / "lab"
        make_tree(root)
        words = [sys.executable, "-m", "primebeaker.watcher"]
        database = f"--database={root}/watcher.sqlite3"
        roots = [f"--repo_root={root}/repo", f"--output_roots={root}/runs"]
        subprocess.run([*words, "update", database, *roots], check=True, stdout=subprocess.DEVNULL)
        server = subprocess.Popen([*words, "serve", database, "--port=0"], stderr=subprocess.PIPE, text=True)
        try:
            line = server.stderr.readline() if server.stderr else ""
            found = re.search(r"http://\S+", line)
            if not found:
                raise SystemExit(f"the server said: {line}")
            problems = visit(found[0], folder)
        finally:
            server.terminate()
            server.wait(timeout=20)
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
