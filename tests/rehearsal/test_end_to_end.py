"""Whole rehearsals with real processes: what ran, what was earned, what was left on disk, and nothing left running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from primebeaker.config import TomlDocument
from primebeaker.launch.settings import LaunchSettings
from primebeaker.prime_rl.checkpoint_rules import rl_rule
from primebeaker.prime_rl.checkpoints import newest_complete
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.report_text import report_text
from primebeaker.rehearsal.run import rehearse

from .conftest import ROOT

EXAMPLE = ROOT / "examples/rl/config.toml"
MULTINODE = ROOT / "examples/rl/multinode.toml"


def test_single_node_rl(home: Path, tmp_path: Path) -> None:
    """The example runs: real rollouts, rewards of the real rubric, a complete checkpoint, the source untouched."""
    before = EXAMPLE.read_bytes()
    report = rehearse("rl", LaunchSettings(toml=EXAMPLE), RehearsalOptions(work_dir=tmp_path / "work", timeout=300))
    assert report["ok"], report
    assert [step["step"] for step in report["steps"]] == [1, 2]
    assert all(step["rollouts"] == 4 and step["errors"] == 0 for step in report["steps"])
    # Format pays 1 and a right verdict 1 more, so a mean lies between 0 and 2.
    assert all(0 <= step["reward_mean"] <= 2 for step in report["steps"])
    assert [replica["state"] for replica in report["replicas"]] == ["succeeded"]
    assert report["checkpoints"][-1]["complete"]
    layout = GEN_0_7.layout(tmp_path / "work" / "output")
    chosen = newest_complete(layout, rl_rule(1)).chosen
    assert chosen is not None and chosen.step == 2 and chosen.verified
    traces = layout.trace_file(1, "train", "all").read_text().splitlines()
    assert len(traces) == 4
    assert EXAMPLE.read_bytes() == before
    assert not (ROOT / "outputs").exists() or not (ROOT / "outputs/example-rl").exists()


def test_two_replicas_the_first_one_mixed(home: Path, tmp_path: Path) -> None:
    """Roles, router, twelve inference GPUs and the real gateway come up, and the topology ends together."""
    report = rehearse("rl", LaunchSettings(toml=MULTINODE), RehearsalOptions(work_dir=tmp_path / "work", timeout=300))
    assert report["ok"], report
    assert [(row["rank"], row["role"], row["state"]) for row in report["replicas"]] == [
        (0, "mixed", "succeeded"),
        (1, "inference", "succeeded"),
    ]
    assert report["topology"]["inference_ranks"] == 6
    assert {row["name"] for row in report["barriers"] if row["rank"] == 0} >= {"assemble", "prepare", "gateway"}
    assert report["checkpoints"][-1]["complete"]
    assert any("--registry" in row["message"] for row in report["problems"])
    summary = json.loads((tmp_path / "work/output/primebeaker_run_summary.json").read_text())
    assert (summary["code"], summary["complete_checkpoint"]) == (0, 2)


def test_the_bandit_learns_from_the_real_reward(home: Path) -> None:
    """Twelve steps: the last quarter earns more than the first."""
    report = rehearse("rl", LaunchSettings(toml=EXAMPLE), RehearsalOptions(steps=12, rollouts=4, timeout=300))
    assert report["ok"], report
    rewards = [step["reward_mean"] for step in report["steps"]]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) > sum(rewards[:3])


def test_a_reward_that_cannot_teach_is_said_to_be_one(home: Path, tmp_path: Path) -> None:
    """Answers that no reply can match, and no pay for the form, earn the same whatever the policy does."""
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"match": "", "reply": "no verdict at all"}]))
    report = rehearse("rl", LaunchSettings(toml=EXAMPLE), RehearsalOptions(model=f"scripted:{rules}", timeout=300))
    assert report["ok"], report
    (problem,) = [row for row in report["problems"] if row["where"] == "reward"]
    assert "cannot teach anything" in problem["message"]


def test_a_typo_is_found_before_anything_starts(home: Path, tmp_path: Path) -> None:
    toml = tmp_path / "rl.toml"
    toml.write_text(EXAMPLE.read_text().replace('type = "single_node"\ngpus_per_node = 2', 'type = "single"'))
    result = _command("--toml", str(toml))
    assert result.returncode == 2
    assert result.stdout == ""
    assert f"{toml}:" in result.stderr and "deployment.type" in result.stderr
    assert not list(home.rglob("experiments/*"))


def test_an_environment_that_does_not_load_fails_with_its_own_words(home: Path, tmp_path: Path) -> None:
    toml = tmp_path / "rl.toml"
    broken = tmp_path / "rows.jsonl"
    broken.write_text("no JSON\n")
    document = TomlDocument.from_path(EXAMPLE).with_value(
        "orchestrator.train.source[0].legacy.args.dataset", str(broken)
    )
    toml.write_text(document.text)
    report = rehearse("rl", LaunchSettings(toml=toml), RehearsalOptions(timeout=60))
    assert not report["ok"]
    assert any(str(broken) in line for line in report["failure"]["last_lines"]), report["failure"]
    assert "FAILED" in report_text(report)


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "primebeaker", "rehearse", *words], capture_output=True, text=True, timeout=120
    )
