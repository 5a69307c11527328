"""Loading 100,000 rows of 4 kB: seconds, and the memory peak beyond the libraries as a multiple of the file."""

import json
import tempfile
import time
from pathlib import Path

import datasets  # the libraries' own memory is not the loader's
from measure import own_memory, report

from primebeaker.environments._shared.dataset import load_rows

ROWS = 100_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        text = "a sentence of some words; " * 150
        with path.open("w") as stream:
            for number in range(ROWS):
                row = {
                    "prompt": [{"role": "user", "content": f"{number} {text}"}],
                    "answer": "pass",
                    "output": str(number),
                }
                stream.write(json.dumps(row) + "\n")
        size = path.stat().st_size / 2**20
        before = own_memory()
        started, busy = time.perf_counter(), time.process_time()
        loaded = load_rows("label", str(path), "train")
        elapsed = time.perf_counter() - started
        busy = time.process_time() - busy
        peak = own_memory() - before
        assert len(loaded.rows) == ROWS
    report(
        "loading 100,000 rows of 4 kB",
        round(elapsed, 2),
        "s",
        bound=20,
        cpu_seconds=round(busy, 2),
        file_mebibytes=round(size, 1),
        peak_times_file=round(peak / size, 2),
        peak_bound=6,
        datasets=datasets.__version__,
    )


main()
