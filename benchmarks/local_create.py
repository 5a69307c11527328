"""From the call that creates a 4-replica experiment on the embedded engine until all replicas run; and its stop."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path

from measure import report

from primebeaker.local import LocalEngine

REPEATS = 7


def write_spec(folder: Path) -> Path:
    task = {
        "name": "main",
        "image": {"beaker": "x"},
        "command": ["sleep", "600"],
        "replicas": 4,
        "synchronizedStartTimeout": "1m",
        "propagateFailure": True,
    }
    path = folder / "spec.json"
    path.write_text(json.dumps({"version": "v2", "tasks": [task]}))
    return path


def seconds_of(experiment_id: str) -> float:
    """CPU seconds the experiment's supervisor has used."""
    row = ENGINE.store.experiment(experiment_id)
    fields = Path(f"/proc/{row.supervisor_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ENGINE = LocalEngine(folder / "home")
        spec = write_spec(folder)
        to_running, to_return, to_stopped, start_up = [], [], [], []
        for number in range(REPEATS):
            called = time.time()
            created = ENGINE.create(spec, name=f"n{number}", workspace="a/b").experiment_id
            to_return.append(time.time() - called)
            while not all(job.started_at for job in ENGINE.store.jobs(created)):
                time.sleep(0.002)
            last = max(datetime.fromisoformat(job.started_at).timestamp() for job in ENGINE.store.jobs(created))
            to_running.append(last - called)
            start_up.append(seconds_of(created))
            if number == REPEATS - 1:
                time.sleep(5)
                idle = (seconds_of(created) - start_up[-1]) / 5
                pid = ENGINE.store.experiment(created).supervisor_pid
                status = Path(f"/proc/{pid}/status").read_text()
                memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
            asked = time.time()
            ENGINE.stop(created)
            to_stopped.append(time.time() - asked)
        report(
            "local create to running",
            statistics.median(to_running),
            "s",
            5,
            create_returns=round(statistics.median(to_return), 4),
            stop=round(statistics.median(to_stopped), 4),
            supervisor_idle_cpu=round(idle, 4),
            supervisor_mib=round(memory, 1),
        )
