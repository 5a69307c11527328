"""Remove what has ended, and look after the engine's health."""

from __future__ import annotations

import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from primebeaker.local.engine import LocalEngine
from primebeaker.local.home import file_system_type
from primebeaker.local.leftovers import kill_leftovers, leftovers, reconcile

__all__ = ["Finding", "Removed", "collect_garbage", "examine"]

# Ports that a launch takes by default on the machine of its first replica.
_PORTS = {1212: "gateway", 5555: "rollouts", 8000: "router", 8100: "inference", 29500: "rendezvous", 29501: "weights"}

# A supervisor says every second that it is alive.
_SILENT = timedelta(seconds=10)


class Removed(NamedTuple):
    """An ended experiment that was (or would be) removed."""

    id: str
    name: str
    state: str
    ended_at: str
    bytes: int


class Finding(NamedTuple):
    """One line of an examination."""

    what: str
    ok: bool
    detail: str


def collect_garbage(engine: LocalEngine, older_than: timedelta, *, dry_run: bool = False) -> list[Removed]:
    """Remove logs, folders and rows of experiments that ended longer ago than ``older_than``; never running ones."""
    reconcile(engine.store)
    limit = datetime.now(UTC) - older_than
    removed = []
    for row in engine.store.experiments():
        if row.active or row.ended_at is None or datetime.fromisoformat(row.ended_at) > limit:
            continue
        folder = engine.home.experiment(row.id)
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
        if not dry_run:
            # The row goes first and only when it has not been started again: then nothing runs in the folder.
            if not engine.store.delete(row.id):
                continue
            engine.secrets.forget_origin(row.id)
            shutil.rmtree(folder, ignore_errors=True)
        removed.append(Removed(row.id, row.name, row.state, row.ended_at, size))
    return removed


def examine(engine: LocalEngine) -> list[Finding]:
    """Look at the home, the database, processes left by lost supervisors, ports and resources."""
    lost = reconcile(engine.store)
    verdict = engine.store.check()
    active = [row for row in engine.store.experiments() if row.active]
    limit = datetime.now(UTC) - _SILENT
    silent = [row.id for row in active if datetime.fromisoformat(row.supervisor_beat or row.created_at) < limit]
    usage = shutil.disk_usage(engine.home.root)
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    busy = [f"{port} ({name})" for port, name in _PORTS.items() if not _port_free(port)]
    left = _end_leftovers(engine)
    kind = file_system_type(engine.home.root) or "unknown file system"
    return [
        Finding("home", os.access(engine.home.root, os.W_OK), f"{engine.home.root} ({kind})"),
        Finding("database", verdict == "ok", f"{engine.home.database}: {verdict}"),
        Finding("running", True, f"{len(active)} experiments"),
        Finding("lost supervisors", not lost, ", ".join(lost) or "none"),
        Finding("silent supervisors", not silent, ", ".join(silent) or "none"),
        Finding("left-over processes", not left, f"{left} ended now" if left else "none"),
        Finding("ports", True, f"busy: {', '.join(busy)}" if busy else "the usual ports are free"),
        Finding("disk", usage.free > 1 << 30, f"{usage.free / 2**30:.1f} GiB free"),
        Finding("resources", True, f"{os.cpu_count()} CPUs, {_memory_gib():.1f} GiB memory, {gpus} GPUs"),
    ]


def _end_leftovers(engine: LocalEngine) -> int:
    jobs = [job.id for row in engine.store.experiments() if not row.active for job in engine.store.jobs(row.id)]
    found = len(leftovers(jobs))
    if found:
        kill_leftovers(jobs)
    return found


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
