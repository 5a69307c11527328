"""The engine's SQLite database: schema, connections, transactions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from primebeaker.errors import UserError

__all__ = ["SCHEMA_VERSION", "connect", "writing"]

SCHEMA_VERSION = 1

_BUSY_SECONDS = 10.0

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE experiments (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    workspace TEXT NOT NULL,
    account TEXT NOT NULL,
    description TEXT NOT NULL,
    budget TEXT,
    spec_json TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at TEXT NOT NULL,
    started_at TEXT,
    ended_at TEXT,
    supervisor_pid INTEGER,
    supervisor_start TEXT,
    supervisor_beat TEXT,
    cancel_requested_at TEXT,
    cancel_reason TEXT,
    rehearsal_json TEXT,
    UNIQUE (account, name)
);
CREATE INDEX experiments_state ON experiments (state);
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    position INTEGER NOT NULL,
    replicas INTEGER NOT NULL,
    leader_selection INTEGER NOT NULL,
    propagate_failure INTEGER NOT NULL,
    propagate_preemption INTEGER NOT NULL,
    sync_timeout_s REAL,
    timeout_s REAL,
    auto_resume INTEGER NOT NULL
);
CREATE INDEX tasks_experiment ON tasks (experiment_id);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    replica_rank INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    pid INTEGER,
    pgid INTEGER,
    proc_start TEXT,
    exit_code INTEGER,
    canceled_code INTEGER,
    message TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL,
    scheduled_at TEXT,
    started_at TEXT,
    exited_at TEXT,
    finalized_at TEXT,
    log_path TEXT NOT NULL
);
CREATE INDEX jobs_task ON jobs (task_id);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    job_id TEXT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX events_experiment ON events (experiment_id, id);
"""

#: Version -> the statements that lead to the next one.
_MIGRATIONS: dict[int, str] = {}


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, made or migrated when needed. Statements outside of :func:`writing` commit by themselves.

    Raises:
        UserError: A newer program wrote it, or it is no such database.
    """
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last commits, never the file; a lost supervisor is noticed either way.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        version = _version(connection)
        if version != SCHEMA_VERSION:
            _bring_up(connection, path, version)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise UserError(
            f"{path}: cannot be read as the local engine's database: {error}", hint="move it away, or set another home"
        ) from error
    except UserError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One transaction that takes the write lock at its start; undone when the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    """The schema's version; 0 for an empty file."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return 0
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return int(row["value"]) if row else 0


def _bring_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: was written by a newer primebeaker (schema {version}, this one knows {SCHEMA_VERSION})",
            hint="update primebeaker, or set another home",
        )
    if version:
        with contextlib.closing(sqlite3.connect(path.with_name(f"{path.name}.schema{version}.bak"))) as backup:
            connection.backup(backup)
    with writing(connection):
        # Another process may have done it while this one waited for the lock.
        version = _version(connection)
        if version == SCHEMA_VERSION:
            return
        if version == 0:
            _run(connection, _SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
            return
        for step in range(version, SCHEMA_VERSION):
            _run(connection, _MIGRATIONS[step])
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))


def _run(connection: sqlite3.Connection, statements: str) -> None:
    # executescript would commit the transaction first.
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement)
