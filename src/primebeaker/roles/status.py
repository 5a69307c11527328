"""What a rendezvous directory says about the current epoch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.roles.rendezvous import Paths

__all__ = ["print_status", "read_status"]


def print_status(rendezvous_dir: Path) -> int:
    """Print :func:`read_status` as JSON; returns the exit code."""
    sys.stdout.write(json.dumps(read_status(rendezvous_dir), indent=2) + "\n")
    return 0


def read_status(rendezvous_dir: Path) -> dict[str, Any]:
    """The current epoch: members, phases, statuses, age of each heartbeat in seconds.

    The age compares this machine's clock with the one that wrote the heartbeat; it is for people only.

    Raises:
        UserError: The directory is not there.
    """
    if not rendezvous_dir.is_dir():
        raise UserError(f"--rendezvous-dir = {str(rendezvous_dir)!r}: no such directory")
    paths = Paths(rendezvous_dir)
    epoch = _read(paths.epoch_file)
    name = epoch.get("epoch") if epoch else None
    members = {}
    for path in sorted(paths.members.glob("*.json"), key=lambda path: path.stem.zfill(8)):
        value = _read(path)
        if value is None:
            continue
        rank = str(value.get("rank"))
        current = epoch is not None and epoch.get("members", {}).get(rank) == value.get("instance")
        members[rank] = {
            "host": value.get("host"),
            "ip": value.get("ip"),
            "phase": value.get("phase"),
            "in_epoch": current,
            "engines_ready": value.get("engines_ready"),
            "heartbeat_age": _age(value.get("updated_at")),
            "status": _read(paths.status(str(name), int(rank))) if name else None,
        }
    directory = paths.epoch(str(name)) if name else None
    return {
        "epoch": name,
        "number": epoch.get("number") if epoch else None,
        "started": directory is not None and (directory / "start.json").exists(),
        "complete": directory is not None and (directory / "complete.json").exists(),
        "shutdown": _read(directory / "shutdown.json") if directory is not None else None,
        "members": members,
    }


def _age(text: object) -> float | None:
    try:
        written = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return round(time.time() - written.astimezone(UTC).timestamp(), 1)


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
