"""What must follow each injected fault, and whether it did."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from primebeaker.beaker.models import Experiment
from primebeaker.rehearsal.faults import Fault
from primebeaker.rehearsal.injection import Injector, Strike
from primebeaker.roles.causes import ExitCode

__all__ = ["Seen", "expected_code", "judge"]

_DOWN_SECONDS = 20.0
_TIME_OUTS = frozenset(
    {ExitCode.ENDED_UNEXPECTEDLY, ExitCode.BARRIER_TIMEOUT, ExitCode.NOT_READY, ExitCode.PEER_LOST, ExitCode.STALLED}
)
#: How replicas end that follow another one: told by a peer, missing it, or ended by the engine meanwhile.
_FOLLOWED = frozenset({ExitCode.PEER_FAILED, ExitCode.PEER_LOST, ExitCode.TERMINATED, 128 + signal.SIGKILL})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a rehearsal left behind.

    Attributes:
        experiment: How the run ended.
        timed_out: Whether it had to be stopped, as it did not end by itself.
        ended_at: ``time.monotonic()`` of its end.
        checkpoints: The report's checkpoint rows.
        steps: The report's step rows.
        ends: The events with which roles told why they end.
        last_step: The step the run was to reach.
        left: Processes of the rehearsal still alive.
        multi_node: Whether roles run the topology; Prime-RL's single-node launcher ends with 1 whatever failed.
        barrier_seconds: How long replicas wait for each other.
        failure: The first cause and the last lines of the replica it is on; empty when the run ended well.
    """

    experiment: Experiment
    timed_out: bool
    ended_at: float
    checkpoints: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]]
    ends: Sequence[Mapping[str, Any]]
    last_step: int
    left: int
    multi_node: bool
    barrier_seconds: float
    failure: str = ""

    @property
    def state(self) -> str:
        """The experiment's state."""
        return self.experiment.state

    @property
    def codes(self) -> dict[int, int | None]:
        """The exit code of each replica."""
        return {job.replica_rank or 0: job.status.exit_code for job in self.experiment.latest_jobs}

    @property
    def ending(self) -> str:
        """State and exit codes in words."""
        codes = ", ".join(f"replica {rank} {code}" for rank, code in sorted(self.codes.items()))
        return f"experiment {self.state}; exit codes: {codes}"

    def told(self, code: int, word: str) -> str | None:
        """What a role that ended with ``code`` said, when it names ``word``."""
        messages = (str(end.get("message", "")) for end in self.ends if end.get("code") == code)
        return next((message for message in messages if word in message), None)


class Outcome(NamedTuple):
    """What was seen, and whether it is what must follow."""

    observed: str
    ok: bool


def judge(injector: Injector, seen: Seen) -> list[dict[str, Any]]:
    """One row a fault: ``spec``, ``expected``, ``observed``, ``ok``."""
    rows = []
    for number, fault in enumerate(injector.faults):
        outcome = _outcome(fault, injector.strikes.get(number), seen)
        if seen.left:
            outcome = Outcome(f"{outcome.observed}; {seen.left} processes left", False)
        rows.append({"spec": fault.text, "expected": fault.expected, "observed": outcome.observed, "ok": outcome.ok})
    return rows


def expected_code(fault: Fault, *, multi_node: bool) -> int | None:
    """The exit code a replica must end with after one of its processes was killed or made to exit; else None."""
    if fault.what not in ("kill", "exit"):
        return None
    own = int(fault.values["code"]) if fault.what == "exit" else 128 + signal.Signals[f"SIG{fault.values['signal']}"]
    if fault.process in ("role", "gateway"):
        # Neither stands behind Prime-RL's launcher.
        return own
    # torchrun ends with 1 whatever its worker ended with.
    return own if multi_node and not fault.process.startswith("worker") else 1


def _outcome(fault: Fault, strike: Strike | None, seen: Seen) -> Outcome:
    if fault.what == "model-bad":
        errors = sum(int(step.get("errors") or 0) for step in seen.steps)
        return Outcome(f"{seen.ending}; {errors} rollout errors", seen.state == "succeeded" and bool(seen.steps))
    if fault.what == "midsave":
        step = fault.step(seen.last_step)
        return _step_outcome(step, next((row for row in seen.checkpoints if row["step"] == step), None))
    if strike is None:
        return Outcome(f"it never struck; {seen.ending}", False)
    return _AFTER_STRIKE[fault.what](fault, strike, seen)


def _brought_down(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    wanted = expected_code(fault, multi_node=seen.multi_node)
    others = {rank: code for rank, code in seen.codes.items() if rank != fault.rank}
    text = f"{seen.ending}; down after {seen.ended_at - strike.at:.1f} s"
    own = seen.codes.get(fault.rank)
    ok = own == wanted and all(code in _FOLLOWED for code in others.values())
    if fault.process.startswith(("trainer", "worker")):
        # Ranks of one trainer fall together: the agent of another node may end with its own 1 before this one's.
        falls = any(code == 1 for code in others.values()) and own in {wanted, *_FOLLOWED}
        ok = ok or (falls and all(code == 1 or code in _FOLLOWED for code in others.values()))
    if not ok:
        text += f"; expected {wanted} of replica {fault.rank}"
    return Outcome(text, ok and seen.state == "failed" and seen.ended_at - strike.at <= _DOWN_SECONDS)


def _noticed(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    text = f"{seen.ending}; down after {seen.ended_at - strike.at:.1f} s"
    if seen.timed_out:
        return Outcome(f"nothing noticed it; {text}", False)
    if not seen.multi_node:
        return Outcome(text, seen.state == "failed")
    # A role that hangs tells nothing itself: the others must miss it.
    told = [code for rank, code in seen.codes.items() if fault.process != "role" or rank != fault.rank]
    wanted = {ExitCode.PEER_LOST} if fault.process == "role" else _TIME_OUTS
    return Outcome(text, seen.state == "failed" and any(code in wanted for code in told))


def _preempted(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    made = max((int(row["step"]) for row in seen.steps), default=0)
    finished = seen.state == "succeeded" and made == seen.last_step
    if fault.values["restart"] == "true":
        return Outcome(f"{seen.ending}; last step made {made}", finished)
    return Outcome(seen.ending, seen.state == "preempted" or finished)


def _fenced(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    if not seen.multi_node:
        # There are no others: the replica simply starts again.
        return Outcome(seen.ending, seen.state == "succeeded")
    others = [code for rank, code in seen.codes.items() if rank != fault.rank]
    return Outcome(seen.ending, seen.state == "failed" and ExitCode.PEER_LOST in others)


def _waited_for(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    if float(fault.values["seconds"]) < seen.barrier_seconds:
        return Outcome(f"{seen.ending}; the barrier waits {seen.barrier_seconds:g} s", seen.state == "succeeded")
    if fault.rank == 0:
        # Without a leader the others wait for it in vain, each by itself.
        return Outcome(seen.ending, ExitCode.BARRIER_TIMEOUT in seen.codes.values())
    told = seen.told(ExitCode.BARRIER_TIMEOUT, str(fault.rank))
    text = seen.ending if told is None else f"{seen.ending}: {told}"
    return Outcome(text, seen.codes.get(0) == ExitCode.BARRIER_TIMEOUT and told is not None)


def _asked_for(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    told = seen.told(ExitCode.NOT_READY, fault.values["name"])
    text = seen.ending if told is None else f"{seen.ending}: {told}"
    return Outcome(text, seen.codes.get(0) == ExitCode.NOT_READY and told is not None)


def _damaged(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    assert strike.row is not None, "a checkpoint that was damaged was looked at"
    outcome = _step_outcome(int(strike.row["step"]), strike.row)
    return Outcome(f"{strike.detail}: {outcome.observed}", outcome.ok)


def _went_on(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    made = max((int(row["step"]) for row in seen.steps), default=0)
    return Outcome(f"{seen.ending}; last step made {made}", seen.state == "succeeded" and made == seen.last_step)


def _out_of_space(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    line = next((line for line in reversed(seen.failure.splitlines()) if "No space left on device" in line), None)
    text = f"{seen.ending}; down after {seen.ended_at - strike.at:.1f} s; {line or 'nothing says why'}"
    plain = line is not None and "Traceback" not in seen.failure
    return Outcome(text, seen.state == "failed" and plain and seen.ended_at - strike.at <= _DOWN_SECONDS)


def _outage(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    outcome = _went_on(fault, strike, seen)
    calls = sum(int(step.get("tool_failures") or 0) for step in seen.steps)
    errors = sum(int(step.get("errors") or 0) for step in seen.steps)
    return Outcome(f"{outcome.observed}; {calls} tool calls failed, {errors} rollout errors", outcome.ok)


def _port_taken(fault: Fault, strike: Strike, seen: Seen) -> Outcome:
    if seen.state == "succeeded":
        return Outcome(f"{seen.ending}: another port was used", seen.multi_node)
    if not seen.multi_node:
        line = next((line for line in reversed(seen.failure.splitlines()) if "port" in line), None)
        return Outcome(f"{seen.ending}; {line or 'no port is named'}", seen.state == "failed" and line is not None)
    told = seen.told(2, "--gateway-port")
    text = seen.ending if told is None else f"{seen.ending}: {told}"
    return Outcome(text, seen.codes.get(0) == 2 and told is not None)


def _step_outcome(step: int, row: Mapping[str, Any] | None) -> Outcome:
    if row is None:
        return Outcome(f"step {step} is not there", False)
    if row["complete"]:
        return Outcome(f"step {step} counts as complete", False)
    return Outcome(f"step {step} lacks {', '.join(row['missing'])}", True)


_AFTER_STRIKE: Mapping[str, Callable[[Fault, Strike, Seen], Outcome]] = {
    "kill": _brought_down,
    "exit": _brought_down,
    "hang": _noticed,
    "preempt": _preempted,
    "restart-alone": _fenced,
    "late": _waited_for,
    "no-service": _asked_for,
    "corrupt": _damaged,
    "slow-disk": _went_on,
    "clock": _went_on,
    "full-disk": _out_of_space,
    "tool-outage": _outage,
    "port-busy": _port_taken,
}
