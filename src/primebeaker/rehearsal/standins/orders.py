"""The fault hooks of the stand-ins.

They exist only in a rehearsal on the embedded engine: everywhere else each of these functions does nothing.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from primebeaker.rehearsal.faults import Fault, parse_faults
from primebeaker.rehearsal.settings import is_rehearsal, load_settings, rehearsal_directory

__all__ = ["active_faults", "bad_answers", "die_midsave", "has_struck", "hold", "holding", "obey_exit", "own_name"]

_HOLD_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_EFFECT_SECONDS = 0.5
_TELL_SECONDS = 1.0
#: Faults that end this process, too, as soon as the others have heard of it, and how long that may take.
_ENDS_THE_RUN = ("kill", "exit", "preempt", "restart-alone")
_DOWN_SECONDS = 20.0
_ENGINE_FOLDER = re.compile(r"node_[0-9]+_rank([0-9]+)")


def active_faults(environment: Mapping[str, str] | None = None) -> tuple[Fault, ...]:
    """The faults this process may have to take part in; none outside a rehearsal."""
    environment = os.environ if environment is None else environment
    return parse_faults(load_settings(environment).faults) if is_rehearsal(environment) else ()


def has_struck(number: int) -> bool:
    """Whether the moment of a fault has come."""
    return (rehearsal_directory() / f"struck-{number}").exists()


def bad_answers(faults: Sequence[Fault]) -> str | None:
    """How answers are spoilt now by one of the ``faults``, or None."""
    for number, fault in enumerate(faults):
        if fault.what == "model-bad" and (fault.has_own_moment or has_struck(number)):
            return fault.values["kind"]
    return None


def hold(step: int) -> None:
    """Wait after a step until the faults that strike at it have struck and taken effect, at most a minute."""
    for seconds in holding(step):
        time.sleep(seconds)


def holding(step: int) -> Iterator[float]:
    """The pauses that :func:`hold` makes, for callers that wait in a way of their own."""
    for number, fault in enumerate(active_faults()):
        if fault.holds_step != step:
            continue
        deadline = time.monotonic() + _HOLD_SECONDS
        while not has_struck(number) and time.monotonic() < deadline:
            yield _LOOK_SECONDS
        # What was struck must take effect before the run goes on, or a short run would end first.
        yield _EFFECT_SECONDS
        if fault.what in _ENDS_THE_RUN:
            deadline = min(deadline, time.monotonic() + _DOWN_SECONDS)
        elif fault.what != "hang" or fault.process != "role":
            # Only peers can miss a role that hangs, and they need their time-out.
            continue
        # What is logged meanwhile keeps the stall watch from being first.
        while time.monotonic() < deadline:
            sys.stdout.write(f"Held after step {step}\n")
            sys.stdout.flush()
            yield _TELL_SECONDS


def die_midsave(step: int, last: int | None) -> None:
    """Kill this process when a fault says that the save of ``step`` is cut off here."""
    for fault in active_faults():
        if fault.what == "midsave" and int(fault.values["step"]) in (step, 0 if step == last else step):
            os.kill(os.getpid(), signal.SIGKILL)


def own_name(program: str, environment: Mapping[str, str] | None = None) -> str:
    """What faults call this process: ``engine0``, ``worker1``, ``trainer``, ``router``, …"""
    environment = os.environ if environment is None else environment
    if program == "inference":
        match = _ENGINE_FOLDER.search(environment.get("VLLM_CACHE_ROOT", ""))
        return f"engine{match[1] if match else 0}"
    if program.startswith("prime_rl."):
        return f"worker{environment.get('LOCAL_RANK', '0')}"
    return {"torchrun": "trainer", "vllm-router": "router", "rl": "role", "sft": "role"}.get(program, program)


def obey_exit(program: str) -> None:
    """Exit with the code a fault orders, once it is ordered."""
    rank = os.environ.get("BEAKER_REPLICA_RANK", "0")
    orders = [
        (number, int(fault.values["code"]))
        for number, fault in enumerate(active_faults())
        if fault.what == "exit" and str(fault.rank) == rank and fault.process == own_name(program)
    ]
    if not orders:
        return

    def watch() -> None:
        while True:
            for number, code in orders:
                if has_struck(number):
                    os._exit(code)
            time.sleep(_LOOK_SECONDS)

    threading.Thread(target=watch, name="faults", daemon=True).start()
