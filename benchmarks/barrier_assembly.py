"""How long the barrier takes from the last replica's arrival to the last replica's release, on a local directory.

Every replica is a process of its own that does nothing but the rendezvous.
Usage: ``barrier_assembly.py [N] [REPEATS]``; without arguments 2, 16, 64 and 128 replicas, one JSON line each.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
        await asyncio.sleep(0.5)
    arrived = time.time()
    await files.write(paths.member(rank), me.as_json())
    barrier = Rendezvous(paths, files, me, nodes=nodes, poll=POLL, timeout=120)
    await barrier.assemble()
    print(arrived, time.time(), flush=True)
    os._exit(0)


def assembly(nodes: int) -> float:
    """Seconds from the last arrival to the last release."""
    from primebeaker.roles.rendezvous import Paths

    with tempfile.TemporaryDirectory() as directory:
        Paths(Path(directory)).create()
        words = [sys.executable, __file__, "--replica", directory]
        processes = [
            subprocess.Popen([*words, str(rank), str(nodes), f"i{rank}"], stdout=subprocess.PIPE, text=True)
            for rank in range(nodes)
        ]
        times = [[float(word) for word in process.communicate(timeout=180)[0].split()] for process in processes]
    return max(passed for _, passed in times) - times[-1][0]


def main() -> None:
    if sys.argv[1:2] == ["--replica"]:
        directory, rank, nodes, instance = sys.argv[2:]
        asyncio.run(replica(Path(directory), int(rank), int(nodes), instance))
        return
    sizes = [int(sys.argv[1])] if len(sys.argv) > 1 else [2, 16, 64, 128]
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for nodes in sizes:
        seconds = [assembly(nodes) for _ in range(repeats)]
        name = f"barrier, {nodes} replicas, last arrival to last release, median of {repeats}"
        report(name, statistics.median(seconds), "s", BOUNDS.get(nodes), worst=round(max(seconds), 3), poll=POLL)


if __name__ == "__main__":
    main()
