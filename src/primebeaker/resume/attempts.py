"""The record of every resume attempt, and the lock that lets one attempt work on an output directory at a time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json, create_exclusively
from primebeaker.resume.moves import RESUME_DIR

__all__ = ["held_lock", "manifest_path", "now", "read_attempts", "read_manifest", "write_manifest"]

_STALE = timedelta(hours=1)
_MODE = 0o644


def now() -> str:
    """The time as manifests carry it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def manifest_path(output_dir: Path, attempt_id: str) -> Path:
    """Where the manifest of an attempt is."""
    return output_dir / RESUME_DIR / "attempts" / f"{attempt_id}.json"


def read_manifest(path: Path) -> dict[str, Any] | None:
    """A manifest, or None when there is none.

    Raises:
        UserError: The file is there and is no manifest.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"not a resume manifest: {error}", file=path) from error
    if not isinstance(found, dict):
        raise UserError("not a resume manifest", file=path)
    return found


def read_attempts(output_dir: Path) -> list[dict[str, Any]]:
    """Every manifest of an output directory, by name."""
    folder = output_dir / RESUME_DIR / "attempts"
    found = (read_manifest(path) for path in sorted(folder.glob("*.json")))
    return [manifest for manifest in found if manifest is not None]


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest, atomically.

    Raises:
        UserError: The directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path, {**manifest, "updated_at": now()}, mode=_MODE)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=path) from error


@contextlib.contextmanager
def held_lock(output_dir: Path, attempt_id: str, notices: list[str]) -> Iterator[None]:
    """Hold the directory's lock; a lock of a dead process here, or one older than an hour, is taken over.

    Raises:
        UserError: Another attempt holds it.
    """
    path = output_dir / RESUME_DIR / "lock"
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "attempt_id": attempt_id, "created_at": now()}
    text = json.dumps(holder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not create_exclusively(path, text):
            _take_over(path, notices)
            if not create_exclusively(path, text):
                raise _is_held(path, _read(path))
    except OSError as error:
        raise UserError(f"the lock cannot be taken: {error.strerror}", file=path) from error
    try:
        yield
    finally:
        # Only our own: somebody may have taken it over after an hour.
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == text:
                path.unlink()


def _take_over(path: Path, notices: list[str]) -> None:
    holder = _read(path)
    if holder is not None and not _is_stale(path, holder):
        raise _is_held(path, holder)
    notices.append(f"{path}: took over the lock of an attempt that is gone")
    # Renamed first, so that of two that find it stale only one removes it.
    aside = path.with_name(f"lock-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        aside.unlink()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _is_stale(path: Path, holder: Mapping[str, Any]) -> bool:
    try:
        created = datetime.fromisoformat(str(holder.get("created_at")))
        if datetime.now(UTC) - created > _STALE:
            return True
    except (ValueError, TypeError):
        return True
    return holder.get("host") == socket.gethostname() and not _is_alive(holder.get("pid"))


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_held(path: Path, holder: Mapping[str, Any] | None) -> UserError:
    who = holder or {}
    return UserError(
        f"{path}: attempt {who.get('attempt_id')} of process {who.get('pid')} on {who.get('host')} is resuming this "
        f"directory since {who.get('created_at')}",
        hint="wait for it to end",
    )
