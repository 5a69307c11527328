"""Every example really runs, with stand-ins for the GPU programs; what it needs and this machine lacks is invented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOML = "--toml=examples/{}"
#: Example -> how it is rehearsed. Containers and the search agent's corpus are not here, so their rollouts are invented;
#: with a corpus of its own the search agent is rehearsed in tests/joint.
HOW = {
    "sft/config.toml": ["rehearse", TOML],
    "rl/config.toml": ["rehearse", TOML],
    "rl/multinode.toml": ["rehearse", TOML],
    "podman-terminal/rl.toml": ["rehearse", TOML, "--no-rollouts"],
    "podman-terminal/multinode-rl.toml": ["rehearse", TOML, "--no-rollouts"],
    "search-agent-webterminal/multinode-rl.toml": [
        "run", "rehearse", "--config=examples/search-agent-webterminal/run.yaml", "--no-rollouts",
    ],
}  # fmt: skip


def test_no_example_is_left_out() -> None:
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.toml")} == set(HOW)


@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=pytest.mark.soak) if "multinode" in name else name for name in HOW]
)
def test_two_steps(example: str, tmp_path: Path) -> None:
    env = {**os.environ, "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine")}
    words = [word.format(example) for word in HOW[example]]
    if words[0] == "rehearse":
        words.append(f"--mount-path={ROOT}")
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker", *words, "--steps=2"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert [step["step"] for step in report["steps"]] == [1, 2]
    assert report["checkpoints"][-1]["step"] == 2
    assert not (ROOT / "outputs").exists()
