"""Opening the index: journal by file system, private file modes, readers that never write, one line when damaged."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from primebeaker.errors import UserError
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.schema import SCHEMA_VERSION, create_statements
from primebeaker.watcher.timing import now

__all__ = [
    "create_database",
    "file_system_of",
    "is_network_file_system",
    "open_reader",
    "open_writer",
    "problem_of",
    "read_version",
    "reading",
]

_NETWORK = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "lustre", "wekafs", "9p", "ceph", "beegfs", "gpfs")
_BUSY_MILLISECONDS = 10_000
_HEADER = b"SQLite format 3\0"


def file_system_of(path: Path, *, mounts: str | None = None) -> str:
    """The type of the file system that holds ``path`` (``ext4``, ``nfs4``), empty when it cannot be told.

    Args:
        path: A file or directory; it need not exist.
        mounts: The mount table, by default this process's ``/proc/self/mounts``.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        # Of two mounts on one point the later one covers the earlier.
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def is_network_file_system(kind: str) -> bool:
    """Whether hosts that share such a file system do not share memory, which SQLite's WAL needs."""
    return kind in _NETWORK or kind.startswith("fuse.")


def problem_of(database: Path) -> str | None:
    """What makes a file no index at first sight, else None; nothing is opened for writing."""
    try:
        size = database.stat().st_size
        with database.open("rb") as stream:
            head = stream.read(len(_HEADER))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size == 0:
        return "the file is empty"
    return None if head == _HEADER else "not an SQLite database"


def read_version(connection: sqlite3.Connection) -> int | None:
    """The schema version, None when it is some other program's database."""
    try:
        row = connection.execute("SELECT max(version) FROM schema_metadata").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "no such column" in str(error):
            return None
        raise
    return row[0] if row and isinstance(row[0], int) else None


def unusable(database: Path, text: str) -> DatabaseUnusableError:
    """The one line about a damaged file."""
    return DatabaseUnusableError(
        f"{database} is not a usable index: {text}",
        hint=f"run primebeaker watcher rebuild --database={database}",
    )


def check_version(database: Path, version: int | None, *, writing: bool) -> None:
    """Refuse what this release cannot read.

    Raises:
        DatabaseUnusableError: Another program's database, a newer schema, or (reading) an older one.
    """
    if version is None:
        raise unusable(database, "it has no schema version")
    if version > SCHEMA_VERSION:
        raise DatabaseUnusableError(
            f"{database} was written by a newer PrimeBeaker (schema {version}, this one reads {SCHEMA_VERSION})",
            hint="upgrade PrimeBeaker",
        )
    if version < SCHEMA_VERSION and not writing:
        raise DatabaseUnusableError(
            f"{database} has the older schema {version} (this one reads {SCHEMA_VERSION})",
            hint=f"run primebeaker watcher update --database={database}",
        )


def create_database(database: Path, *, warn: Callable[[str], None]) -> sqlite3.Connection:
    """Make an empty index (mode 0600) and open it for writing."""
    descriptor = os.open(database, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    connection = _connect(database, warn=warn)
    connection.executescript("BEGIN IMMEDIATE;" + create_statements())
    connection.execute("INSERT INTO schema_metadata VALUES (?, ?)", (SCHEMA_VERSION, now()))
    connection.execute("INSERT INTO meta VALUES ('generation', 0)")
    connection.execute("COMMIT")
    return connection


def open_writer(database: Path, *, warn: Callable[[str], None]) -> sqlite3.Connection:
    """Open an existing index for writing, or make it; an older schema is for the caller to migrate.

    Raises:
        DatabaseUnusableError: The file is damaged or newer; it is left as it is.
        UserError: Its directory does not exist or may not be written.
    """
    if not database.parent.is_dir():
        raise UserError(f"{database.parent} is not a directory", file="--database", hint="make it first")
    if not database.exists():
        try:
            return create_database(database, warn=warn)
        except OSError as error:
            raise UserError(f"cannot create {database}: {error.strerror}") from error
    if problem := problem_of(database):
        raise unusable(database, problem)
    try:
        connection = _connect(database, warn=warn)
        check_version(database, read_version(connection), writing=True)
    except sqlite3.DatabaseError as error:
        raise _as_ours(database, error) from error
    return connection


def _connect(database: Path, *, warn: Callable[[str], None]) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
    kind = file_system_of(database)
    if is_network_file_system(kind):
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=FULL")
        warn(f"{database} is on a network file system ({kind}): rollback journal instead of WAL, readers may wait")
    else:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-32000")
    # A first scan would copy the same pages from the WAL a hundred times with SQLite's own limit of 1,000.
    connection.execute("PRAGMA wal_autocheckpoint=8000")
    return connection


def open_reader(database: Path, *, warn: Callable[[str], None] | None = None) -> sqlite3.Connection:
    """Open the index for reading only.

    In a directory that may not be written SQLite cannot open a WAL database; without pending WAL content the file is
    then read as it stands, else from a private copy.

    Raises:
        UserError: There is no such file; it is not created.
        DatabaseUnusableError: It is damaged or has another schema.
    """
    if not database.exists():
        raise UserError(f"{database} does not exist", hint=f"run primebeaker watcher update --database={database}")
    if problem := problem_of(database):
        raise unusable(database, problem)
    connection: sqlite3.Connection | None = None
    try:
        try:
            connection = _open_uri(database, "mode=ro")
            version = read_version(connection)
        except sqlite3.OperationalError as error:
            if os.access(database.parent, os.W_OK) and "readonly" not in str(error):
                raise
            if connection is not None:
                connection.close()
            connection = _open_unwritable(database, warn)
            version = read_version(connection)
    except sqlite3.DatabaseError as error:
        if connection is not None:
            connection.close()
        raise _as_ours(database, error) from error
    try:
        check_version(database, version, writing=False)
    except DatabaseUnusableError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def reading(database: Path, *, warn: Callable[[str], None] | None = None) -> Iterator[sqlite3.Connection]:
    """One connection in one read transaction, damage turned into our one line."""
    connection = open_reader(database, warn=warn)
    try:
        connection.execute("BEGIN")
        yield connection
    except sqlite3.DatabaseError as error:
        raise _as_ours(database, error) from error
    finally:
        connection.close()


def _open_uri(path: Path, query: str) -> sqlite3.Connection:
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(f"file:{quoted}?{query}", uri=True, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
    connection.execute("PRAGMA query_only=ON")
    return connection


def _open_unwritable(database: Path, warn: Callable[[str], None] | None) -> sqlite3.Connection:
    pending = database.with_name(database.name + "-wal")
    if not (pending.exists() and pending.stat().st_size):
        if warn:
            warn(f"{database.parent} cannot be written: reading {database.name} as it stands")
        return _open_uri(database, "mode=ro&immutable=1")
    if warn:
        warn(f"{database.parent} cannot be written: reading a private copy of {database.name}")
    with tempfile.TemporaryDirectory(prefix="primebeaker-watcher-") as folder:
        copy = Path(folder) / "copy.sqlite3"
        shutil.copyfile(database, copy)
        shutil.copyfile(pending, copy.with_name(copy.name + "-wal"))
        # The open descriptors keep the copy alive when its folder is removed.
        connection = sqlite3.connect(copy, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.execute("PRAGMA query_only=ON")
    return connection


def _as_ours(database: Path, error: sqlite3.DatabaseError) -> DatabaseUnusableError:
    text = str(error)
    if "locked" in text or "busy" in text:
        return DatabaseUnusableError(f"{database} stayed locked for 10 seconds", hint="try again")
    return unusable(database, text)
