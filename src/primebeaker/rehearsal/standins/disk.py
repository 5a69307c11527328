"""Where stand-ins write: as on any disk, or on the slow or full one of a fault."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import random
import time
from pathlib import Path

from primebeaker.fileio import atomic_write
from primebeaker.rehearsal.settings import rehearsal_directory
from primebeaker.rehearsal.standins.orders import active_faults

__all__ = ["FULL", "append", "replace", "save"]

#: Holds the path of the first file that found the disk full.
FULL = "disk-full"
_USED = "disk-used"


def save(path: Path, content: bytes) -> None:
    """Write a file in place and to the disk; a disk that gets full leaves a part of it."""
    fits = _room(path, len(content))
    with path.open("wb") as stream:
        stream.write(content[:fits])
        stream.flush()
        os.fsync(stream.fileno())
    if fits < len(content):
        raise _no_space(path)


def replace(path: Path, content: bytes | str) -> None:
    """Write a file as a whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    if _room(path, len(data)) < len(data):
        raise _no_space(path)
    atomic_write(path, data)


def append(path: Path, text: str) -> None:
    """Append to a file in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    if _room(path, len(data)) < len(data):
        raise _no_space(path)
    with path.open("ab") as stream:
        stream.write(data)


def _room(path: Path, size: int) -> int:
    """How many of ``size`` bytes the disk takes, after the time a slow one needs."""
    slow, full = _limits()
    if slow:
        time.sleep(random.uniform(0, slow / 1000))  # noqa: S311  not for secrets
    return size if full is None else _taken(path, size, full)


@functools.cache
def _limits() -> tuple[int, int | None]:
    """Milliseconds a write may take, and bytes the whole run may write (None: all)."""
    faults = active_faults()
    slow = max((int(fault.values["ms"]) for fault in faults if fault.what == "slow-disk"), default=0)
    full = min((int(fault.values["bytes"]) for fault in faults if fault.what == "full-disk"), default=None)
    return slow, full


def _taken(path: Path, size: int, most: int) -> int:
    """Take room for a write from what is left for all processes of the run."""
    directory = rehearsal_directory()
    descriptor = os.open(directory / _USED, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        used = int(os.read(descriptor, 32) or 0)
        fits = max(min(size, most - used), 0)
        os.pwrite(descriptor, str(used + fits).encode(), 0)
        if fits < size and not (directory / FULL).exists():
            (directory / FULL).write_text(str(path))
    finally:
        os.close(descriptor)
    return fits


def _no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
