"""One process of the hammer: ``python hammer_worker.py scan|rebuild|read ROOT NUMBER``, until ``ROOT/stop`` is there.

Prints how often it did its part (``ROOT/warm-NUMBER`` appears after the second time); the first fault is printed
instead and ends it with 1.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from primebeaker.watcher.database import reading
from primebeaker.watcher.errors import ScanLockedError
from primebeaker.watcher.rebuild import RebuildOptions, rebuild
from primebeaker.watcher.roots import Given
from primebeaker.watcher.update import ScanOptions, update

_TORN = (
    "SELECT count(*) FROM evaluations e JOIN evaluation_list l ON l.evaluation_id = e.id WHERE e.overall IS NOT l.overall"
    " OR abs(e.overall - (SELECT avg(b.mean_accuracy) FROM evaluation_benchmarks b WHERE b.evaluation_id = e.id)) > 1e-9"
)
WHOLE = (3, 3, 5, 5, 0)


def quiet(_line: str) -> None:
    return None


def look(database: Path, last: int) -> int:
    """Every count and score of one read transaction must fit the others, and no state comes back."""
    with reading(database) as connection:

        def count(sql: str) -> int:
            return int(connection.execute(sql).fetchone()[0])

        tables = ("runs", "run_list", "evaluations", "evaluation_list")
        found = (*(count(f"SELECT count(*) FROM {table}") for table in tables), count(_TORN))
        generation = count("SELECT value FROM meta WHERE name = 'generation'")
    if found != WHOLE or generation < last:
        raise AssertionError(f"torn: {found}, generation {generation} after {last}")
    return generation


def main() -> int:
    role, root = sys.argv[1], Path(sys.argv[2])
    database = root / "index.sqlite3"
    given = Given(
        repo_root=str(root / "repo"),
        output_roots=(str(root / "runs"),),
        launch_spec_roots=(str(root / "repo/specs"),),
    )
    done = last = 0
    while not (root / "stop").exists():
        try:
            if role == "read":
                last = look(database, last)
            elif role == "scan":
                update(database, given, ScanOptions(wait=30), warn=quiet)
            else:
                rebuild(database, given, ScanOptions(wait=30), RebuildOptions(backup=False), warn=quiet)
            done += 1
            if done == 2:
                (root / f"warm-{sys.argv[3]}").touch()
            if role != "read":
                # Whoever waits for the scan lock looks for it four times a second.
                time.sleep(random.random() / 2)
        except ScanLockedError:
            continue
        except Exception as error:
            print(f"{role}: {error!r}")
            return 1
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
