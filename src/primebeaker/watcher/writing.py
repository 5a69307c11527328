"""The one writer of a scan: short transactions, ids that survive a rebuild, issues that vanish with their cause."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from primebeaker.watcher.documents import StoredText
from primebeaker.watcher.issues import Issue
from primebeaker.watcher.reading import Stat
from primebeaker.watcher.schema import BULK_INDEXES, PARSER_VERSION, index_statements
from primebeaker.watcher.timing import from_ns, now

__all__ = ["ConfigContent", "KnownFile", "Writer"]

_BATCH_FILES = 500
_BATCH_SECONDS = 0.25
_ISSUES_PER_CODE = 1000
_TRUST_NS = 2_000_000_000


class KnownFile(NamedTuple):
    """What the index knows about one file."""

    kind: str
    stat: Stat
    sha256: str | None
    status: str
    parsed_at: str
    version: int

    def is_unchanged(self, stat: Stat) -> bool:
        """Whether the file need not be opened; one that changed within 2 s before it was read is never trusted."""
        return (
            self.stat[:3] == stat[:3]
            and self.version == PARSER_VERSION
            and (from_ns(stat.mtime_ns + _TRUST_NS) or "~") <= self.parsed_at
        )


class ConfigContent(NamedTuple):
    """The stored content of one configuration file."""

    sha256: str
    semantic_sha256: str
    text: StoredText
    values: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]


@dataclass
class Writer:
    """Writes in transactions of at most 500 files or a quarter of a second.

    Attributes:
        connection: Opened for writing, in autocommit mode.
        scan_id: The row of this scan.
        carried: ``(table, key) -> id`` of an index this one replaces.
        changed: Whether anything but the scan row was written.
    """

    connection: sqlite3.Connection
    scan_id: int = 0
    carried: Mapping[tuple[str, str], int] = field(default_factory=dict)
    changed: bool = False
    _files: int = 0
    _began: float = 0.0
    _dirty: bool = False
    _next_ids: dict[str, int] = field(default_factory=dict)
    _issue_counts: dict[str, int] = field(default_factory=dict)
    _owners: set[str] = field(default_factory=set)
    _told: float = field(default_factory=time.monotonic)
    _moment: tuple[int, str | None] = (0, None)
    dropped_issues: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def batch(self, files: int = 1) -> Iterator[None]:
        """Work that must not be torn apart; commits when the transaction has grown enough."""
        if not self.connection.in_transaction:
            self.connection.execute("BEGIN IMMEDIATE")
            self._began = time.monotonic()
            self._files = 0
        yield
        self._files += files
        if self._files >= _BATCH_FILES or time.monotonic() - self._began > _BATCH_SECONDS:
            self.commit()

    @contextmanager
    def first_fill(self) -> Iterator[None]:
        """Fill an index that holds no evaluation yet: its secondary indexes are made afterwards.

        A scan that ends before that leaves them to the next one, which makes what is missing before it starts.
        """
        if self.connection.execute("SELECT 1 FROM evaluations LIMIT 1").fetchone() is None:
            with self.batch():
                for name in BULK_INDEXES:
                    self.connection.execute(f"DROP INDEX IF EXISTS {name}")
        else:
            self._make_indexes()
        yield
        self._make_indexes()

    def _make_indexes(self) -> None:
        for statement in index_statements():
            with self.batch(_BATCH_FILES):
                self.connection.execute(statement)

    def wrote(self) -> None:
        """Remember that the open transaction changes what readers see."""
        self._dirty = self.changed = True

    def commit(self) -> None:
        """End the open transaction; a change raises the generation."""
        if self.connection.in_transaction:
            if self._dirty:
                self.connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")
            self.connection.execute("COMMIT")
        self._dirty = False

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self.connection.execute(sql, parameters)

    def insert(self, table: str, key: str | None = None, **values: Any) -> int:
        """Insert a row; a ``key`` known to the index that is being replaced keeps its id."""
        self.wrote()
        if key is not None:
            values["key"] = key
            if self.carried:
                values["id"] = self._carried_id(table, key)
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        cursor = self.connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 (names are ours)
            tuple(values.values()),
        )
        return int(cursor.lastrowid or 0)

    def update(self, table: str, row_id: int, **values: Any) -> None:
        """Change columns of one row."""
        self.wrote()
        names = ", ".join(f"{name} = ?" for name in values)
        self.connection.execute(
            f"UPDATE {table} SET {names} WHERE id = ?",  # noqa: S608 (names are ours)
            (*values.values(), row_id),
        )

    def _carried_id(self, table: str, key: str) -> int:
        known = self.carried.get((table, key))
        if known is not None:
            return known
        if table not in self._next_ids:
            self._next_ids[table] = max((row for (name, _), row in self.carried.items() if name == table), default=0)
        self._next_ids[table] += 1
        return self._next_ids[table]

    # Files.

    def known_files(self, kinds: Sequence[str], *, digests: bool = True) -> dict[str, KnownFile]:
        """All files of some kinds that are not gone, by path.

        Args:
            kinds: Kinds of files.
            digests: Load the digests of their content too; a hundred thousand of them take memory.
        """
        marks = ", ".join("?" * len(kinds))
        digest = "sha256" if digests else "NULL"
        rows = self.connection.execute(
            f"SELECT path, kind, size, mtime_ns, inode, device, {digest}, status, parsed_at, parser_version FROM files"  # noqa: S608
            f" WHERE kind IN ({marks}) AND status != 'gone'",
            kinds,
        )
        # The same few words stand in every row: one copy of each is enough.
        return {
            row[0]: KnownFile(
                sys.intern(row[1]), Stat(*row[2:6]), row[6], sys.intern(row[7]), sys.intern(row[8] or ""), row[9]
            )
            for row in rows
        }

    def put_file(
        self,
        path: str,
        kind: str,
        stat: Stat | None,
        *,
        now_ns: int,
        sha256: str | None = None,
        error: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Insert or refresh one file; a file with an error keeps the facts of its last good content."""
        self.wrote()
        size, mtime, inode, device = stat or (None, None, None, None)
        self.connection.execute(
            "INSERT INTO files (path, kind, size, mtime_ns, inode, device, sha256, parser_version, status, error,"
            " first_scan_id, last_scan_id, parsed_at, facts) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (path) DO UPDATE SET kind = excluded.kind, size = excluded.size,"
            " mtime_ns = excluded.mtime_ns, inode = excluded.inode, device = excluded.device,"
            " sha256 = excluded.sha256, parser_version = excluded.parser_version, status = excluded.status,"
            " error = excluded.error, last_scan_id = excluded.last_scan_id, parsed_at = excluded.parsed_at,"
            " facts = CASE WHEN excluded.status = 'error' AND excluded.facts IS NULL THEN files.facts"
            " ELSE excluded.facts END",
            (
                path,
                kind,
                size,
                mtime,
                inode,
                device,
                sha256,
                PARSER_VERSION,
                "error" if error else "ok",
                error,
                self.scan_id,
                self.scan_id,
                self._time_of(now_ns),
                None if facts is None else json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
            ),
        )

    def _time_of(self, now_ns: int) -> str | None:
        """The scan's time as stored; the same for every file of it."""
        if self._moment[0] != now_ns:
            self._moment = (now_ns, from_ns(now_ns))
        return self._moment[1]

    def mark_gone(self, paths: Iterable[str]) -> None:
        """Files that are no longer there."""
        for path in paths:
            self.wrote()
            self.connection.execute("UPDATE files SET status = 'gone' WHERE path = ?", (path,))
            self.connection.execute("DELETE FROM configs WHERE path = ? AND run_id IS NULL", (path,))
            self.connection.execute("DELETE FROM issues WHERE owner = ?", (path,))

    def put_config(self, path: str, content: ConfigContent) -> None:
        """Store a configuration's content; the run it belongs to is linked later."""
        self.wrote()
        values = (
            content.sha256,
            content.semantic_sha256,
            content.text.text,
            int(content.text.truncated),
            json.dumps(content.values, ensure_ascii=False, separators=(",", ":")),
            json.dumps(content.hyperparameters, ensure_ascii=False, separators=(",", ":")),
            path,
        )
        changed = self.connection.execute(
            "UPDATE configs SET sha256 = ?, semantic_sha256 = ?, text = ?, text_truncated = ?, values_json = ?,"
            " hyperparameters_json = ? WHERE path = ?",
            values,
        )
        if changed.rowcount == 0:
            self.connection.execute(
                "INSERT INTO configs (sha256, semantic_sha256, text, text_truncated, values_json,"
                " hyperparameters_json, path, role) VALUES (?,?,?,?,?,?,?,'source')",
                values,
            )

    # Issues.

    def load_issue_counts(self) -> None:
        """Count what is stored, so that a code never grows beyond 1,000 rows."""
        rows = self.connection.execute("SELECT code, count(*) FROM issues GROUP BY code")
        self._issue_counts = {row[0]: row[1] for row in rows}
        self._owners = {row[0] for row in self.connection.execute("SELECT DISTINCT owner FROM issues")}

    def set_issues(self, owner: str, issues: Iterable[Issue]) -> None:
        """Make these the issues of one file or step; what it no longer has vanishes."""
        wanted = {(item.code, item.path, item.message): item for item in issues}
        if not wanted and owner not in self._owners:
            return
        self._owners.add(owner)
        stored = {
            (row[1], row[2], row[3]): row[0]
            for row in self.connection.execute("SELECT id, code, path, message FROM issues WHERE owner = ?", (owner,))
        }
        for identity, row_id in stored.items():
            if identity not in wanted:
                self.wrote()
                self.connection.execute("DELETE FROM issues WHERE id = ?", (row_id,))
                self._issue_counts[identity[0]] = self._issue_counts.get(identity[0], 1) - 1
        for identity, item in wanted.items():
            if identity in stored:
                continue
            if self._issue_counts.get(item.code, 0) >= _ISSUES_PER_CODE:
                self.dropped_issues[item.code] = self.dropped_issues.get(item.code, 0) + 1
                continue
            self.wrote()
            added = self.connection.execute(
                "INSERT OR IGNORE INTO issues (scan_id, severity, code, path, message, hint, owner)"
                " VALUES (?,?,?,?,?,?,?)",
                (self.scan_id, item.severity, item.code, item.path, item.message, item.hint, owner),
            )
            self._issue_counts[item.code] = self._issue_counts.get(item.code, 0) + added.rowcount

    # The scan row.

    def tell_progress(self, seen: int, parsed: int) -> None:
        """Let readers see how far the scan is, at most once a second."""
        now_seconds = time.monotonic()
        if now_seconds - self._told < 1:
            return
        self._told = now_seconds
        self.connection.execute(
            "UPDATE scans SET files_seen = ?, files_parsed = ? WHERE id = ?", (seen, parsed, self.scan_id)
        )

    def begin_scan(self, kind: str, host: str, pid: int, roots: Mapping[str, Any]) -> None:
        """Insert the scan's row; scans that died without a word are closed."""
        self.connection.execute(
            "UPDATE scans SET status = 'interrupted', finished_at = ? WHERE status = 'running'", (now(),)
        )
        cursor = self.connection.execute(
            "INSERT INTO scans (kind, host, pid, started_at, status, roots_json) VALUES (?,?,?,?,'running',?)",
            (kind, host, pid, now(), json.dumps(roots, ensure_ascii=False)),
        )
        self.scan_id = int(cursor.lastrowid or 0)

    def end_scan(self, status: str, *, seen: int, parsed: int, issues: int, error: str | None = None) -> None:
        """Close the scan's row."""
        self.connection.execute(
            "UPDATE scans SET finished_at = ?, status = ?, files_seen = ?, files_parsed = ?, issues = ?, error = ?"
            " WHERE id = ?",
            (now(), status, seen, parsed, issues, error, self.scan_id),
        )

    def set_meta(self, name: str, value: str) -> None:
        """Remember a small fact, when it is new."""
        row = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        if row is None or row[0] != value:
            self.connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
            )
