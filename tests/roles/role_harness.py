"""Runs whole topologies of real roles with stub programs, and tells what is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_block

STUBS = Path(__file__).parent / "stubs"
SOURCE = Path(__file__).parents[2] / "src"
PROGRAMS = ("torchrun", "inference", "orchestrator", "vllm-router", "gateway")
DEADLINE = 30.0
#: Ports of a topology; those of others may begin ``PORTS_APART`` later.
BLOCK, PORTS_APART = 245, 8

RL_TOML = """
max_steps = 4
[deployment]
type = "multi_node"
gpus_per_node = {gpus}
num_train_nodes = 1
num_infer_nodes = 2
[model]
name = "m/x"
[wandb]
project = "p"
[ckpt]
interval = 2
[trainer.model]
cp = {cp}
[orchestrator]
batch_size = 8
[inference]
backend_port = {backend}
[inference.server]
port = {router}
[weight_broadcast]
type = "nccl"
port = {nccl}
[rollout_transport]
type = "zmq"
port = {zmq}
"""
SFT_TOML = """
max_steps = 4
[deployment]
type = "multi_node"
num_nodes = 2
gpus_per_node = 2
[data]
type = "fake"
"""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of ``condition``."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@dataclass
class Replica:
    """A started role."""

    rank: int
    process: subprocess.Popen[bytes]
    output: Path
    job: str

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass
class Topology:
    """A launch of real roles on this machine."""

    root: Path
    kind: str = "rl"
    nodes: int = 2
    gpus: int = 2
    cp: int = 1
    env: dict[str, str] = field(default_factory=dict)
    toml: str | None = None
    #: The first of its ports; engines may move by hundreds from there.
    ports: int = 0
    replicas: list[Replica] = field(default_factory=list)
    starts: int = 0

    def __post_init__(self) -> None:
        self.bin = self.root / "bin"
        for directory in (self.bin, self.root / "orders", self.root / "records", self.root / "work"):
            directory.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            (self.bin / program).write_text(f"#!{sys.executable} -S\n" + (STUBS / "program.py").read_text())
            (self.bin / program).chmod(0o755)
        # One block for all of them, so that none lies among the others.
        self.router = self.ports or free_block(BLOCK)
        self.nccl, self.zmq, self.gateway, self.backend = (self.router + place for place in (1, 2, 4, 5))
        self.config = self.root / "run.toml"
        text = self.toml or (RL_TOML if self.kind == "rl" else SFT_TOML)
        for name in ("gpus", "cp", "backend", "router", "nccl", "zmq"):
            text = text.replace(f"{{{name}}}", str(getattr(self, name)))
        self.config.write_text(text)
        self.output_dir = self.root / "out"
        self.rendezvous = self.root / "rendezvous"

    def environment(self, rank: int) -> dict[str, str]:
        inference = self.nodes * self.gpus - self.cp
        values = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.root),
            "PYTHONPATH": f"{STUBS}:{SOURCE}",
            "STUB_DIR": str(self.root),
            "BEAKER_REPLICA_RANK": str(rank),
            "BEAKER_REPLICA_COUNT": str(self.nodes),
            "BEAKER_NODE_HOSTNAME": f"node{rank}",
            "TOTAL_NODES": str(self.nodes),
            "GPUS_PER_NODE": str(self.gpus),
            "CONFIG_PATH": str(self.config),
            "OUTPUT_DIR": str(self.output_dir),
            "WORKING_DIR": str(self.root / "work"),
            "SCRATCH": str(self.root / "scratch"),
            "TMPDIR": str(self.root / f"tmp{rank}"),
            "RENDEZVOUS_DIR": str(self.rendezvous),
            "LAUNCH_ID": "launch1",
            "RENDEZVOUS_TIMEOUT_SECONDS": "30",
            "PRIMEBEAKER_REHEARSAL": "1",
            "PRIMEBEAKER_LOCAL_ENGINE": "1",
            "PRIMEBEAKER_NODE_IP": "127.0.0.1",
            "PRIMEBEAKER_POLL_SECONDS": "0.05",
            "PRIMEBEAKER_GRACE_SECONDS": "0.5",
        }
        if self.kind == "rl":
            values |= {
                "TRAINER_GPU_COUNT": str(self.cp),
                "MIXED_INFER_GPU_COUNT": str(self.gpus - self.cp),
                "TOTAL_INFER_RANKS": str(inference),
                "REGISTRY": "redis://user:hunter2secret@127.0.0.1:1",
                "GATEWAY_PORT": str(self.gateway),
                "GATEWAY_WORKERS": "1",
                "REQUIRED_LITEREGISTRY_SERVICES": '{"terminal":1}',
                "LOCAL_SEARCH_MODEL_PATHS_JSON": "[]",
                "WANDB_SHARED_MODE": "1",
                "WANDB_SHARED_RUN_ID": "run1",
            }
        return values | self.env

    def start(self, *ranks: int, env: dict[str, str] | None = None) -> list[Replica]:
        """Start roles; all ranks by default."""
        started = []
        for rank in ranks or range(self.nodes):
            self.starts += 1
            output = self.root / f"role{rank}.{self.starts}.txt"
            job = f"job{self.starts}"
            with open(output, "wb") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-m", "primebeaker.multinode", "role", self.kind],
                    env={**self.environment(rank), "BEAKER_JOB_ID": job, **(env or {})},
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            started.append(Replica(rank, process, output, job))
        self.replicas += started
        return started

    def order(self, rank: int, process: str, text: str, kind: str = "") -> None:
        """Tell a stub what to do."""
        path = self.root / "orders" / f"{rank}.{process}{kind}"
        path.with_suffix(path.suffix + "tmp").write_text(text)
        path.with_suffix(path.suffix + "tmp").rename(path)

    def record(self, rank: int, process: str) -> dict[str, Any]:
        """How a stub was started, once it was."""
        path = self.root / "records" / f"{rank}.{process}"
        wait_until(path.exists, f"{process} of rank {rank} starts\n{self.output()}")
        return json.loads(path.read_text())

    @property
    def processes(self) -> list[tuple[int, str]]:
        """Every process a healthy start has."""
        if self.kind == "sft":
            return [(rank, "trainer") for rank in range(self.nodes)]
        leader = ["trainer", "orchestrator", "router", "gateway", *(f"engine{n}" for n in range(self.gpus - self.cp))]
        return [(0, name) for name in leader] + [
            (rank, f"engine{n}") for rank in range(1, self.nodes) for n in range(self.gpus)
        ]

    def up(self) -> None:
        """Wait until everything runs."""
        for rank, process in self.processes:
            self.record(rank, process)

    def forget_records(self) -> None:
        """Before another start."""
        shutil.rmtree(self.root / "records")
        (self.root / "records").mkdir()
        shutil.rmtree(self.root / "orders")
        (self.root / "orders").mkdir()

    def codes(self, seconds: float = DEADLINE) -> dict[int, int]:
        """Exit codes of the roles that were started last, once all have ended."""
        newest = {replica.rank: replica for replica in self.replicas}
        return {rank: self.code(replica, seconds) for rank, replica in newest.items()}

    def code(self, replica: Replica, seconds: float = DEADLINE) -> int:
        try:
            code = replica.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {replica.rank} is still there\n{self.output()}") from None
        return code if code >= 0 else 128 - code

    def output(self) -> str:
        return "\n".join(f"--- {replica.output.name}\n{replica.text}" for replica in self.replicas)

    def status(self, rank: int) -> dict[str, Any]:
        """The status file of the newest epoch."""
        epoch = json.loads((self.rendezvous / "epoch.json").read_text())["epoch"]
        return json.loads((self.rendezvous / "epochs" / epoch / "status" / f"{rank}.json").read_text())

    def alive(self) -> list[str]:
        """Every process that carries this topology's mark, roles included."""
        mark = f"STUB_DIR={self.root}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() and "Z" not in (entry / "stat").read_text().split()[2]:
                    found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        return found

    def nothing_left(self, seconds: float = DEADLINE) -> None:
        """No process of the topology is alive."""
        wait_until(lambda: not self.alive(), f"nothing alive: {self.alive()}\n{self.output()}", seconds)

    def kill(self) -> None:
        """End what a failed test leaves."""
        for replica in self.replicas:
            with contextlib.suppress(OSError):
                os.killpg(replica.process.pid, signal.SIGKILL)
            replica.process.wait()
        for line in self.alive():
            with contextlib.suppress(OSError):
                os.kill(int(line.split(":")[0]), signal.SIGKILL)


@contextlib.contextmanager
def topology(root: Path, **settings: Any) -> Iterator[Topology]:
    """A topology that is gone afterwards."""
    made = Topology(root, **settings)
    try:
        yield made
    finally:
        made.kill()
