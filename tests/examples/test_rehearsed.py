"""The single-node examples really run their two steps, with stand-ins for the GPU programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_two_steps(kind, tmp_path) -> None:
    env = {**os.environ, "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine")}
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker", "rehearse", f"--toml=examples/{kind}/config.toml", f"--mount-path={ROOT}"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert [step["step"] for step in report["steps"]] == [1, 2]
    assert report["checkpoints"][-1]["step"] == 2
    assert not (ROOT / "outputs").exists()
