"""The folder of executables that takes the place of Prime-RL's programs on the ``PATH`` of a rehearsal's replicas."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from primebeaker.fileio import atomic_write
from primebeaker.prime_rl.contract import GEN_0_7

__all__ = ["install_programs"]

_PROGRAMS = GEN_0_7.programs
#: Program name -> module of its stand-in.
STANDINS = {
    _PROGRAMS.torchrun: "torchrun",
    _PROGRAMS.inference: "inference",
    _PROGRAMS.orchestrator: "orchestrator",
    _PROGRAMS.router: "router",
    _PROGRAMS.rl: "rl",
    _PROGRAMS.sft: "sft",
}


def install_programs(directory: Path) -> Path:
    """Write one small launch script a program, for the Python that runs this.

    Args:
        directory: Made when missing; goes first on ``PATH``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for program, module in STANDINS.items():
        command = f"exec {shlex.quote(sys.executable)} -m primebeaker.rehearsal.standins.{module}"
        atomic_write(directory / program, f'#!/bin/sh\n{command} "$@"\n', mode=0o755)
    return directory
