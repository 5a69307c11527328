"""A fresh index beside the old one, checked, then swapped in whole; and the removal of what is long gone."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.watcher.database import create_database, open_reader, open_writer, problem_of, read_version
from primebeaker.watcher.errors import DatabaseUnusableError, RefusedError
from primebeaker.watcher.locking import scan_lock
from primebeaker.watcher.migrate import backup_path, copy_database, migrate
from primebeaker.watcher.roots import Given
from primebeaker.watcher.schema import ENTITY_TABLES, SCHEMA_VERSION
from primebeaker.watcher.update import ScanOptions, roots_for, scan_into

__all__ = ["RebuildOptions", "prune", "rebuild"]

#: How long a swap waits for another writer.
_SWAP_SECONDS = 60.0
_STALE_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """What a rebuild must fulfil.

    Attributes:
        backup: Keep a whole copy of the old index.
        keep_backups: How many backups remain.
        require_clean: Refuse when a training TOML is unreadable or a checkpoint could not be indexed.
        require_models: Refuse when no checkpoint was indexed.
    """

    backup: bool = True
    keep_backups: int = 5
    require_clean: bool = True
    require_models: bool = True


def rebuild(
    database: Path, given: Given, options: ScanOptions, rules: RebuildOptions, *, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Scan into a fresh file and swap it in; readers see the whole old index or the whole new one.

    Raises:
        RefusedError: A rule is not fulfilled; the old index is as it was.
    """
    if not database.parent.is_dir():
        raise UserError(f"--database: {database.parent} is not a directory", hint="make it first")
    with scan_lock(database, "watcher rebuild", wait=options.wait):
        _remove_stale(database)
        fresh = database.with_name(f".{database.name}.rebuild-{secrets.token_hex(6)}")
        try:
            return _rebuild(database, fresh, given, options, rules, warn=warn)
        finally:
            _unlink(fresh)


def _rebuild(
    database: Path,
    fresh: Path,
    given: Given,
    options: ScanOptions,
    rules: RebuildOptions,
    *,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    carried, stored, generation = _carry(database, fresh, warn)
    connection = create_database(fresh, warn=warn)
    try:
        if stored is not None:
            connection.execute("INSERT INTO meta VALUES ('roots', ?)", (stored,))
        roots_for(connection, given)
        connection.execute("UPDATE meta SET value = ? WHERE name = 'generation'", (generation + 1,))
        summary = scan_into(connection, database, given, options, kind="rebuild", carried=carried)
        _check(connection, summary, rules)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    backup: Path | None = None
    if rules.backup and database.exists():
        backup = backup_path(database)
        copy_database(database, backup)
        _keep_newest(database, rules.keep_backups)
    _swap(fresh, database)
    return {**summary, "backup": None if backup is None else str(backup), "integrity": "ok"}


def _carry(
    database: Path, fresh: Path, warn: Callable[[str], None]
) -> tuple[dict[tuple[str, str], int], str | None, int]:
    """Ids by key of the old index, its stored roots and generation; an unusable index carries nothing."""
    if not database.exists() or problem_of(database):
        return {}, None, 0
    copy = fresh.with_name(fresh.name + "-old")
    source = database
    try:
        connection = sqlite3.connect(database)
        version = read_version(connection)
        connection.close()
        if version is not None and version < SCHEMA_VERSION:
            copy_database(database, copy)
            _unlink(migrate(copy, warn=lambda _text: None))
            source = copy
        reader = open_reader(source)
        try:
            carried = {
                (table, row[0]): row[1]
                for table in ENTITY_TABLES
                for row in reader.execute(f"SELECT key, id FROM {table}")  # noqa: S608
            }
            meta = dict(reader.execute("SELECT name, value FROM meta").fetchall())
        finally:
            reader.close()
    except (DatabaseUnusableError, sqlite3.DatabaseError) as error:
        warn(f"nothing is carried over from the old index: {error}")
        return {}, None, 0
    finally:
        _unlink(copy)
    return carried, meta.get("roots"), int(meta.get("generation", 0))


def _check(connection: sqlite3.Connection, summary: dict[str, Any], rules: RebuildOptions) -> None:
    failures, invalid = summary["failures"], summary["invalid_configs"]
    if rules.require_clean and (failures or invalid):
        paths = [
            row["path"] for row in (*summary.get("invalid_config_details", ()), *summary.get("failure_details", ()))
        ]
        raise RefusedError(
            f"{invalid} unreadable training TOMLs, {failures} failures: {', '.join(paths[:5])}; the index is as it was",
            hint="mend them, or give --require_clean=false",
        )
    if rules.require_models and not summary["discovered_checkpoints"]:
        raise RefusedError(
            "no checkpoint was indexed; the index is as it was", hint="check the roots, or give --require_models=false"
        )
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if problem != "ok" or broken is not None:
        raise RefusedError(f"the new index is not whole: {problem if problem != 'ok' else tuple(broken)}")


def _swap(fresh: Path, database: Path) -> None:
    """Put the new content in place of the old, in one transaction of the old file.

    A rename would let a reader pair the new file with the old one's ``-wal``; SQLite's own page copy does not.
    """
    if database.exists() and not problem_of(database):
        try:
            source, target = sqlite3.connect(fresh), sqlite3.connect(database, timeout=_SWAP_SECONDS)
            try:
                source.backup(target, progress=_patience(time.monotonic() + _SWAP_SECONDS))
                with contextlib.suppress(sqlite3.OperationalError):
                    target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                target.close()
                source.close()
        except sqlite3.OperationalError as error:
            # Locked, or the disk is full: the old file is good, and others may have it open.
            raise DatabaseUnusableError(
                f"{database} could not be replaced: {error}; the index is as it was",
                hint="free space, let other writers end, and run it again",
            ) from error
        except sqlite3.DatabaseError:
            # The old file is damaged: nobody can be reading it.
            pass
        else:
            return
    for suffix in ("-wal", "-shm", "-journal"):
        _unlink(database.with_name(database.name + suffix))
    connection = sqlite3.connect(fresh)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    fresh.replace(database)


def _patience(deadline: float) -> Callable[[int, int, int], None]:
    """End a page copy that another writer keeps out; by itself it would wait for ever."""

    def progress(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise sqlite3.OperationalError("another program keeps it locked")

    return progress


def _unlink(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def _remove_stale(database: Path) -> None:
    for path in database.parent.glob(f".{database.name}.rebuild-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                path.unlink()


def _keep_newest(database: Path, keep: int) -> None:
    backups = sorted(database.parent.glob(f"{database.name}.backup-*"))
    for path in backups[: max(len(backups) - max(keep, 1), 0)]:
        with contextlib.suppress(OSError):
            path.unlink()


def prune(
    database: Path, *, missing_days: float, dry_run: bool, wait: float, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Delete what has been missing for at least so many days."""
    limit = (datetime.now(UTC) - timedelta(days=missing_days)).isoformat(timespec="microseconds")
    if not database.exists():
        raise UserError(f"{database} does not exist", hint=f"run primebeaker watcher update --database={database}")
    with scan_lock(database, "watcher prune", wait=wait):
        connection = open_writer(database, warn=warn)
        try:
            if (read_version(connection) or 0) < SCHEMA_VERSION:
                raise DatabaseUnusableError(
                    f"{database} has an older schema", hint=f"run primebeaker watcher update --database={database}"
                )
            connection.execute("BEGIN IMMEDIATE")
            answer: dict[str, Any] = {"operation": "prune", "database": str(database), "dry_run": dry_run}
            for table in reversed(ENTITY_TABLES):
                count = connection.execute(
                    f"SELECT count(*) FROM {table} WHERE missing_since <= ?",  # noqa: S608
                    (limit,),
                ).fetchone()
                answer[table] = count[0]
                if not dry_run:
                    connection.execute(f"DELETE FROM {table} WHERE missing_since <= ?", (limit,))  # noqa: S608
            if not dry_run and any(answer[table] for table in ENTITY_TABLES):
                connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")
            connection.execute("COMMIT")
        finally:
            connection.close()
    return answer
