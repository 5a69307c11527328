"""The faults a rehearsal can inject: their names, their parts, when they strike, and how they are written.

``WHAT[:key=value,…][@WHEN]``, as in ``kill:rank=1,process=engine0@step=3``.  WHEN is ``step=N`` (step N has been made),
``phase=NAME`` (a role has begun that phase) or ``after=SECONDS``; without it, ``step=1``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from primebeaker.errors import Mistakes, UserError, did_you_mean

__all__ = ["FAULTS", "PHASES", "Fault", "FaultKind", "parse_fault", "parse_faults"]

_PROCESS = re.compile(r"trainer|orchestrator|router|gateway|role|(engine|worker)[0-9]+")
_PROCESSES = ("trainer", "orchestrator", "router", "engine0", "gateway", "role", "worker0")
#: The phases of a role, in their order.
PHASES = ("check", "dirs", "setup", "programs", "assemble", "prepare", "start", "run", "end")


class FaultKind(NamedTuple):
    """A row of ``--list-faults``: the keys with their default (None: required), what it does, what must follow."""

    keys: Mapping[str, str | None]
    effect: str
    expected: str


FAULTS: Mapping[str, FaultKind] = {
    "kill": FaultKind(
        {"rank": "0", "process": None, "signal": "KILL"},
        "a signal to one process of a replica",
        "the whole topology is down within 20 s; the replica ends with that process's code (single-node: with 1)",
    ),
    "exit": FaultKind(
        {"rank": "0", "process": None, "code": "7"},
        "one stand-in exits with a code",
        "the whole topology is down within 20 s; the replica ends with that code (single-node: with 1)",
    ),
    "hang": FaultKind(
        {"rank": "0", "process": None},
        "one process is stopped and stays",
        "a time-out notices it: the stall watch (97), the drain time-out (91), readiness (94) or the heartbeat (95)",
    ),
    "preempt": FaultKind(
        {"rank": "0", "restart": "false"},
        "the engine preempts a replica",
        "all replicas are preempted; with restart=true, or where the task restarts by itself, the run then finishes",
    ),
    "restart-alone": FaultKind(
        {"rank": None},
        "one replica is restarted without the others",
        "the others end with 95; no mixed run",
    ),
    "late": FaultKind(
        {"rank": None, "seconds": None},
        "one replica is held back from its very start",
        "the barrier waits; beyond the rendezvous time-out the leader ends with 93 and names the replica",
    ),
    "no-service": FaultKind(
        {"name": None},
        "a required service never appears",
        "the leader ends with 94 and names the service",
    ),
    "corrupt": FaultKind(
        {"file": "shard", "step": "0", "how": "truncate"},
        "a file of a checkpoint (step=0: the newest) is damaged once the run has ended, or at @step=N",
        "the step is not complete, and what it lacks is named",
    ),
    "midsave": FaultKind(
        {"step": "0"},
        "the trainer is killed between shards and .metadata (step=0: the last step)",
        "the step is not complete",
    ),
    "model-bad": FaultKind(
        {"kind": "malformed"},
        "the model's answers are malformed, slow, 500 or truncated: all of them, or those after @step=N",
        "the run ends well; what cannot be used is counted as rollout errors",
    ),
    "slow-disk": FaultKind(
        {"ms": None},
        "every file operation of roles and stand-ins takes up to so long, listings are up to ten times as old",
        "the run ends well",
    ),
    "full-disk": FaultKind(
        {"bytes": None},
        "writes of the stand-ins fail once the run has written so much",
        "one line names the file and the full disk; the topology is down within 20 s, no half-written file counts",
    ),
    "tool-outage": FaultKind(
        {"name": None, "seconds": None},
        "a tool service answers 503 for a while",
        "rollouts try again or count the failure; the run goes on and ends well",
    ),
    "port-busy": FaultKind(
        {"port": None},
        "a port of the launch is taken before it starts",
        "the next port is used; for the gateway's the leader ends with 2 and names --gateway-port; "
        "a single node, which moves no port, fails and names it",
    ),
    "clock": FaultKind(
        {"rank": "0", "skew": None},
        "the wall clock of one replica is shifted by so many seconds",
        "no effect: the run ends well",
    ),
}
_CHOICES: Mapping[str, Sequence[str]] = {
    "file": ("shard", "metadata", "progress", "policy"),
    "how": ("truncate", "remove", "garbage", "empty"),
    "kind": ("malformed", "slow", "500", "truncated"),
    "restart": ("true", "false"),
}
_NUMBERS = frozenset({"rank", "code", "step", "bytes"})
_POSITIVE = frozenset({"ms", "port"})
#: Faults with a moment of their own, the start or a save, which no other can be asked for.
_OWN_MOMENT = frozenset({"late", "no-service", "midsave", "slow-disk", "full-disk", "port-busy", "clock"})
#: Faults that strike at the end or from the start on, unless a moment is asked for.
_MOMENT_IF_ASKED = frozenset({"corrupt", "model-bad"})
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")

When = Literal["step", "phase", "after"]


@dataclass(frozen=True)
class Fault:
    """One fault of a rehearsal.

    Attributes:
        text: As the user wrote it.
        what: Its kind.
        values: Its keys, defaults filled in.
        when: What ``at`` counts.
        at: The step, the phase's name, or the seconds.
    """

    text: str
    what: str
    values: Mapping[str, str]
    when: When
    at: str

    @property
    def rank(self) -> int:
        """The replica it strikes."""
        return int(self.values.get("rank", "0"))

    @property
    def process(self) -> str:
        """The process it strikes."""
        return self.values["process"]

    @property
    def holds_step(self) -> int | None:
        """The step after which the run waits until the fault has struck, so that it cannot end before."""
        return int(self.at) if self.when == "step" and not self.has_own_moment else None

    def step(self, last: int) -> int:
        """The checkpoint step it damages; 0 stands for the ``last`` one."""
        return int(self.values["step"]) or last

    @property
    def has_own_moment(self) -> bool:
        """Whether its kind says when it strikes, and not what stands behind the ``@``."""
        return self.what in _OWN_MOMENT or (self.what in _MOMENT_IF_ASKED and "@" not in self.text)

    @property
    def expected(self) -> str:
        """What must follow."""
        return FAULTS[self.what].expected


def parse_faults(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Every fault of a command line.

    Raises:
        UserErrors: One line for each that is malformed.
    """
    mistakes, faults = Mistakes(), []
    for text in texts:
        with mistakes.collect():
            faults.append(parse_fault(text))
    mistakes.raise_if_any()
    return tuple(faults)


def parse_fault(text: str) -> Fault:
    """One fault.

    Raises:
        UserError: An unknown kind, key, process or moment, or a value out of range.
    """
    head, at, moment = text.partition("@")
    what, _, listed = head.partition(":")
    if what not in FAULTS:
        hint = did_you_mean(what, FAULTS) or "primebeaker rehearse --list-faults lists them"
        raise UserError(f"--fault {text!r}: unknown fault {what!r}", hint=hint)
    values = _values(text, what, listed)
    if at and what in _OWN_MOMENT:
        raise UserError(f"--fault {text!r}: {what} has a moment of its own", hint=f"leave out @{moment}")
    when, _, value = (moment if at else "step=1").partition("=")
    valid = {"step": value.isdigit() and int(value) > 0, "phase": value in PHASES, "after": _is_seconds(value)}
    if when not in valid or not valid[when]:
        near = did_you_mean(value, PHASES) if when == "phase" else None
        raise UserError(f"--fault {text!r}: {moment!r}: expected step=N, phase=NAME or after=SECONDS", hint=near)
    return Fault(text, what, values, "step" if when == "step" else "phase" if when == "phase" else "after", value)


def _values(text: str, what: str, listed: str) -> dict[str, str]:
    keys = FAULTS[what].keys
    values: dict[str, str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if key not in keys:
            raise UserError(
                f"--fault {text!r}: {what} has no key {key!r}",
                hint=did_you_mean(key, keys) or f"it has {', '.join(keys)}",
            )
        if not equals or key in values:
            raise UserError(f"--fault {text!r}: expected {key}=VALUE, once")
        values[key] = value
    for key, preset in keys.items():
        if key not in values and preset is None:
            raise UserError(f"--fault {text!r}: {what} needs {key}=VALUE")
        values.setdefault(key, str(preset))
        _check(text, key, values[key])
    return values


def _check(text: str, key: str, value: str) -> None:
    if key in _NUMBERS and not value.isdigit():
        raise UserError(f"--fault {text!r}: {key} = {value!r}: expected a whole number")
    if key in _POSITIVE and not (value.isdigit() and int(value)):
        raise UserError(f"--fault {text!r}: {key} = {value!r}: expected a whole number above 0")
    if key == "skew" and not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", value):
        raise UserError(f"--fault {text!r}: skew = {value!r}: expected seconds, as in 3600 or -90")
    if key == "seconds" and not (_is_seconds(value) and float(value) > 0):
        raise UserError(f"--fault {text!r}: seconds = {value!r}: expected a number above 0")
    if key == "name" and not _SERVICE.fullmatch(value):
        raise UserError(f"--fault {text!r}: name = {value!r}: expected the name of a service")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise UserError(f"--fault {text!r}: {key} = {value!r}: expected one of {', '.join(_CHOICES[key])}")
    if key == "process" and not _PROCESS.fullmatch(value):
        raise UserError(
            f"--fault {text!r}: unknown process {value!r}",
            hint=did_you_mean(value, _PROCESSES) or f"one of {', '.join(_PROCESSES)}",
        )
    if key == "signal" and f"SIG{value}" not in signal.Signals.__members__:
        raise UserError(f"--fault {text!r}: unknown signal {value!r}", hint="KILL, TERM, INT, SEGV, …")


def _is_seconds(value: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) is not None
