"""Files that are never seen half-written.

One way to write a file atomically, used by everything that leaves something on disk: a temporary file in the same
directory, flush, fsync, rename, fsync of the directory.  A crash at any point leaves either the old file or the new.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "atomic_write_json", "create_exclusively", "fsync_directory"]


def atomic_write(path: Path, data: bytes | str, *, mode: int | None = None) -> Path:
    """Write ``data`` to ``path`` so that readers see the old content or the new one, never a part.

    Args:
        path: The file. When it is a symbolic link, the link's target is replaced and the link stays.
        data: Text is encoded as UTF-8.
        mode: Permission bits of the file; by default those of the file it replaces, else 0666 less the umask.

    Returns:
        The path that was written.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full; nothing is left behind.
    """
    target = path.resolve() if path.is_symlink() else path
    payload = data.encode("utf-8") if isinstance(data, str) else data
    if mode is None:
        with contextlib.suppress(OSError):
            mode = target.stat().st_mode & 0o7777
    temporary = _temporary_beside(target)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(target.parent)
    return path


def atomic_write_json(path: Path, value: Any, *, mode: int | None = None) -> Path:
    """Write ``value`` as JSON (indent 2, UTF-8 unescaped, final newline), atomically."""
    return atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", mode=mode)


def create_exclusively(path: Path, data: bytes | str, *, mode: int = 0o666) -> bool:
    """Create ``path`` with its whole content, only when no file of that name exists.

    Returns:
        True when this call created it, False when another one had.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    temporary = _temporary_beside(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            # link() fails when the name is taken, and never shows an unfinished file.
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    fsync_directory(path.parent)
    return True


def _temporary_beside(target: Path) -> Path:
    # Cut, so that a name of the greatest legal length still has room for the rest.
    return target.with_name(f".{target.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def fsync_directory(directory: Path) -> None:
    """Make renames in a directory durable, where its file system can."""
    # Some network file systems refuse to fsync a directory; the rename itself has happened.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
