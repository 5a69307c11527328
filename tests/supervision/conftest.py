"""Supervisors in processes of their own, so that they can be signalled and killed for real."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PRELUDE = """
import asyncio, os, signal, sys, time
from pathlib import Path
from primebeaker.supervision import ChildSpec, Console, LogOptions, StopSignals, Supervisor

here = Path.cwd()

# Shell programs, also in the environment of every child. One traps TERM, takes a moment and writes "saved"; the other
# ignores TERM. Their pids are in the files "careful" and "stubborn".
CAREFUL = 'trap "sleep 0.3; echo saved > saved; exit 0" TERM; echo $$ > careful; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo $$ > stubborn; while :; do sleep 0.05; done'

def spec(name, *argv, cwd=here, **more):
    environment = {"PATH": os.environ["PATH"], "CAREFUL": CAREFUL, "STUBBORN": STUBBORN}
    return ChildSpec(name=name, argv=argv, env=environment, cwd=cwd, **more)

def shell(name, script, **more):
    return spec(name, "sh", "-c", script, **more)

def ready(name):
    (here / name).write_text(str(os.getpid()))

async def files(*names):
    while not all((here / name).exists() for name in names):
        await asyncio.sleep(0.02)
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a supervisor program; its working directory is ``tmp_path``."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, **options: object) -> subprocess.Popen[str]:
        program = PRELUDE + textwrap.dedent(body) + "\nsys.exit(asyncio.run(main()))\n"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[arg-type]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, 9)
        process.communicate()
