"""``<database>.metrics``: curves that were read or fetched once, beside the index and safe to delete.

One SQLite file, mode 0600, at most 256 MiB: what has not been asked for longest goes first.  A file that cannot be
written or read is as good as none: curves are then read anew each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["MetricStore", "OnlineRun", "OnlineSeries"]

_LIMIT = 256 * 2**20
_RETRY_SECONDS = 60.0
#: States of W&B in which a run may still log.
_LIVE = frozenset({"running", "pending", "preempting", "preempted"})
_TOUCH_SECONDS = 3600.0
_TABLES = """
CREATE TABLE IF NOT EXISTS online_runs (
    path TEXT PRIMARY KEY, state TEXT, error TEXT, available TEXT NOT NULL, fetched_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS series (
    path TEXT NOT NULL, metric TEXT NOT NULL, points BLOB NOT NULL, non_finite INTEGER NOT NULL,
    fetched_at REAL NOT NULL, used_at REAL NOT NULL, PRIMARY KEY (path, metric)
);
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, stamp TEXT NOT NULL, content BLOB NOT NULL, used_at REAL NOT NULL
);
"""


class OnlineSeries(NamedTuple):
    """One metric of one W&B run: ``(x, value)`` pairs, how many values were not finite, and when it was asked."""

    points: list[tuple[float, float]]
    non_finite: int
    fetched_at: float


@dataclass(frozen=True)
class OnlineRun:
    """What is known of one W&B run.

    Attributes:
        state: W&B's word (``running``, ``finished``, …), None when it never answered.
        error: Why the last fetch failed.
        available: The names of its metrics.
        fetched_at: Seconds since 1970.
        series: The metrics that were fetched.
    """

    state: str | None
    error: str | None
    available: list[str]
    fetched_at: float
    series: Mapping[str, OnlineSeries]

    def is_due(self, name: str | None, now: float) -> bool:
        """Whether asking again may bring something new; ``name`` None asks for the run alone."""
        if self.error is not None or self.state is None:
            return now - self.fetched_at >= _RETRY_SECONDS
        known = self.series.get(name) if name is not None else None
        if self.state not in _LIVE:
            return name in self.available and known is None
        if name is not None and known is None:
            return name in self.available or now - self.fetched_at >= _RETRY_SECONDS
        return now - (known.fetched_at if known else self.fetched_at) >= _RETRY_SECONDS


class MetricStore:
    """The cache file of one index.

    Args:
        database: The index.
        limit: Most bytes of curves.
    """

    def __init__(self, database: Path, *, limit: int = _LIMIT) -> None:
        self.path = database.with_name(database.name + ".metrics")
        self._limit = limit
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _open(self, *, writing: bool) -> Iterator[sqlite3.Connection | None]:
        """A connection in one transaction; None when there is no usable file."""
        if not writing and not self.path.exists():
            yield None
            return
        connection: sqlite3.Connection | None = None
        try:
            connection = self._connect()
        except (sqlite3.Error, OSError):
            connection = None
        try:
            yield connection
            if connection is not None:
                connection.commit()
        finally:
            if connection is not None:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        for last in (False, True):
            if not self.path.exists():
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
            connection = sqlite3.connect(self.path, timeout=10)
            try:
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.executescript(_TABLES)
            except sqlite3.OperationalError:
                # Read-only or locked, not damaged.
                connection.close()
                raise
            except sqlite3.DatabaseError:
                connection.close()
                if last:
                    raise
                self.path.unlink()
            else:
                return connection
        raise AssertionError("unreachable")

    def online(self, path: str) -> OnlineRun | None:
        """What is known of the W&B run ``entity/project/id``."""
        with self._lock, self._open(writing=False) as connection:
            if connection is None:
                return None
            try:
                row = connection.execute(
                    "SELECT state, error, available, fetched_at FROM online_runs WHERE path = ?", (path,)
                ).fetchone()
                if row is None:
                    return None
                found = connection.execute(
                    "SELECT metric, points, non_finite, fetched_at, used_at FROM series WHERE path = ?", (path,)
                ).fetchall()
                self._touch(connection, "series", path, min((item[4] for item in found), default=time.time()))
                series = {item[0]: OnlineSeries(_unpack(item[1]), item[2], item[3]) for item in found}
                return OnlineRun(row[0], row[1], json.loads(row[2]), row[3], series)
            except (sqlite3.Error, zlib.error, ValueError):
                return None

    def put_online(self, path: str, answer: Mapping[str, Any]) -> None:
        """Keep one answer of :mod:`primebeaker.watcher.wandb_child`; what it does not speak of stays as it was."""
        now = time.time()
        with self._lock, self._open(writing=True) as connection:
            if connection is None:
                return
            with contextlib.suppress(sqlite3.Error):
                connection.execute(
                    "INSERT INTO online_runs VALUES (?,?,?,?,?) ON CONFLICT (path) DO UPDATE SET"
                    " error = excluded.error, state = coalesce(excluded.state, state),"
                    " fetched_at = excluded.fetched_at,"
                    " available = CASE excluded.available WHEN '[]' THEN available ELSE excluded.available END",
                    (path, answer.get("state"), answer.get("error"), json.dumps(answer.get("available", [])), now),
                )
                connection.executemany(
                    "INSERT OR REPLACE INTO series VALUES (?,?,?,?,?,?)",
                    [
                        (path, name, _pack(item["points"]), item["non_finite"], now, now)
                        for name, item in answer.get("series", {}).items()
                    ],
                )
                self._shrink(connection)

    def file(self, path: str, stamp: str) -> Any:
        """What a metric file held when its stat was ``stamp``, else None."""
        with self._lock, self._open(writing=False) as connection:
            if connection is None:
                return None
            try:
                row = connection.execute(
                    "SELECT content, used_at FROM files WHERE path = ? AND stamp = ?", (path, stamp)
                ).fetchone()
                if row is None:
                    return None
                self._touch(connection, "files", path, row[1])
                return _unpack(row[0])
            except (sqlite3.Error, zlib.error, ValueError):
                return None

    def put_file(self, path: str, stamp: str, content: Any) -> None:
        """Keep what a metric file holds."""
        with self._lock, self._open(writing=True) as connection:
            if connection is None:
                return
            with contextlib.suppress(sqlite3.Error):
                connection.execute(
                    "INSERT OR REPLACE INTO files VALUES (?,?,?,?)", (path, stamp, _pack(content), time.time())
                )
                self._shrink(connection)

    def _touch(self, connection: sqlite3.Connection, table: str, path: str, used_at: float) -> None:
        now = time.time()
        if now - used_at > _TOUCH_SECONDS:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"UPDATE {table} SET used_at = ? WHERE path = ?", (now, path))  # noqa: S608

    def _shrink(self, connection: sqlite3.Connection) -> None:
        size = "SELECT coalesce(sum(length(points)), 0) FROM series"
        files = "SELECT coalesce(sum(length(content)), 0) FROM files"
        total = connection.execute(f"SELECT ({size}) + ({files})").fetchone()[0]
        if total <= self._limit:
            return
        rows = connection.execute(
            "SELECT used_at, 'series', rowid, length(points) FROM series UNION ALL"
            " SELECT used_at, 'files', rowid, length(content) FROM files ORDER BY 1"
        ).fetchall()
        for _, table, row_id, size_of in rows:
            if total <= self._limit:
                break
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row_id,))  # noqa: S608
            total -= size_of
        connection.commit()
        connection.execute("PRAGMA incremental_vacuum")


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 3)


def _unpack(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))
