"""Inject a rehearsal's faults at their moments."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.launch.plan import LaunchPlan
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.damage import damage_checkpoint
from primebeaker.rehearsal.faults import Fault
from primebeaker.rehearsal.standins.disk import FULL
from primebeaker.rehearsal.standins.orders import own_name
from primebeaker.supervision.processes import Process, descendants, send_signal, snapshot

__all__ = ["Injector", "Progress", "Strike", "find_process", "processes_left"]

#: Command-line part of a process -> the program name its faults know it by.
_PROGRAMS: Mapping[str, str] = {
    "primebeaker.rehearsal.standins.torchrun": "torchrun",
    "primebeaker.rehearsal.standins.inference": "inference",
    "primebeaker.rehearsal.standins.orchestrator": "orchestrator",
    "primebeaker.rehearsal.standins.router": "vllm-router",
    "primebeaker.rehearsal.standins.rl_trainer": "prime_rl.trainer",
    "primebeaker.rehearsal.standins.sft_trainer": "prime_rl.trainer",
    "primebeaker.rehearsal.standins.rl": "rl",
    "primebeaker.rehearsal.standins.sft": "sft",
    "primebeaker.gateway": "gateway",
    "primebeaker.multinode": "role",
}
#: What is told of faults that are there before the run starts, with their keys.
_FROM_THE_START: Mapping[str, str] = {
    "no-service": "{name} is waited for, and nobody starts it",
    "slow-disk": "file operations take up to {ms} ms",
    "port-busy": "port {port} is taken",
    "clock": "the clock of replica {rank} is shifted by {skew} s",
}
_START_SECONDS = 15.0
_LOOK_SECONDS = 0.02


class Progress(NamedTuple):
    """How far the rehearsed run is: steps made, and the phases any role has begun."""

    steps: int
    phases: frozenset[str]


@dataclass
class Strike:
    """What was done, when by ``time.monotonic()``, and how a damaged checkpoint step counts since."""

    at: float
    detail: str
    row: Mapping[str, Any] | None = None


class Injector:
    """Strikes each fault once, in the order their moments come.

    Args:
        faults: What to inject.
        directory: The rehearsal's own folder, where stand-ins look for orders.
        tell: Takes one line of progress.
        plan: The launch whose checkpoints may be damaged.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        directory: Path,
        tell: Callable[[str], None],
        plan: LaunchPlan | None = None,
    ) -> None:
        self.faults = tuple(faults)
        self.strikes: dict[int, Strike] = {}
        self._held: list[tuple[float, list[Process]]] = []
        self._directory = directory
        self._plan = plan
        self._tell = tell
        self._started = time.monotonic()

    def begin(self, engine: LocalEngine, experiment: str) -> None:
        """Strike what strikes at the start: hold late replicas back before their roles have shown themselves."""
        for number, fault in enumerate(self.faults):
            if fault.what in _FROM_THE_START:
                self._struck(number, fault, _FROM_THE_START[fault.what].format(**fault.values))
            elif fault.what == "late":
                held = _hold_back(engine, experiment, fault.rank)
                if held:
                    self._held.append((time.monotonic() + float(fault.values["seconds"]), held))
                    self._struck(number, fault, f"replica {fault.rank} held back for {fault.values['seconds']} s")

    def _let_go(self) -> None:
        for until, processes in tuple(self._held):
            if time.monotonic() >= until:
                self._held.remove((until, processes))
                for process in processes:
                    send_signal(process, signal.SIGCONT)

    def _struck(self, number: int, fault: Fault, detail: str, row: Mapping[str, Any] | None = None) -> None:
        self.strikes[number] = Strike(time.monotonic(), detail, row)
        (self._directory / f"struck-{number}").touch()
        self._tell(f"fault {fault.text}: {detail}")

    def look(self, engine: LocalEngine, experiment: str, progress: Progress) -> None:
        """Strike every fault whose moment has come."""
        self._let_go()
        for number, fault in enumerate(self.faults):
            if number in self.strikes or not self._is_due(fault, progress):
                continue
            if fault.what == "corrupt":
                self._damage(number, fault)
            elif detail := self._strike(fault, engine, experiment):
                self._struck(number, fault, detail)

    @property
    def restarts(self) -> bool:
        """Whether a preempted run is to be started again."""
        return any(fault.values.get("restart") == "true" for fault in self.faults)

    def end(self) -> None:
        """Damage the checkpoint files of the faults that strike once the run has ended, and note a disk that was full.

        A run may end by a full disk faster than it is looked at.
        """
        for number, fault in enumerate(self.faults):
            if fault.what == "corrupt" and fault.has_own_moment:
                self._damage(number, fault)
            elif fault.what == "full-disk" and number not in self.strikes and self._found_full():
                self._struck(number, fault, self._found_full())

    def _found_full(self) -> str:
        """Which write found the disk full; empty while none has."""
        path = self._directory / FULL
        return f"the disk was full at {path.read_text()}" if path.exists() else ""

    def _damage(self, number: int, fault: Fault) -> None:
        if self._plan is None:
            return
        damaged = {int(strike.row["step"]) for strike in self.strikes.values() if strike.row is not None}
        done = damage_checkpoint(fault, self._plan, damaged)
        if done is not None:
            self._struck(number, fault, done.detail, done.row)

    def _is_due(self, fault: Fault, progress: Progress) -> bool:
        if fault.what == "full-disk":
            return bool(self._found_full())
        if fault.has_own_moment:
            return False
        if fault.when == "after":
            return time.monotonic() - self._started >= float(fault.at)
        return fault.at in progress.phases if fault.when == "phase" else progress.steps >= int(fault.at)

    def _strike(self, fault: Fault, engine: LocalEngine, experiment: str) -> str | None:
        """Do it; what was done, or None when it cannot be done yet."""
        if fault.what == "preempt":
            engine.preempt(experiment, rank=fault.rank)
            return f"replica {fault.rank} preempted"
        if fault.what == "restart-alone":
            engine.restart_alone(experiment, fault.rank)
            return f"replica {fault.rank} restarted alone"
        if fault.what == "full-disk":
            return self._found_full()
        if fault.what == "model-bad":
            return f"answers are {fault.values['kind']} from now on"
        if fault.what == "tool-outage":
            return f"{fault.values['name']} answers 503 for {fault.values['seconds']} s"
        if fault.what == "exit":
            return f"{fault.process} of replica {fault.rank} told to exit with {fault.values['code']}"
        number = signal.SIGSTOP if fault.what == "hang" else signal.Signals[f"SIG{fault.values['signal']}"]
        process = find_process(self._directory, fault.rank, fault.process)
        if process is None or not send_signal(process, number):
            return None
        return f"{number.name} to {fault.process} of replica {fault.rank} (pid {process.pid})"


def _hold_back(engine: LocalEngine, experiment: str, rank: int) -> list[Process]:
    """Stop a replica's processes as soon as it has any; none when it does not start."""
    deadline = time.monotonic() + _START_SECONDS
    pid = None
    while pid is None:
        if time.monotonic() > deadline:
            return []
        jobs = engine.store.jobs(experiment)
        pid = next((job.pid for job in jobs if job.replica_rank == rank and not job.ended and job.pid), None)
        time.sleep(_LOOK_SECONDS)
    held: dict[int, Process] = {}
    while True:
        table = snapshot()
        tree = [*([table[pid]] if pid in table else []), *descendants([pid], table)]
        fresh = [process for process in tree if process.pid not in held]
        if not fresh:
            return list(held.values())
        for process in fresh:
            send_signal(process, signal.SIGSTOP)
            held[process.pid] = process


def find_process(directory: Path, rank: int, name: str) -> Process | None:
    """The process that faults call ``name``, of a replica of the rehearsal in ``directory``."""
    for process in sorted(snapshot().values()):
        environment = _environment(process.pid)
        if environment.get("PRIMEBEAKER_REHEARSAL_DIR") != str(directory) or not process.alive:
            continue
        if environment.get("BEAKER_REPLICA_RANK", "0") == str(rank) and _name(process.pid, environment) == name:
            return process
    return None


def processes_left(directory: Path) -> int:
    """How many processes of the rehearsal in ``directory`` are alive."""
    return sum(
        process.alive and _environment(process.pid).get("PRIMEBEAKER_REHEARSAL_DIR") == str(directory)
        for process in snapshot().values()
    )


def _environment(pid: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in content.split("\0") if "=" in entry)


def _name(pid: int, environment: Mapping[str, str]) -> str | None:
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return None
    program = next((_PROGRAMS[word] for word in words if word in _PROGRAMS), None)
    if program is None:
        return None
    return own_name(program, environment)
