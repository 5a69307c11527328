"""Rehearse the example of two replicas on more of them, two steps with real rollouts: start-up to report.

``rehearsal_replicas.py [REPLICAS]``, 16 by default.  Every replica has eight GPUs and engines of four; the first one
is shared by four trainer ranks and one engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from measure import command, python_pass, report

from primebeaker.config import TomlDocument

ROOT = Path(__file__).parents[1]
_BOUNDS = {2: 60.0, 8: 90.0, 16: 180.0}


def _toml(replicas: int) -> str:
    engines = 1 + 2 * (replicas - 1)
    document = TomlDocument.from_path(ROOT / "examples/rl/multinode.toml")
    for key, value in {
        "deployment.num_infer_nodes": replicas,
        "inference.parallel.tp": 4,
        "inference.parallel.dp": engines,
        "inference.api_server_count": engines,
    }.items():
        document = document.with_value(key, value)
    return document.text


def main() -> None:
    replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    with tempfile.TemporaryDirectory() as home:
        toml, outcome = Path(home) / "rl.toml", Path(home) / "report.json"
        toml.write_text(_toml(replicas))
        words = ["rehearse", f"--toml={toml}", f"--mount-path={ROOT}", "--steps=2", "--timeout=600", "--format=json"]
        shell = f'"$0" -m primebeaker "$@" > {outcome}'
        run = command(
            ["sh", "-c", shell, sys.executable, *words],
            repeats=1,
            env={**os.environ, "PRIMEBEAKER_LOCAL_HOME": f"{home}/engine"},
            cwd=str(ROOT),
        )
        ended = json.loads(outcome.read_text())
    assert ended["ok"], ended["verdict"]
    assert len(ended["replicas"]) == replicas
    report(
        f"rehearse RL on {replicas} replicas, 2 steps",
        run.seconds,
        "s",
        bound=_BOUNDS.get(replicas),
        engines=1 + 2 * (replicas - 1),
        ratio_to_python_pass=round(run.seconds / python_pass(), 1),
    )


if __name__ == "__main__":
    main()
