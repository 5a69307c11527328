"""How long the barrier takes from the last replica's arrival to the last replica's release, on a local directory.

Every replica is a process of its own that does nothing but the rendezvous.  ``cpu_waiting`` is the share of a core that
one replica takes while it waits for the others, ``cpu_passing`` the CPU seconds of all from the last arrival to the
last release: unlike the time itself, what else runs on the machine hardly changes them.
Usage: ``barrier_assembly.py [N] [REPEATS]``; without arguments 2, 16, 64 and 128 replicas, one JSON line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measure import report

POLL = 0.05
BOUNDS = {16: 0.3, 128: 2.0}


async def replica(root: Path, rank: int, nodes: int, instance: str) -> None:
    """Arrive, pass, and print the moment."""
    from primebeaker.roles.files import SharedFiles
    from primebeaker.roles.rendezvous import MemberFile, Paths, Rendezvous

    files, paths = SharedFiles(instance), Paths(root)
    me = MemberFile(rank=rank, instance=instance, host="h", ip="127.0.0.1", phase="assemble", backend_port=8100)
    # All but the last wait until the others are up, so that starting Python is not part of the figure.
    if rank == nodes - 1:
        while len(list((root / "members").glob("[0-9]*.json"))) < nodes - 1:  # noqa: ASYNC110  other processes
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.0)
    arrived = time.time()
    samples = [(arrived, time.process_time())]
    sampling = asyncio.create_task(sample(samples))
    await files.write(paths.member(rank), me.as_json())
    barrier = Rendezvous(paths, files, me, nodes=nodes, poll=POLL, timeout=120)
    await barrier.assemble()
    samples.append((time.time(), time.process_time()))
    sampling.cancel()
    print(json.dumps(samples), flush=True)
    os._exit(0)


async def sample(samples: list[tuple[float, float]]) -> None:
    """Note how much CPU time this process has taken, four times a second."""
    while True:
        await asyncio.sleep(0.25)
        samples.append((time.time(), time.process_time()))


def taken(samples: list[tuple[float, float]], since: float, until: float) -> float:
    """CPU seconds between two moments, as far as the samples tell."""
    within = [cpu for at, cpu in samples if since <= at <= until]
    return within[-1] - within[0] if within else 0.0


class Assembly(NamedTuple):
    """Seconds from the last arrival to the last release, and the CPU that waiting and passing took."""

    seconds: float
    cpu_waiting: float
    cpu_passing: float


def assembly(nodes: int) -> Assembly:
    """One barrier."""
    from primebeaker.roles.rendezvous import Paths

    with tempfile.TemporaryDirectory() as directory:
        Paths(Path(directory)).create()
        words = [sys.executable, __file__, "--replica", directory]
        processes = [
            subprocess.Popen([*words, str(rank), str(nodes), f"i{rank}"], stdout=subprocess.PIPE, text=True)
            for rank in range(nodes)
        ]
        samples = [json.loads(process.communicate(timeout=180)[0]) for process in processes]
    last = samples[-1][0][0]
    released = max(own[-1][0] for own in samples)
    # Their start is over after half a second; the last one looks for the others meanwhile.
    waiting = [(taken(own, last - 0.5, last), 0.25) for own in samples[:-1]]
    passing = sum(own[-1][1] - max((cpu for at, cpu in own if at <= last), default=own[0][1]) for own in samples)
    return Assembly(released - last, statistics.median(cpu / span for cpu, span in waiting), passing)


def main() -> None:
    if sys.argv[1:2] == ["--replica"]:
        directory, rank, nodes, instance = sys.argv[2:]
        asyncio.run(replica(Path(directory), int(rank), int(nodes), instance))
        return
    sizes = [int(sys.argv[1])] if len(sys.argv) > 1 else [2, 16, 64, 128]
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for nodes in sizes:
        passes = [assembly(nodes) for _ in range(repeats)]
        name = f"barrier, {nodes} replicas, last arrival to last release, median of {repeats}"
        seconds, waiting, passing = (statistics.median(column) for column in zip(*passes, strict=True))
        more = {"cpu_waiting": round(waiting, 4), "cpu_passing": round(passing, 3)}
        report(name, seconds, "s", BOUNDS.get(nodes), worst=round(max(passes).seconds, 3), poll=POLL, **more)


if __name__ == "__main__":
    main()
