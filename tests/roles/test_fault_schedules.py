"""Random faults at random moments: never an orphan, never a half-written file, never a lost checkpoint.

Each schedule is one start of two replicas of stub programs with one fault, seeded, so that a failing one can be run
again alone: ``pytest tests/roles/test_fault_schedules.py -k "[17]"``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from role_harness import Topology, wait_until

from primebeaker.prime_rl.contract import DEFAULT

SEEDS = range(24)
SOAK = range(24, 200)


@dataclass(frozen=True)
class Fault:
    """What happens to one process, and when."""

    kind: str
    rank: int
    process: str
    how: str
    delay: float


def schedule(seed: int) -> Fault:
    """The fault of a seed."""
    random_ = random.Random(seed)
    kind = random_.choice(("rl", "sft"))
    processes = {
        "rl": [
            (0, "trainer"),
            (0, "orchestrator"),
            (0, "router"),
            (0, "gateway"),
            (0, "engine0"),
            (1, "engine0"),
            (1, "engine1"),
        ],
        "sft": [(0, "trainer"), (1, "trainer")],
    }[kind]
    rank, process = random_.choice([*processes, (0, "role"), (1, "role")])
    how = random_.choice(("TERM", "INT")) if process == "role" else random_.choice(("exit 7", "exit 1", "KILL", "TERM"))
    return Fault(kind, rank, process, how, random_.choice((0.0, 0.0, 0.05, 0.2, 0.5)))


def expected(fault: Fault) -> dict[int, int]:
    """The exit codes of the two roles."""
    code = {"KILL": 137, "TERM": 143, "INT": 130}.get(fault.how) or int(fault.how.split()[-1])
    return {fault.rank: code, 1 - fault.rank: 90}


def strike(topology: Topology, fault: Fault) -> None:
    """Do it."""
    if fault.process == "role":
        replica = next(replica for replica in topology.replicas if replica.rank == fault.rank)
        # A role that ends before its peers know of it is for the engine to notice, not for them.
        wait_until(lambda: "acknowledged epoch" in topology.output(), "the peers have met")
        replica.process.send_signal(getattr(signal, f"SIG{fault.how}"))
    elif fault.how.startswith("exit"):
        topology.order(fault.rank, fault.process, fault.how)
    else:
        os.kill(topology.record(fault.rank, fault.process)["pid"], getattr(signal, f"SIG{fault.how}"))


def whole_files(*roots: Path) -> None:
    """Every JSON, TOML and JSON-lines file parses, and no temporary file is left."""
    for root in roots:
        for path in root.rglob("*"):
            with contextlib.suppress(IsADirectoryError):
                if path.suffix == ".json":
                    json.loads(path.read_text())
                elif path.suffix == ".toml":
                    tomllib.loads(path.read_text())
                elif path.suffix == ".jsonl":
                    [json.loads(line) for line in path.read_text().splitlines()]
            assert not path.name.startswith(".") or path.name == ".metadata", f"left behind: {path}"


def checkpoints(root: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in root.rglob("*.distcp"))


def run(launch: Callable[..., Topology], seed: int) -> None:
    fault = schedule(seed)
    topology = launch(kind=fault.kind)
    text = topology.config.read_text()
    if fault.kind == "sft":
        text += "[ckpt]\ninterval = 2\n"
    topology.config.write_text(text.replace("interval = 2", "interval = 2\nresume_step = -1"))
    layout = DEFAULT.layout(topology.output_dir)
    for step in (2, 4):
        layout.trainer_checkpoint(step).mkdir(parents=True)
        layout.trainer_shard(step, 0).write_bytes(f"{seed}/{step}".encode())
        layout.orchestrator_checkpoint(step).mkdir(parents=True)
        layout.orchestrator_progress(step).write_bytes(b"p")
    layout.trainer_metadata(2).write_bytes(b"m")
    before = checkpoints(topology.output_dir)
    topology.start()
    if fault.process != "role" or fault.delay:
        topology.up()
    time.sleep(fault.delay)
    strike(topology, fault)
    codes = topology.codes()
    if fault.process == "role" and not fault.delay:
        # It may have hit before the start; then there is no status file yet.
        assert codes[fault.rank] == expected(fault)[fault.rank], (fault, topology.output())
        assert codes[1 - fault.rank] == 90, (fault, topology.output())
    else:
        assert codes == expected(fault), (fault, topology.output())
        named = f"{fault.process} on rank {fault.rank}" if fault.process != "role" else f"SIG{fault.how} received"
        for rank in (0, 1):
            assert named in topology.status(rank)["message"], (fault, topology.output())
    topology.nothing_left(3)
    whole_files(topology.output_dir, topology.rendezvous)
    assert checkpoints(topology.output_dir) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_fault(launch: Callable[..., Topology], seed: int) -> None:
    run(launch, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK)
def test_more_random_faults(launch: Callable[..., Topology], seed: int) -> None:
    run(launch, seed)
