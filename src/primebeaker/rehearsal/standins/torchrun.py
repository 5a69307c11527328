"""Stand-in for ``torchrun``: one node's agent, its workers in sessions of their own, their logs, a real rendezvous.

A worker's failure ends the others and exits 1, on every node; TERM ends the workers first.  As with the real one a
killed agent leaves its workers behind: ending those is the role's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.errors import ExternalError, UserError
from primebeaker.fileio import atomic_write
from primebeaker.rehearsal.settings import rehearsal_directory
from primebeaker.rehearsal.standins.channel import Channel, connect, free_port, listen
from primebeaker.rehearsal.standins.program import Arguments, FlagKind, log, parse, run

#: Module under torchrun -> the stand-in that takes its place.
WORKERS = {
    "prime_rl.trainer.rl.train": "primebeaker.rehearsal.standins.rl_trainer",
    "prime_rl.trainer.sft.train": "primebeaker.rehearsal.standins.sft_trainer",
}
FLAGS: Mapping[str, FlagKind] = {
    "--standalone": "switch",
    **dict.fromkeys(
        (
            "--role",
            "--nnodes",
            "--nproc-per-node",
            "--node-rank",
            "--rdzv-backend",
            "--rdzv-endpoint",
            "--rdzv-id",
            "--log-dir",
            "--tee",
            "--redirects",
            "--redirect",
            "--local-ranks-filter",
        ),
        "value",
    ),
}
_RENDEZVOUS_SECONDS = 60.0
_GRACE_SECONDS = 1.0
_TRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Node:
    """This node's place among all of them, and the channel (node 0: channels) to the others."""

    first_rank: int
    world_size: int
    address: str
    port: int
    peers: tuple[Channel, ...]


def main(words: list[str]) -> int:
    """Run the agent of one node."""
    # torchrun takes its flags in both spellings; what follows -m belongs to the module and stays as it is.
    own = words[: words.index("-m")] if "-m" in words else words
    arguments = parse([*map(_dashed, own), *words[len(own) :]], FLAGS, stop_at="-m")
    if not arguments.rest:
        raise UserError("no module to run: expected -m MODULE")
    module, *module_words = arguments.rest
    if module not in WORKERS:
        raise UserError(f"no module named {module}")
    count = arguments.number("--nproc-per-node", 1)
    if count < 1:
        raise UserError("--nproc-per-node: expected at least 1")
    node = rendezvous(arguments, count)
    command = [sys.executable, "-m", WORKERS[module], *module_words]
    return asyncio.run(Agent(arguments, node, count, command).run())


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def rendezvous(arguments: Arguments, count: int) -> Node:
    """Meet the other nodes at the endpoint and agree on ranks and the master's port.

    Raises:
        UserError: The endpoint is malformed or in use, or flags contradict each other.
        ExternalError: Not all nodes joined within a minute, or one belongs to another run.
    """
    nodes, rank = arguments.number("--nnodes", 1), arguments.number("--node-rank", 0)
    if nodes == 1:
        return Node(0, count, "127.0.0.1", free_port(), ())
    if "--standalone" in arguments.values:
        raise UserError("--standalone means one node, but --nnodes is larger")
    if rank >= nodes:
        raise UserError(f"--node-rank = {rank}: expected less than --nnodes = {nodes}")
    host, _, port = arguments.one("--rdzv-endpoint").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--rdzv-endpoint = {host}:{port}: expected host:port")
    hello = {"id": arguments.one("--rdzv-id"), "node": rank, "workers": count}
    if rank:
        return _join(hello, host, int(port))
    return _host_rendezvous(hello, nodes, host, int(port))


def _join(own: Mapping[str, object], host: str, port: int) -> Node:
    deadline = time.monotonic() + _RENDEZVOUS_SECONDS
    while True:
        moved = _moved_to(own)
        try:
            channel = connect(host, moved or port, _TRY_SECONDS)
            channel.send(own)
            answer = channel.receive(_RENDEZVOUS_SECONDS)
            if "error" not in answer:
                return Node(answer["first_rank"], answer["world_size"], host, answer["port"], (channel,))
            raise ExternalError(answer["error"])
        except ExternalError:
            # Another rehearsal may meet at this port, and ours have moved: its first node says so in a file.
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def _meeting_place(own: Mapping[str, object]) -> Path:
    return rehearsal_directory() / f"rendezvous-{own['id']}"


def _moved_to(own: Mapping[str, object]) -> int | None:
    try:
        return int(_meeting_place(own).read_text())
    except (OSError, ValueError):
        return None


def _meeting_port(own: Mapping[str, object], port: int) -> socket.socket:
    """Listen at the endpoint, or, as hosts of a rehearsal are one machine, where nobody else does."""
    everywhere = "0.0.0.0"  # noqa: S104  the other nodes connect
    try:
        return listen(everywhere, port)
    except UserError as error:
        server = listen(everywhere, free_port())
        moved = server.getsockname()[1]
        atomic_write(_meeting_place(own), str(moved))
        log(f"{error}; the nodes meet at port {moved}")
        return server


def _host_rendezvous(own: Mapping[str, object], nodes: int, host: str, port: int) -> Node:
    server = _meeting_port(own, port)
    server.settimeout(_RENDEZVOUS_SECONDS)
    joined: dict[int, tuple[int, Channel]] = {}
    try:
        while len(joined) < nodes - 1:
            channel = Channel(server.accept()[0])
            try:
                hello = channel.receive(_RENDEZVOUS_SECONDS)
            except ExternalError:
                # Somebody only looked whether the port is taken.
                continue
            if hello["id"] != own["id"]:
                channel.send({"error": f"rendezvous id {hello['id']} is not this run's {own['id']}"})
                continue
            joined[int(hello["node"])] = (int(hello["workers"]), channel)
    except TimeoutError:
        missing = sorted(set(range(1, nodes)) - set(joined))
        raise ExternalError(f"nodes {missing} did not join within {_RENDEZVOUS_SECONDS:g} s") from None
    finally:
        server.close()
    workers = int(str(own["workers"]))
    world = workers + sum(count for count, _ in joined.values())
    master_port = free_port()
    first = workers
    for node in sorted(joined):
        count, channel = joined[node]
        channel.send({"first_rank": first, "world_size": world, "port": master_port})
        first += count
    return Node(0, world, host, master_port, tuple(channel for _, channel in joined.values()))


class Agent:
    """Starts the workers of one node and waits for them."""

    def __init__(self, arguments: Arguments, node: Node, count: int, command: list[str]) -> None:
        self.role = arguments.one("--role", "default")
        self.node = node
        self.count = count
        self.command = command
        self.run_id = arguments.one("--rdzv-id", secrets.token_hex(8))
        shown = arguments.one("--local-ranks-filter", ",".join(str(rank) for rank in range(count)))
        self.shown = {int(part) for part in shown.split(",") if part.isdigit()}
        folder = arguments.one("--log-dir", "")
        self.logs = Path(folder) / self.run_id / "attempt_0" if folder else None
        self.stopped: signal.Signals | None = None
        self._copies: list[asyncio.Task[None]] = []
        #: The last line each local rank wrote to stderr.
        self._last: dict[int, bytes] = {}

    async def run(self) -> int:
        """Run to the end of all workers; the exit code."""
        loop = asyncio.get_running_loop()
        workers = [await self._start(rank) for rank in range(self.count)]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        self._halt: asyncio.Future[None] = loop.create_future()
        ends = {asyncio.ensure_future(worker.wait()): worker for worker in workers}
        lost = [asyncio.ensure_future(asyncio.to_thread(self._peer_failed, peer)) for peer in self.node.peers]
        pending: set[asyncio.Future[Any]] = {*ends, *lost, self._halt}
        failed = False
        while not failed and any(not end.done() for end in ends) and self.stopped is None:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            pending -= done
            failed = any((future in ends and future.result() != 0) or future.result() is True for future in done)
        culprits = {worker.pid for worker in workers if worker.returncode not in (None, 0)}
        await self._end(workers, list(ends))
        for peer in self.node.peers:
            with contextlib.suppress(ExternalError):
                peer.send("failed" if failed or self.stopped else "done")
        if self.stopped is not None:
            return 128 + self.stopped
        for rank, worker in enumerate(workers):
            if worker.pid in culprits:
                # Its rank may be filtered from the console, so its last words are told here.
                last = self._last.get(rank, b"").decode("utf-8", "replace").strip()
                log(f"worker {rank} of {self.role} ended with {worker.returncode}" + (f": {last}" if last else ""))
        return 1 if failed else 0

    async def _start(self, local_rank: int) -> asyncio.subprocess.Process:
        rank = self.node.first_rank + local_rank
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.node.world_size),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": self.node.address,
            "MASTER_PORT": str(self.node.port),
            "TORCHELASTIC_RUN_ID": self.run_id,
        }
        pipe = asyncio.subprocess.PIPE
        worker = await asyncio.create_subprocess_exec(
            *self.command, env=environment, stdout=pipe, stderr=pipe, start_new_session=True
        )
        for name, stream in (("stdout", worker.stdout), ("stderr", worker.stderr)):
            assert stream is not None, "both streams are pipes"
            self._copies.append(asyncio.create_task(self._copy(local_rank, name, stream)))
        return worker

    async def _copy(self, local_rank: int, name: str, stream: asyncio.StreamReader) -> None:
        """Copy a worker's lines to its log file, and to stdout when its rank is shown."""
        path = self.logs / str(local_rank) / f"{name}.log" if self.logs else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"[{self.role}{self.node.first_rank + local_rank}]:".encode()
        with path.open("ab", buffering=0) as copy:
            while line := await stream.readline():
                copy.write(line)
                if name == "stderr":
                    self._last[local_rank] = line
                if local_rank in self.shown:
                    sys.stdout.buffer.write(prefix + line)
                    sys.stdout.buffer.flush()

    async def _end(self, workers: list[asyncio.subprocess.Process], ends: list[asyncio.Future[int]]) -> None:
        for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            for worker in workers:
                if worker.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(worker.pid, number)
            if any(not end.done() for end in ends):
                await asyncio.wait(ends, timeout=seconds)
        await asyncio.wait(self._copies, timeout=_GRACE_SECONDS)

    def _stop(self, number: signal.Signals) -> None:
        self.stopped = self.stopped or number
        if not self._halt.done():
            self._halt.set_result(None)

    @staticmethod
    def _peer_failed(peer: Channel) -> bool:
        try:
            return bool(peer.receive() != "done")
        except ExternalError:
            return True


if __name__ == "__main__":
    run("torchrun", main)
