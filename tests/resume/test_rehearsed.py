"""A whole run resumed for real: two rehearsed replicas, then a fresh topology from their last checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def primebeaker(tmp_path):
    """Run one command line with an engine of its own: exit code, stdout, stderr."""
    env = {**os.environ, "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine"), "PRIMEBEAKER_ENGINE": "local"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "primebeaker", *words],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def test_a_rehearsed_run_is_resumed_and_finishes(primebeaker, tmp_path) -> None:
    work = tmp_path / "work"
    done = primebeaker(
        "rehearse", "--toml=examples/rl/multinode.toml", "--steps=2", f"--work-dir={work}", "--timeout=200"
    )
    assert done.returncode == 0, done.stderr
    source = json.loads(done.stdout)["experiment_id"]

    finished = primebeaker("rl", "resume", f"--from-experiment={source}", "--rehearse")
    assert finished.returncode == 2
    assert "already finished: step 2 is the last one" in finished.stderr

    longer = work / "longer.toml"
    longer.write_text((work / "config.toml").read_text().replace("max_steps = 2", "max_steps = 4"))
    words = ("rl", "resume", f"--from-experiment={source}", f"--config={longer}", "--attempt-id=r1")
    resumed = primebeaker(*words, "--rehearse")
    assert resumed.returncode == 0, resumed.stderr
    document = json.loads(resumed.stdout)
    assert document["resume"]["checkpoint"]["step"] == 2
    child = document["child_experiment_id"]

    # Two launches never share the directory: the child is active, or has left a newer step behind.
    assert primebeaker(*words[:-1], "--attempt-id=r2", "--rehearse").returncode == 2
    waited = primebeaker("local", "wait", child, "--timeout=200")
    assert waited.returncode == 0, primebeaker("local", "logs", child).stdout[-3000:]

    listing = primebeaker("rl", "checkpoints", f"--output-dir={work}/output", f"--toml={longer}")
    assert json.loads(listing.stdout)["latest"] == 4
    metrics = (work / "output/run_default/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics if "step" in json.loads(line)]
    assert steps[-2:] == [3, 4]
    specs = [
        json.loads(path.read_text())
        for path in (work / "scratch/primebeaker/beaker_experiments").glob("*.json")
        if ".receipt" not in path.name
    ]
    runs = {
        entry["value"]
        for spec in specs
        for entry in spec["tasks"][0]["envVars"]
        if entry["name"] == "WANDB_SHARED_RUN_ID"
    }
    assert len(specs) == 2
    assert len(runs) == 1


def test_only_rehearsals_are_continued_as_rehearsals(primebeaker) -> None:
    refused = primebeaker("rl", "resume", "--from-experiment=01X", "--rehearse", "--engine=beaker")
    assert refused.returncode == 2
    assert "--rehearse needs the embedded engine; pass --engine=local" in refused.stderr
