"""Random faults at random moments: never an orphan, never a half-written file, never a lost checkpoint.

Each schedule is one start of two replicas of stub programs with one fault, seeded, so that a failing one can be run
again alone: ``pytest -m soak tests/roles/test_fault_schedules.py -k "[17]"``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest
from role_harness import BLOCK, PORTS_APART, Topology, topology, wait_until
from tests.ports import free_block

from primebeaker.prime_rl.contract import DEFAULT

SCHEDULES = 200
BATCH = 8
# What one waits for, such as the grace time, is another's time to compute.
SIDE_BY_SIDE = 4


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


def strike(run: Topology, fault: Fault) -> None:
    """Do it."""
    if fault.process == "role":
        replica = next(replica for replica in run.replicas if replica.rank == fault.rank)
        # A role that ends before its peers know of it is for the engine to notice, not for them.
        wait_until(lambda: "acknowledged epoch" in run.output(), "the peers have met")
        replica.process.send_signal(getattr(signal, f"SIG{fault.how}"))
    elif fault.how.startswith("exit"):
        run.order(fault.rank, fault.process, fault.how)
    else:
        os.kill(run.record(fault.rank, fault.process)["pid"], getattr(signal, f"SIG{fault.how}"))


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
    """The content of every file of every checkpoint, wherever it lies by now."""
    names = ("*.distcp", ".metadata", "progress.pt")
    return sorted(path.read_bytes() for name in names for path in root.rglob(name))


def run_schedule(folder: Path, seed: int, ports: int) -> None:
    fault = schedule(seed)
    with topology(folder / str(seed), kind=fault.kind, ports=ports) as run:
        text = run.config.read_text()
        if fault.kind == "sft":
            text += "[ckpt]\ninterval = 2\n"
        run.config.write_text(text.replace("interval = 2", "interval = 2\nresume_step = -1"))
        layout = DEFAULT.layout(run.output_dir)
        for step in (2, 4):
            layout.trainer_checkpoint(step).mkdir(parents=True)
            layout.trainer_shard(step, 0).write_bytes(f"{seed}/{step}".encode())
            layout.orchestrator_checkpoint(step).mkdir(parents=True)
            layout.orchestrator_progress(step).write_bytes(b"p%d" % step)
        layout.trainer_metadata(2).write_bytes(b"m")
        before = checkpoints(run.output_dir)
        run.start()
        early = fault.process == "role" and not fault.delay
        if not early:
            run.up()
        time.sleep(fault.delay)
        strike(run, fault)
        assert run.codes() == expected(fault), (fault, run.output())
        run.nothing_left()
        named = f"{fault.process} on rank {fault.rank}" if fault.process != "role" else f"SIG{fault.how} received"
        for replica in run.replicas:
            assert named in replica.text.splitlines()[-1], (fault, run.output())
            # Hit before the start there is no status file.
            assert early or named in run.status(replica.rank)["message"], (fault, run.output())
        whole_files(run.output_dir, run.rendezvous)
        assert checkpoints(run.output_dir) == before


@pytest.mark.parametrize("first", range(0, SCHEDULES, BATCH))
def test_random_faults(tmp_path: Path, first: int) -> None:
    block = free_block(BLOCK)
    ports: SimpleQueue[int] = SimpleQueue()
    for place in range(SIDE_BY_SIDE):
        ports.put(block + place * PORTS_APART)

    def run(seed: int) -> BaseException | None:
        mine = ports.get()
        try:
            run_schedule(tmp_path, seed, mine)
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            return error
        finally:
            ports.put(mine)
        return None

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        failures = [error for error in pool.map(run, range(first, first + BATCH)) if error is not None]
    if failures:
        raise BaseExceptionGroup("schedules that went wrong", failures)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3 * SCHEDULES))
def test_one_random_fault(tmp_path: Path, seed: int) -> None:
    run_schedule(tmp_path, seed, free_block(BLOCK))
