"""What an installation has got so far, kept beside a lock: one installation a workspace at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json

__all__ = ["locked_state", "state_file", "write_state"]


def state_file(workspace: str) -> Path:
    """The file with the partial result of a workspace."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(home) / "primebeaker" / "service-images" / f"{workspace.replace('/', '-')}.json"


@contextlib.contextmanager
def locked_state(workspace: str, say: Callable[[str], None]) -> Iterator[Path]:
    """The state file, while no other installation of this workspace runs.

    Args:
        workspace: The Beaker workspace.
        say: Told once when another installation must be waited for.

    Raises:
        UserError: The folder cannot be made or written.
    """
    path = state_file(workspace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise UserError(
            f"{path.parent}: cannot be made or written: {error.strerror}", hint="set XDG_STATE_HOME to another folder"
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another installation into {workspace} is running, waiting for it (Ctrl-C leaves)")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def write_state(path: Path, result: dict[str, Any], say: Callable[[str], None]) -> None:
    """Write the partial result, atomically; a file that cannot be written costs no image, so it is only told."""
    try:
        atomic_write_json(path, result)
    except OSError as error:
        say(f"{path} cannot be written ({error.strerror}); the images imported so far are printed")
