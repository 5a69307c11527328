"""Rehearse the single-node RL example, two steps with real rollouts: start-up to report, and the processes' share."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from measure import command, python_pass, report

ROOT = Path(__file__).parents[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        run = command(
            [
                *(sys.executable, "-m", "primebeaker", "rehearse", "--toml=examples/rl/config.toml"),
                *(f"--mount-path={ROOT}", "--steps=2", "--format=json"),
            ],
            repeats=3,
            env={**os.environ, "PRIMEBEAKER_LOCAL_HOME": home},
            cwd=str(ROOT),
        )
    ratio = round(run.seconds / python_pass(), 1)
    report("rehearse the single-node RL example, 2 steps", run.seconds, "s", bound=60.0, ratio_to_python_pass=ratio)


if __name__ == "__main__":
    main()
