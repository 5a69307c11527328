"""The process table, and the few system calls that keep a killed parent from leaving anything behind.

All that differs between systems is here.  Linux reads ``/proc`` and has a parent-death signal, child subreapers and
pid file descriptors; elsewhere ``ps`` is asked, and the guardian's watch on the parent takes the signal's place.
Only light standard modules are imported: the guardian process loads this module at every start of a supervisor.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "DETACHED",
    "MARKER",
    "Process",
    "become_subreaper",
    "child_preparation",
    "descendants",
    "look_up",
    "marked",
    "send_signal",
    "snapshot",
]

#: Environment variable that every supervised process and its descendants carry: the supervisors above it, outermost
#: first, each as ``<supervisor>.<child number>``, joined by ``/``.
MARKER = "PRIMEBEAKER_SUPERVISED_BY"

#: Value of :data:`MARKER` of a process that is meant to outlive whoever started it, with all that is below it.
DETACHED = "detached"

HAS_PROC = sys.platform.startswith("linux") and Path("/proc/self/stat").exists()

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_RESET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)


class Process(NamedTuple):
    """One row of the process table. ``pid`` and ``start`` together name a process for good; a pid alone does not."""

    pid: int
    ppid: int
    pgid: int
    #: ``R``, ``S``, ``D``, ``T``, ``Z`` …
    state: str
    #: Start time in the system's own form; only ever compared.
    start: str

    @property
    def alive(self) -> bool:
        """Whether it still runs: a zombie has ended and only waits for its parent."""
        return self.state not in ("Z", "X")


def look_up(pid: int) -> Process | None:
    """The process of this pid, zombies included, or None."""
    if HAS_PROC:
        try:
            with open(f"/proc/{pid}/stat", "rb") as stream:
                return _parse_stat(stream.read())
        except (OSError, ValueError, IndexError):
            return None
    return next(iter(_parse_ps(_run_ps("-p", str(pid)))), None)


def snapshot() -> dict[int, Process]:
    """The process table by pid, zombies included."""
    if not HAS_PROC:
        return {process.pid: process for process in _parse_ps(_run_ps("-A"))}
    table: dict[int, Process] = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        process = look_up(pid)
        if process is not None:
            table[pid] = process
    return table


def descendants(roots: Iterable[int], table: Mapping[int, Process]) -> list[Process]:
    """Every process below ``roots`` in ``table``: without the roots, and without what is marked as detached."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: dict[int, Process] = {}
    pending = list(roots)
    while pending:
        for process in children.get(pending.pop(), ()):
            if process.pid not in found and DETACHED.encode() not in _mark_words(process.pid, MARKER):
                found[process.pid] = process
                pending.append(process.pid)
    return list(found.values())


def marked(mark: str, table: Mapping[int, Process], *, variable: str = MARKER) -> list[Process]:
    """Living processes whose start environment has ``mark`` as one of the words of ``variable``.

    Finds what left its parent, its group and its session.  Processes of other users are not readable and not found.
    """
    if not HAS_PROC:
        return []
    wanted = mark.encode()
    return [
        process
        for process in table.values()
        if process.alive
        and any(word == wanted or word.startswith(wanted + b".") for word in _mark_words(process.pid, variable))
    ]


def _mark_words(pid: int, variable: str) -> list[bytes]:
    """The words of a variable in a process's start environment; none when it cannot be read."""
    if not HAS_PROC:
        return []
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            environment = b"\0" + stream.read()
    except OSError:
        return []
    start = environment.find(f"\0{variable}=".encode())
    if start < 0:
        return []
    value = environment[start + len(variable) + 2 :].split(b"\0", 1)[0]
    return value.split(b"/")


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process, never another one that was given its pid meanwhile.

    Returns:
        Whether the signal was delivered; False when the process has ended or may not be signalled.
    """
    opener = getattr(os, "pidfd_open", None)
    try:
        if opener is None or sys.platform != "linux":
            current = look_up(process.pid)
            if current is None or current.start != process.start:
                return False
            os.kill(process.pid, number)
            return True
        descriptor = opener(process.pid)
    except OSError:
        return False
    try:
        # The descriptor holds on to the process it was opened for, so the check cannot go stale.
        current = look_up(process.pid)
        if current is None or current.start != process.start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def become_subreaper() -> bool:
    """Make this process the parent of every descendant whose own parent ends. False where the system cannot."""
    prctl = _prctl()
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def child_preparation() -> Callable[[], None]:
    """What a child runs between fork and exec: usual signal handling, and KILL as soon as this process dies."""
    prctl, parent = _prctl(), os.getpid()

    def prepare() -> None:
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            # The parent may have died before the call above.
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)

    return prepare


def _prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)

    def call(option: int, value: int) -> int:
        return int(library.prctl(option, ctypes.c_ulong(value), 0, 0, 0))

    return call


def _parse_stat(line: bytes) -> Process:
    # The program's name stands in parentheses and may hold any byte.
    pid, _, rest = line.partition(b" ")
    fields = rest[rest.rindex(b")") + 2 :].split()
    return Process(int(pid), int(fields[1]), int(fields[2]), fields[0].decode(), fields[19].decode())


def _run_ps(*selection: str) -> str:
    # Not where there is a /proc; the guardian's start is part of every supervisor's.
    import subprocess

    command = ["ps", *selection, "-o", "pid=,ppid=,pgid=,state=,lstart="]
    environment = {"PATH": os.environ.get("PATH", "/bin:/usr/bin"), "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout


def _parse_ps(output: str) -> list[Process]:
    processes = []
    for line in output.splitlines():
        pid, ppid, pgid, state, start = line.split(None, 4)
        processes.append(Process(int(pid), int(ppid), int(pgid), state[0], " ".join(start.split())))
    return processes
