"""First index, update with nothing changed, and memory of the watcher on a generated tree.

``python benchmarks/watcher_index.py [RUNS] [EVALUATIONS]``; the reference size is 10000 100000, the default
a tenth.
Process time is given beside wall time: other work on the machine does not count into it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import report

ROOT = Path(__file__).resolve().parent.parent


def timed(words: list[str]) -> tuple[dict[str, float], float, float]:
    """The command's JSON, wall seconds and greatest memory in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout), "wall": round(wall, 2), "cpu": round(cpu, 2)}, wall, after.ru_maxrss / 1024


def main() -> None:
    """Make the tree, index it, index it again."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    evaluations = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    share = evaluations / 100_000
    size = {"runs": runs, "evaluations": evaluations}
    with tempfile.TemporaryDirectory(prefix="watcher-") as folder:
        made = [sys.executable, str(ROOT / "tools/watcher_tree.py"), folder, str(runs), str(evaluations)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        database = f"{folder}/i.sqlite3"
        words = [
            sys.executable,
            "-m",
            "primebeaker.watcher",
            "update",
            f"--database={database}",
            f"--repo_root={folder}/repo",
        ]
        first, wall, memory = timed(words)
        report("watcher_first_index", wall, "s", 90 * share, process_seconds=first["cpu"], **size)
        report("watcher_first_index_memory", memory, "MiB", 300, **size)
        report("watcher_database", os.path.getsize(database) / 1e6, "MB", 600 * share, **size)  # noqa: PTH202
        time.sleep(2.5)
        again, wall, _ = timed(words)
        report("watcher_unchanged_update", wall, "s", 15 * share, process_seconds=again["cpu"], **size)


if __name__ == "__main__":
    main()
