"""One scan from lock to summary: ``update``, its dry run, and the scan that a rebuild or ``index`` is made of."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from primebeaker.errors import Interrupted, UserError
from primebeaker.watcher.database import open_reader, open_writer, read_version
from primebeaker.watcher.derive import refresh_ancestors, refresh_run_list
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.locking import scan_lock
from primebeaker.watcher.migrate import migrate
from primebeaker.watcher.resolve import Resolution
from primebeaker.watcher.roots import Given, Roots, choose_roots, stored_roots
from primebeaker.watcher.scan_evaluations import EvaluationScan
from primebeaker.watcher.scan_files import FileScan
from primebeaker.watcher.scan_runs import RunScan
from primebeaker.watcher.schema import PARSER_VERSION, SCHEMA_VERSION
from primebeaker.watcher.store_evaluations import CheckpointIndex, EvaluationStore
from primebeaker.watcher.store_runs import RunStore
from primebeaker.watcher.writing import Writer

__all__ = ["ScanOptions", "roots_for", "scan_into", "stopping", "update"]

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How to scan.

    Attributes:
        full: Read every file, also unchanged ones.
        stale_minutes: Age after which a run or evaluation that is not finished counts as stopped.
        details: List the indexed checkpoints in the summary.
        wait: Seconds to wait for another scan.
        workers: Threads that read ahead; by default the processors, at most 8.
        wandb_flags: Stage -> W&B run ids of the command line.
    """

    full: bool = False
    stale_minutes: float = 30.0
    details: bool = False
    wait: float = 0.0
    workers: int | None = None
    wandb_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)


def roots_for(connection: sqlite3.Connection | None, given: Given) -> Roots:
    """The roots of a scan.

    Raises:
        UserError: None of them exists.
    """
    roots = choose_roots(given, stored_roots(connection) if connection is not None else {}, os.environ)
    paths = roots.all_paths()
    if not any(Path(path).exists() for path in paths):
        listed = ", ".join(paths) if paths else "none is given"
        raise UserError(
            f"no root exists: {listed}", hint="give --train_config_roots, --output_roots or another root that does"
        )
    return roots


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], None]]:
    """A check that raises once SIGINT or SIGTERM came, so that a scan ends between two files."""
    asked = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    def check() -> None:
        if asked.is_set():
            raise Interrupted("interrupted; what was finished is kept")

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def update(
    database: Path,
    given: Given,
    options: ScanOptions,
    *,
    warn: Warn,
    dry_run: bool = False,
    kind: str = "update",
    stop: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Bring an index up to date; it is made when it does not exist.

    Args:
        database: The index.
        given: Roots of the command line.
        options: How to scan.
        warn: Receives one-line warnings.
        dry_run: Scan into a private copy and leave the index alone.
        kind: What the scan's row calls it.
        stop: Raises when the scan is to stop; by default SIGINT and SIGTERM do.

    Returns:
        The summary, keys in their documented order.

    Raises:
        UserError: No root exists.
        ScanLockedError: Another scan is running.
        DatabaseUnusableError: The index is damaged, newer, or the disk is full.
    """
    if dry_run:
        return _dry_run(database, given, options, warn=warn)
    if not database.exists():
        roots_for(None, given)
    if not database.parent.is_dir():
        raise UserError(f"--database: {database.parent} is not a directory", hint="make it first")
    with scan_lock(database, f"watcher {kind}", wait=options.wait):
        connection = open_writer(database, warn=warn)
        try:
            if (read_version(connection) or SCHEMA_VERSION) < SCHEMA_VERSION:
                connection.close()
                migrate(database, warn=warn)
                connection = open_writer(database, warn=warn)
            return scan_into(connection, database, given, options, kind=kind, stop=stop)
        except sqlite3.OperationalError as error:
            raise DatabaseUnusableError(f"{database}: {error}", hint="free space and run it again") from error
        finally:
            connection.close()


def _dry_run(database: Path, given: Given, options: ScanOptions, *, warn: Warn) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="primebeaker-watcher-") as folder:
        copy = Path(folder) / "index.sqlite3"
        if database.exists():
            source = open_reader(database, warn=warn)
            target = sqlite3.connect(copy)
            try:
                source.backup(target)
            finally:
                target.close()
                source.close()
        connection = open_writer(copy, warn=warn)
        try:
            summary = scan_into(connection, database, given, options, kind="dry_run")
        finally:
            connection.close()
    return summary


def scan_into(
    connection: sqlite3.Connection,
    database: Path,
    given: Given,
    options: ScanOptions,
    *,
    kind: str,
    carried: Mapping[tuple[str, str], int] | None = None,
    stop: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Scan with an open connection; the lock is the caller's."""
    roots = roots_for(connection, given)
    writer = Writer(connection, carried=carried or {})
    began = time.monotonic()
    writer.begin_scan(kind, socket.gethostname(), os.getpid(), roots.to_json())
    with stopping() if stop is None else contextlib.nullcontext(stop) as check:
        files = FileScan(writer, roots, time.time_ns(), options.full, check)
        files.check = _noting(files, check)
        try:
            summary = _Scan(writer, files, options).run()
        except BaseException as error:
            _abandon(writer, files, error)
            raise
    writer.commit()
    writer.end_scan("done", seen=files.counts.seen, parsed=files.counts.parsed, issues=sum(summary["issues"].values()))
    return {
        "operation": kind,
        "database": str(database),
        **{key: value for key, value in summary.items() if key not in _LATE},
        "seconds": round(time.monotonic() - began, 3),
        **{key: summary[key] for key in _LATE if key in summary},
    }


def _noting(files: FileScan, check: Callable[[], None]) -> Callable[[], None]:
    """The check for a stop, which also tells readers how far the scan is."""

    def both() -> None:
        check()
        files.writer.tell_progress(files.counts.seen, files.counts.parsed)

    return both


_LATE = (
    "issues",
    "unresolved",
    "failure_details",
    "invalid_config_details",
    "indexed",
    "indexed_sft",
    "skipped_indexed_paths",
)


def _abandon(writer: Writer, files: FileScan, error: BaseException) -> None:
    with contextlib.suppress(sqlite3.Error):
        if isinstance(error, Interrupted):
            writer.commit()
        elif writer.connection.in_transaction:
            writer.connection.execute("ROLLBACK")
        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        counts = files.counts
        writer.end_scan(status, seen=counts.seen, parsed=counts.parsed, issues=0, error=str(error)[:500])


@dataclass
class _Scan:
    writer: Writer
    files: FileScan
    options: ScanOptions

    def run(self) -> dict[str, Any]:
        writer, files = self.writer, self.files
        writer.load_issue_counts()
        stale = self.options.stale_minutes * 60
        files.scan_training_roots()
        runs = RunScan(files, stale, wandb_flags=self.options.wandb_flags)
        resolution, run_store = runs.scan()
        found = _runs_summary(resolution)
        # Ten thousand runs take memory that the evaluations need now.
        del resolution
        evaluations = EvaluationStore(writer, CheckpointIndex.load(writer))
        evaluation_scan = EvaluationScan(files, evaluations, stale, self.options.workers or min(8, os.cpu_count() or 1))
        with writer.first_fill():
            evaluation_scan.scan()
        evaluations.relink()
        with writer.batch():
            writer.set_issues("@links", [*runs.issues, *files.issues])
        changed = refresh_ancestors(writer)
        refresh_run_list(writer, sorted(changed | run_store.touched | evaluations.touched), files.check)
        with writer.batch():
            self._remember()
        writer.commit()
        return self._summary(found, run_store, runs, evaluation_scan)

    def _remember(self) -> None:
        self.writer.set_meta("roots", json.dumps(self.files.roots.to_json(), ensure_ascii=False))
        self.writer.set_meta("parser_version", str(PARSER_VERSION))
        self.writer.set_meta("dropped_issues", json.dumps(self.writer.dropped_issues))

    def _summary(
        self, found: _RunsSummary, store: RunStore, runs: RunScan, evaluations: EvaluationScan
    ) -> dict[str, Any]:
        counts = self.files.counts
        unresolved = found.unresolved
        invalid = sorted(set(counts.invalid_configs))
        sft = store.indexed.get("sft", [])
        others = [path for stage, paths in store.indexed.items() if stage != "sft" for path in paths]
        summary: dict[str, Any] = {
            "rl_outputs_with_configs": found.rl_with_configs,
            "discovered_checkpoints": runs.discovered,
            "indexed_checkpoints": len(others),
            "indexed_sft_checkpoints": len(sft),
            "skipped_indexed": len(store.unchanged),
            "unresolved_outputs": len(unresolved),
            "failures": len(evaluations.failures),
            "invalid_configs": len(invalid),
            "evaluations_changed": evaluations.changed,
            "removed": store.removed + evaluations.removed,
            "files_seen": counts.seen,
            "files_parsed": counts.parsed,
            "files_unchanged": counts.unchanged,
            "bytes_read": counts.bytes_read,
            "issues": dict(
                self.writer.execute(
                    "SELECT severity, count(*) FROM issues GROUP BY severity ORDER BY severity"
                ).fetchall()
            ),
        }
        if unresolved:
            summary["unresolved"] = unresolved
        if evaluations.failures:
            summary["failure_details"] = evaluations.failures
        if invalid:
            summary["invalid_config_details"] = [
                {"path": row[0], "error": row[1]}
                for path in invalid
                for row in self.writer.execute("SELECT path, error FROM files WHERE path = ?", (path,))
            ]
        if self.options.details:
            summary |= {"indexed": others, "indexed_sft": sft, "skipped_indexed_paths": store.unchanged}
        return summary


class _RunsSummary(NamedTuple):
    rl_with_configs: int
    unresolved: list[dict[str, Any]]


def _runs_summary(resolution: Resolution) -> _RunsSummary:
    runs = resolution.runs.values()
    unresolved = [
        {
            "output_dir": run.run_dir,
            "checkpoints": sum(item.kind != "referenced" for item in run.checkpoints),
            "reason": run.reason,
            "configs": [path for path, role, _ in run.configs if role == "candidate"],
        }
        for run in runs
        if run.config_state == "ambiguous"
    ]
    return _RunsSummary(sum(run.stage == "rl" and run.config_state != "none" for run in runs), unresolved)
