"""Choose the newest complete checkpoint among 1,000 steps x 512 shards, and list them all.

Files are sparse, made under the temporary folder, and removed.
"""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from measure import report

from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule
from primebeaker.prime_rl.checkpoints import list_steps, newest_complete

STEPS, RANKS = 1000, 512


@dataclass(frozen=True)
class Index:
    """Key of a stored tensor."""

    fqn: str


@dataclass
class StorageInfo:
    """Where a stored tensor lies."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """The part of a distributed checkpoint's metadata that names files."""

    storage_data: dict


def build(root: Path) -> None:
    layout = find_layout(root)
    names = [f"__{rank}_0.distcp" for rank in range(RANKS)]
    metadata = pickle.dumps(Metadata({Index(name): StorageInfo(name, 0, 128) for name in names}))
    for step in range(1, STEPS + 1):
        trainer = layout.trainer_checkpoint(step)
        trainer.mkdir(parents=True)
        for name in names:
            with open(trainer / name, "wb") as stream:
                stream.truncate(128)
        (trainer / ".metadata").write_bytes(metadata)
        layout.orchestrator_progress(step).parent.mkdir(parents=True)
        with zipfile.ZipFile(layout.orchestrator_progress(step), "w") as archive:
            archive.writestr("progress", "1")


class Cost(NamedTuple):
    """Median wall and CPU seconds; what else runs on the machine hardly changes the latter."""

    wall: float
    cpu: float


def cost(function) -> Cost:
    costs = []
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        costs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Cost(*(round(statistics.median(column), 3) for column in zip(*costs, strict=True)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        layout, rule = find_layout(Path(folder)), rl_rule(RANKS)
        selection = cost(lambda: newest_complete(layout, rule))
        listing = cost(lambda: list_steps(layout, rule))
    report(
        "choose the newest complete checkpoint, 1,000 steps x 512 shards",
        selection.wall,
        "s",
        bound=1.0,
        cpu=selection.cpu,
    )
    report("list 1,000 checkpoints x 512 shards", listing.wall, "s", bound=5.0, cpu=listing.cpu)


if __name__ == "__main__":
    main()
