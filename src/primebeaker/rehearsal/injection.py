"""Inject a rehearsal's faults at their moments, and judge whether what must follow did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.beaker.models import Experiment
from primebeaker.local import LocalEngine
from primebeaker.prime_rl.layout import Layout
from primebeaker.rehearsal.faults import Fault
from primebeaker.rehearsal.standins.orders import own_name
from primebeaker.supervision.processes import Process, send_signal, snapshot

__all__ = ["Injector", "Progress", "judge"]

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
_DOWN_SECONDS = 20.0


class Progress(NamedTuple):
    """How far the rehearsed run is: steps made, and the phases any role has begun."""

    steps: int
    phases: frozenset[str]


@dataclass
class _Strike:
    at: float
    detail: str


class Injector:
    """Strikes each fault once, in the order their moments come.

    Args:
        faults: What to inject.
        directory: The rehearsal's own folder, where stand-ins look for orders.
        tell: Takes one line of progress.
    """

    def __init__(self, faults: Sequence[Fault], directory: Path, tell: Callable[[str], None]) -> None:
        self.faults = tuple(faults)
        self.strikes: dict[int, _Strike] = {}
        self._directory = directory
        self._tell = tell
        self._started = time.monotonic()

    def look(self, engine: LocalEngine, experiment: str, progress: Progress) -> None:
        """Strike every fault whose moment has come."""
        for number, fault in enumerate(self.faults):
            if number not in self.strikes and self._is_due(fault, progress):
                detail = self._strike(fault, engine, experiment)
                if detail is not None:
                    self.strikes[number] = _Strike(time.monotonic(), detail)
                    (self._directory / f"struck-{number}").touch()
                    self._tell(f"fault {fault.text}: {detail}")

    @property
    def restarts(self) -> bool:
        """Whether a preempted run is to be started again."""
        return any(fault.values.get("restart") == "true" for fault in self.faults)

    def damage(self, layout: Layout, last_step: int) -> None:
        """Damage the checkpoint files of the faults that strike once the run has ended."""
        for number, fault in enumerate(self.faults):
            if fault.what == "corrupt":
                path = _target(fault, layout, _step_of(fault, last_step))
                if path.is_file():
                    _damage(path, fault.values["how"])
                    self.strikes[number] = _Strike(time.monotonic(), f"{fault.values['how']} {path.name}")

    def _is_due(self, fault: Fault, progress: Progress) -> bool:
        if fault.what in ("corrupt", "midsave", "model-bad"):
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
        if fault.what == "exit":
            return f"{fault.process} of replica {fault.rank} told to exit with {fault.values['code']}"
        number = signal.SIGSTOP if fault.what == "hang" else signal.Signals[f"SIG{fault.values['signal']}"]
        process = find_process(self._directory, fault.rank, fault.process)
        if process is None or not send_signal(process, number):
            return None
        return f"{number.name} to {fault.process} of replica {fault.rank} (pid {process.pid})"


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


def judge(
    injector: Injector,
    experiment: Experiment,
    *,
    ended_at: float,
    checkpoints: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    last_step: int,
    left: int,
    multi_node: bool,
) -> list[dict[str, Any]]:
    """One row a fault: what was expected, what was seen, whether it held.

    Args:
        injector: What struck.
        experiment: How the run ended.
        ended_at: ``time.monotonic()`` of its end.
        checkpoints: The report's checkpoint rows.
        steps: The report's step rows.
        last_step: The step the run was to reach.
        left: Processes of the rehearsal still alive.
        multi_node: Whether roles run the topology; Prime-RL's single-node launcher ends with 1 whatever failed.
    """
    rows = []
    for number, fault in enumerate(injector.faults):
        strike = injector.strikes.get(number)
        seen, held = _seen(fault, strike, experiment, ended_at, checkpoints, steps, last_step)
        code = expected_code(fault, multi_node=multi_node)
        if held and code is not None:
            ended_with = {job.replica_rank or 0: job.status.exit_code for job in experiment.latest_jobs}[fault.rank]
            held = ended_with == code
            seen = seen if held else f"{seen}; expected {code} of replica {fault.rank}"
        if left:
            seen, held = f"{seen}; {left} processes left", False
        rows.append({"spec": fault.text, "expected": fault.expected, "observed": seen, "ok": held})
    return rows


def expected_code(fault: Fault, *, multi_node: bool) -> int | None:
    """The exit code a replica must end with after one of its processes was killed or made to exit; else None."""
    if fault.what not in ("kill", "exit"):
        return None
    own = int(fault.values["code"]) if fault.what == "exit" else 128 + signal.Signals[f"SIG{fault.values['signal']}"]
    if fault.process == "role":
        return own
    # torchrun ends with 1 whatever its worker ended with.
    return own if multi_node and not fault.process.startswith("worker") else 1


def _seen(
    fault: Fault,
    strike: _Strike | None,
    experiment: Experiment,
    ended_at: float,
    checkpoints: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    last_step: int,
) -> tuple[str, bool]:
    state = experiment.state
    codes = {job.replica_rank or 0: job.status.exit_code for job in experiment.latest_jobs}
    shown = ", ".join(f"replica {rank} {code}" for rank, code in sorted(codes.items()))
    ending = f"experiment {state}; exit codes: {shown}"
    if fault.what == "model-bad":
        errors = sum(int(step.get("errors") or 0) for step in steps)
        return f"{ending}; {errors} rollout errors", state == "succeeded" and bool(steps)
    if fault.what in ("corrupt", "midsave"):
        return _seen_step(_step_of(fault, last_step), checkpoints)
    if strike is None:
        return f"it never struck; {ending}", False
    if fault.what == "preempt":
        newest = max((int(row["step"]) for row in checkpoints if row["complete"]), default=0)
        if fault.values["restart"] == "true":
            return f"{ending}; newest complete step {newest}", state == "succeeded" and newest == last_step
        return ending, state == "preempted" or (state == "succeeded" and newest == last_step)
    down = ended_at - strike.at
    ended = f"{ending}; down after {down:.1f} s"
    if fault.what in ("kill", "exit"):
        return ended, state == "failed" and down <= _DOWN_SECONDS
    return ended, state not in ("succeeded", "running", "created")


def _seen_step(step: int, checkpoints: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    row = next((row for row in checkpoints if row["step"] == step), None)
    if row is None:
        return f"step {step} is not there", False
    if row["complete"]:
        return f"step {step} counts as complete", False
    return f"step {step} lacks {', '.join(row['missing'])}", True


def _step_of(fault: Fault, last_step: int) -> int:
    return int(fault.values["step"]) or last_step


def _target(fault: Fault, layout: Layout, step: int) -> Path:
    return {
        "shard": layout.trainer_shard(step, 0),
        "metadata": layout.trainer_metadata(step),
        "progress": layout.orchestrator_progress(step),
        "policy": layout.broadcast(step) / "model.safetensors",
    }[fault.values["file"]]


def _damage(path: Path, how: str) -> None:
    if how == "remove":
        path.unlink()
        return
    content = path.read_bytes()
    # Garbage keeps the first bytes, so that the file still says it is a pickle or a zip.
    path.write_bytes({"truncate": content[: len(content) // 2], "garbage": content[:4] + b"garbage", "empty": b""}[how])


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
