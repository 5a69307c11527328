"""Counts and health of an index: ``status``, and the numbers of the overview page."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primebeaker.watcher.database import open_reader, read_version
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.lists import evaluation_rows, generation_of, run_rows
from primebeaker.watcher.locking import is_scanning

__all__ = ["counts_of", "is_healthy", "last_scan", "overview", "status"]

_STAGE_CHECKPOINTS = (
    "SELECT count(*), count(DISTINCT c.run_id) FROM checkpoints c JOIN runs r ON r.id = c.run_id WHERE r.stage = ?"
    " AND c.missing_since IS NULL AND c.kind != 'referenced' AND r.missing_since IS NULL"
)
_COUNTS: tuple[tuple[str, str], ...] = (
    ("training_stages", "SELECT count(*) FROM runs WHERE missing_since IS NULL"),
    (
        "wandb_attempts",
        "SELECT count(*) FROM (SELECT DISTINCT w.run_id, w.entity, w.project, w.wandb_run_id FROM wandb_runs w"
        " JOIN runs r ON r.id = w.run_id WHERE r.missing_since IS NULL)",
    ),
    ("datasets", "SELECT count(*) FROM datasets"),
    ("source_parquets", "SELECT count(*) FROM dataset_sources"),
    (
        "evaluations",
        "SELECT (SELECT count(*) FROM evaluations)"
        " - (SELECT count(*) FROM evaluations WHERE missing_since IS NOT NULL)",
    ),
    (
        "benchmark_outcomes",
        "SELECT (SELECT count(*) FROM evaluation_benchmarks) - (SELECT count(*) FROM evaluation_benchmarks"
        " WHERE evaluation_id IN (SELECT id FROM evaluations WHERE missing_since IS NOT NULL))",
    ),
    (
        "base_models",
        "SELECT count(*) FROM (SELECT base_model FROM runs WHERE base_model IS NOT NULL AND missing_since IS NULL"
        " UNION SELECT base_model FROM evaluations WHERE base_model IS NOT NULL AND missing_since IS NULL)",
    ),
    (
        "missing",
        "SELECT (SELECT count(*) FROM runs WHERE missing_since IS NOT NULL) + (SELECT count(*) FROM checkpoints"
        " WHERE missing_since IS NOT NULL) + (SELECT count(*) FROM evaluations WHERE missing_since IS NOT NULL)",
    ),
)
_FILES = "SELECT (SELECT count(*) FROM files) - (SELECT count(*) FROM files WHERE status = 'gone')"


def counts_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """How many entities of each kind are there and not missing, and the issues by severity."""
    by_stage = {stage: connection.execute(_STAGE_CHECKPOINTS, (stage,)).fetchone() for stage in ("rl", "sft")}
    counts: dict[str, Any] = {
        "rl_checkpoints": by_stage["rl"][0],
        "sft_checkpoints": by_stage["sft"][0],
        "rl_outputs": by_stage["rl"][1],
        "sft_outputs": by_stage["sft"][1],
    }
    counts |= {name: connection.execute(sql).fetchone()[0] for name, sql in _COUNTS}
    found = dict(connection.execute("SELECT severity, count(*) FROM issues GROUP BY severity").fetchall())
    counts["issues"] = {name: found[name] for name in ("error", "warning", "info") if name in found}
    counts["files"] = connection.execute(_FILES).fetchone()[0]
    return counts


def last_scan(connection: sqlite3.Connection) -> dict[str, Any] | None:
    """The newest scan's row."""
    row = connection.execute(
        "SELECT id, kind, host, pid, started_at, finished_at, status, files_seen, files_parsed, issues, error"
        " FROM scans ORDER BY id DESC LIMIT 1"
    ).fetchone()
    return dict(row) if row else None


def _indexed(connection: sqlite3.Connection) -> tuple[str | None, str | None]:
    row = connection.execute("SELECT min(finished_at), max(finished_at) FROM scans WHERE status = 'done'").fetchone()
    return row[0], row[1]


_KEYS = (
    "size_bytes",
    "integrity",
    "schema_version",
    "first_indexed_at",
    "last_indexed_at",
    "rl_checkpoints",
    "sft_checkpoints",
    "rl_outputs",
    "sft_outputs",
    *(name for name, _ in _COUNTS),
    "issues",
    "files",
    "generation",
    "last_scan",
    "scan_running",
    "roots",
)


def status(database: Path, *, warn: Callable[[str], None]) -> tuple[dict[str, Any], DatabaseUnusableError | None]:
    """The read-only inventory, and why the file cannot be used when it cannot."""
    if not database.exists():
        return {"database": str(database), "exists": False}, None
    answer: dict[str, Any] = {"database": str(database), "exists": True, **dict.fromkeys(_KEYS)}
    answer["size_bytes"] = database.stat().st_size
    try:
        connection = open_reader(database, warn=warn)
    except DatabaseUnusableError as error:
        answer["integrity"] = error.message
        return answer, error
    try:
        connection.execute("BEGIN")
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        answer["integrity"] = problem
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        answer["schema_version"] = read_version(connection)
        answer["first_indexed_at"], answer["last_indexed_at"] = _indexed(connection)
        answer |= counts_of(connection)
        answer["generation"] = generation_of(connection)
        answer["last_scan"] = last_scan(connection)
        answer["scan_running"] = is_scanning(database)
        row = connection.execute("SELECT value FROM meta WHERE name = 'roots'").fetchone()
        answer["roots"] = json.loads(row[0]) if row else None
    except sqlite3.DatabaseError as error:
        answer["integrity"] = str(error)
        unusable = DatabaseUnusableError(
            f"{database} is damaged: {error}", hint=f"run primebeaker watcher rebuild --database={database}"
        )
        return answer, unusable
    finally:
        connection.close()
    return answer, None


def is_healthy(answer: dict[str, Any], *, max_age_minutes: float = 0) -> bool:
    """Whether the file is there, whole, and (when asked) its last good scan is young enough."""
    if not answer["exists"] or answer.get("integrity") != "ok":
        return False
    if max_age_minutes <= 0:
        return True
    finished = answer.get("last_indexed_at")
    if not finished:
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(finished)).total_seconds() <= max_age_minutes * 60


def overview(connection: sqlite3.Connection) -> dict[str, Any]:
    """What the start page shows."""
    recent = [
        row[0]
        for row in connection.execute(
            "SELECT evaluation_id FROM evaluation_list WHERE finished_at IS NOT NULL"
            " ORDER BY finished_at DESC, key DESC LIMIT 20"
        )
    ]
    active = [
        row[0]
        for row in connection.execute(
            "SELECT run_id FROM run_list WHERE state = 'active' ORDER BY modified_at DESC, key LIMIT 50"
        )
    ]
    first, last = _indexed(connection)
    return {
        "counts": counts_of(connection),
        "first_indexed_at": first,
        "last_indexed_at": last,
        "recent_evaluations": evaluation_rows(connection, recent),
        "active_runs": run_rows(connection, active),
        "leaderboard": _leaderboard(connection),
        "last_scan": last_scan(connection),
        "generation": generation_of(connection),
    }


def _leaderboard(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    names: list[str] = []
    name = connection.execute("SELECT min(dataset) FROM evaluation_benchmarks").fetchone()[0]
    while name is not None and len(names) < 50:
        names.append(name)
        # One index probe a name instead of a walk over all rows.
        name = connection.execute(
            "SELECT min(dataset) FROM evaluation_benchmarks WHERE dataset > ?", (name,)
        ).fetchone()[0]
    board = []
    for name in names:
        rows = connection.execute(
            "SELECT e.key AS evaluation, e.model_ref AS model, b.mean_accuracy AS mean, b.stdev_accuracy AS stdev,"
            " b.runs, c.key AS checkpoint, c.step, r.key AS run, r.name AS run_name, r.stage"
            " FROM evaluation_benchmarks b JOIN evaluations e ON e.id = b.evaluation_id"
            " LEFT JOIN checkpoints c ON c.id = e.checkpoint_id"
            " LEFT JOIN runs r ON r.id = c.run_id WHERE b.dataset = ? AND e.missing_since IS NULL AND e.provisional = 0"
            " ORDER BY b.mean_accuracy DESC LIMIT 5",
            (name,),
        ).fetchall()
        board.append({"benchmark": name, "best": [dict(row) for row in rows]})
    return board
