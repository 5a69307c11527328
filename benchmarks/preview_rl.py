"""Wall seconds and memory of ``rl preview`` of the small example TOML."""

import sys
from pathlib import Path

from measure import command, python_pass, report

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    words = [
        sys.executable,
        "-m",
        "primebeaker",
        "rl",
        "preview",
        "--toml=examples/rl/config.toml",
        f"--mount-path={ROOT}",
    ]
    base = python_pass()
    run = command(words, cwd=str(ROOT))
    report("rl preview", run.seconds, "s", 0.20, ratio_to_python_pass=round(run.seconds / base, 1))
    report("rl preview memory", run.mebibytes, "MiB", 45)
