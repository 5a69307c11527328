"""One scanner an index: an advisory lock that dies with its process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from primebeaker.errors import UserError
from primebeaker.watcher.errors import ScanLockedError
from primebeaker.watcher.timing import now

__all__ = ["is_scanning", "scan_lock"]

_POLL_SECONDS = 0.25
#: A server that asks whether a scan is running holds a shared lock for an instant; that is no other scan.
_GRACE_SECONDS = 0.6


def _lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


@contextlib.contextmanager
def scan_lock(database: Path, command: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold ``<database>.lock``.

    Args:
        database: The index.
        command: What is running, for whoever finds the lock taken.
        wait: Seconds to wait for another scan to end.

    Raises:
        UserError: The lock cannot be made.
        ScanLockedError: Another process still holds it; its host, process and age are named.
    """
    path = _lock_path(database)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", hint="choose another --database") from error
    try:
        deadline = time.monotonic() + max(wait, _GRACE_SECONDS)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise ScanLockedError(
                        f"another scan of {database} is running: {_holder(path)}",
                        hint="wait for it, or give --wait=SECONDS",
                    ) from None
                time.sleep(_POLL_SECONDS if wait > _GRACE_SECONDS else 0.05)
        record = {"pid": os.getpid(), "host": socket.gethostname(), "started_at": now(), "command": command}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_scanning(database: Path) -> bool:
    """Whether some process holds the lock; asked from a process that does not hold it itself."""
    try:
        descriptor = os.open(_lock_path(database), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock needs only read access; it fails while a scanner holds the exclusive one.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holder(path: Path) -> str:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        age = (datetime.now(UTC) - datetime.fromisoformat(record["started_at"])).total_seconds()
        return f"{record['command']} on {record['host']}, process {record['pid']}, since {age:.0f} s"
    except (OSError, ValueError, KeyError, TypeError):
        return "its holder has not written its name yet"
