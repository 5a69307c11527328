"""Where the embedded engine keeps everything: one private folder of the user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write

__all__ = ["HOME_VARIABLE", "Home", "home_path", "open_home"]

HOME_VARIABLE = "PRIMEBEAKER_LOCAL_HOME"
ALLOW_NETWORK_VARIABLE = "PRIMEBEAKER_LOCAL_ALLOW_NETWORK_HOME"

# File systems on which SQLite's locks are not reliable.
_NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "wekafs", "9p",
     "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.weka"}
)  # fmt: skip


class Home(NamedTuple):
    """The folders of one engine."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "engine.sqlite3"

    @property
    def secrets(self) -> Path:
        """Values of secrets, and what experiments were started with; nothing outside of it holds such a value."""
        return self.root / "secrets"

    @property
    def bin(self) -> Path:
        """Holds the ``beaker`` program that talks to this engine."""
        return self.root / "bin"

    def experiment(self, experiment_id: str) -> Path:
        """The folder of one experiment."""
        return self.root / "experiments" / experiment_id

    def job(self, experiment_id: str, job_id: str) -> Path:
        """The folder of one job."""
        return self.experiment(experiment_id) / "jobs" / job_id


def home_path() -> Path:
    """``PRIMEBEAKER_LOCAL_HOME``, else ``$XDG_STATE_HOME/primebeaker/local``, else under ``~/.local/state``."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "primebeaker" / "local"


def open_home(path: Path | None = None, *, allow_network: bool = False) -> Home:
    """The engine's home, made when it is not there.

    Args:
        path: Where; by default :func:`home_path`.
        allow_network: Accept a network file system.

    Raises:
        UserError: It cannot be made or written, or lies on a network file system.
    """
    root = (path or home_path()).absolute()
    home = Home(root)
    try:
        if not home.bin.is_dir():
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (home.root / "experiments", home.secrets, home.bin):
                folder.mkdir(exist_ok=True, mode=0o700)
            _check_file_system(root, allow_network=allow_network)
        _write_programs(home)
    except OSError as error:
        raise UserError(
            f"{root}: cannot be used as the local engine's home: {error.strerror}",
            hint=f"set {HOME_VARIABLE} to a folder you can write",
        ) from error
    _check_file_system(root, allow_network=allow_network)
    return home


def _check_file_system(root: Path, *, allow_network: bool) -> None:
    if allow_network or os.environ.get(ALLOW_NETWORK_VARIABLE) == "1":
        return
    kind = file_system_type(root)
    if kind in _NETWORK_TYPES:
        raise UserError(
            f"{root}: the local engine's home lies on a network file system ({kind}), where SQLite cannot lock",
            hint=f"set {HOME_VARIABLE} to a local folder, or pass --allow-network-home",
        )


def file_system_type(path: Path) -> str | None:
    """The type of the file system that holds ``path``, or None where the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    resolved = path.resolve()
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(point.encode().decode("unicode_escape"))
        # The last of several mounts on the same point is the one in use.
        if resolved.is_relative_to(mounted) and (best is None or len(mounted.parts) >= best[0]):
            best = (len(mounted.parts), kind)
    return best[1] if best else None


def program_folders(home: Home) -> list[Path]:
    """The folders that come first on a replica's ``PATH``: this Python's and the engine's own."""
    own = Path(sys.prefix) / "bin"
    folders = [own, home.bin]
    if not (own / "python3").exists():
        folders.insert(1, home.root / "venv-bin")
    return folders


def _write_programs(home: Home) -> None:
    beaker = f'#!/bin/sh\nexec "{sys.executable}" -P -m primebeaker.local.beaker_cli "{home.root}" "$@"\n'
    _write_program(home.bin / "beaker", beaker)
    if not (Path(sys.prefix) / "bin" / "python3").exists():
        (home.root / "venv-bin").mkdir(exist_ok=True, mode=0o700)
        for name in ("python", "python3"):
            _write_program(home.root / "venv-bin" / name, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')


def _write_program(path: Path, text: str) -> None:
    try:
        if path.read_text() == text:
            return
    except OSError:
        # Missing or unreadable: written anew.
        pass
    atomic_write(path, text, mode=0o755)
