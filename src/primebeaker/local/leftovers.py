"""Supervisors that died, and what their replicas may have left running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from primebeaker.local.ids import boot_id
from primebeaker.local.store import ExperimentRow, Store
from primebeaker.supervision.processes import Process, look_up, marked, send_signal, snapshot

__all__ = ["LOST", "kill_leftovers", "leftovers", "process_mark", "reconcile", "supervisor_process"]

LOST = "supervisor lost"

_JOB_VARIABLE = "BEAKER_JOB_ID"
_ROUNDS = 3
_ROUND_SECONDS = 2.0


def process_mark(process: Process) -> str:
    """What names a process for good, also over a reboot; kept beside its pid."""
    return f"{boot_id()}:{process.start}"


def own_mark() -> str:
    """The mark of this process."""
    process = look_up(os.getpid())
    assert process is not None, "this process is in the process table"
    return process_mark(process)


def supervisor_process(row: ExperimentRow) -> Process | None:
    """The living process that is responsible for an experiment."""
    process = look_up(row.supervisor_pid) if row.supervisor_pid is not None else None
    if process is None or not process.alive or process_mark(process) != row.supervisor_start:
        return None
    return process


def reconcile(store: Store) -> list[str]:
    """Mark experiments whose supervisor is gone as failed, once, and end what is left of them.

    Returns:
        The ids that were marked by this call.
    """
    lost = []
    for row in store.experiments(states=("created", "running")):
        if supervisor_process(row) is not None:
            continue
        if store.lose(row, LOST):
            lost.append(row.id)
            kill_leftovers(job.id for job in store.jobs(row.id))
    return lost


def leftovers(job_ids: Iterable[str]) -> list[Process]:
    """Living processes that carry one of these job ids in their environment."""
    table = snapshot()
    return [process for job_id in job_ids for process in marked(job_id, table, variable=_JOB_VARIABLE)]


def kill_leftovers(job_ids: Iterable[str]) -> None:
    """End everything that carries one of these job ids."""
    wanted = list(job_ids)
    for _ in range(_ROUNDS):
        found = leftovers(wanted)
        if not found:
            return
        for process in found:
            send_signal(process, signal.SIGKILL)
        deadline = time.monotonic() + _ROUND_SECONDS
        while time.monotonic() < deadline and leftovers(wanted):
            time.sleep(0.02)
