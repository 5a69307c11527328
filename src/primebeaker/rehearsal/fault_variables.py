"""The faults that a replica's processes learn of by their environment, from the start on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from primebeaker.rehearsal.faults import Fault

__all__ = ["fault_variables", "without_faults"]

_SLOW = "PRIMEBEAKER_REHEARSAL_SLOW_DISK_MS"
#: ``RANK=SECONDS``, separated by blanks.
_CLOCKS = "PRIMEBEAKER_REHEARSAL_CLOCKS"
_PATH = "PYTHONPATH"
#: Holds the module that Python imports at its start and that shifts the clock.
_FOLDER = str(Path(__file__).parent / "clock")


def fault_variables(faults: Sequence[Fault], given: Mapping[str, str]) -> dict[str, str]:
    """The variables by which faults reach the programs.

    Args:
        faults: All faults of the rehearsal.
        given: The variables the launch itself sets.
    """
    variables: dict[str, str] = {}
    for fault in faults:
        if fault.what == "slow-disk":
            variables[_SLOW] = fault.values["ms"]
        elif fault.what == "clock":
            variables[_CLOCKS] = f"{variables.get(_CLOCKS, '')} {fault.rank}={fault.values['skew']}".strip()
            variables[_PATH] = os.pathsep.join(filter(None, (_FOLDER, given.get(_PATH))))
    return variables


def without_faults(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a rehearsal less those of its faults."""
    kept = {name: value for name, value in variables.items() if name not in (_SLOW, _CLOCKS)}
    if _PATH in kept:
        parts = [part for part in kept.pop(_PATH).split(os.pathsep) if part != _FOLDER]
        kept |= {_PATH: os.pathsep.join(parts)} if parts else {}
    return kept
