"""The lists of runs, evaluations, issues and scans, as the command line and the HTTP interface give them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.watcher.paging import Filter, fetch_page, word_filter

__all__ = [
    "benchmark_row",
    "evaluation_rows",
    "generation_of",
    "list_evaluations",
    "list_issues",
    "list_runs",
    "list_scans",
    "run_rows",
]


def generation_of(connection: sqlite3.Connection) -> int:
    """Grows with every committed change."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()
    return int(row[0]) if row else 0


def _answer(
    connection: sqlite3.Connection, items: list[dict[str, Any]], total: int, cursor: str | None
) -> dict[str, Any]:
    return {
        "items": items,
        "count": len(items),
        "total": total,
        "next_cursor": cursor,
        "generation": generation_of(connection),
    }


def list_runs(connection: sqlite3.Connection, query: Mapping[str, Any]) -> dict[str, Any]:
    """Runs by the parameters of :data:`primebeaker.watcher.parameters.RUN_PARAMETERS`."""
    filters = Filter()
    word_filter(filters, "l.search", query.get("q") or "")
    for name in ("stage", "state"):
        if query.get(name):
            filters.add(f"l.{name} = ?", query[name])
    if query.get("has_evals") is not None:
        filters.add("l.evaluations > 0" if query["has_evals"] else "l.evaluations = 0")
    if query.get("benchmark"):
        filters.add("EXISTS (SELECT 1 FROM json_each(l.scores_json) s WHERE s.key = ?)", query["benchmark"])
    if query.get("dataset"):
        filters.add(
            "l.run_id IN (SELECT b.run_id FROM run_datasets b JOIN datasets d ON d.id = b.dataset_id"
            " WHERE d.dataset_name = ? OR instr(b.configured_path, ?) > 0)",
            query["dataset"],
            query["dataset"],
        )
    if query.get("base_model"):
        filters.add(
            "l.run_id IN (SELECT a.run_id FROM run_ancestors a JOIN runs r ON r.id = a.ancestor_run_id"
            " WHERE r.base_model = ?)",
            query["base_model"],
        )
    if query.get("wandb"):
        filters.add("l.run_id IN (SELECT run_id FROM wandb_runs WHERE wandb_run_id = ?)", query["wandb"])
    sort = query.get("sort") or "name"
    tables, value, scored, nulls = "run_list l", f"l.{sort}", filters, None
    if sort.startswith("benchmark:"):
        name = sort.partition(":")[2]
        tables, value = "run_list l JOIN json_each(l.scores_json) s", "s.value"
        scored = filters.but("s.key = ?", name)
        unscored = filters.but("NOT EXISTS (SELECT 1 FROM json_each(l.scores_json) s WHERE s.key = ?)", name)
        nulls = ("run_list l", unscored)
    page = fetch_page(
        connection,
        tables,
        "l.run_id",
        value,
        "l.key",
        scored,
        descending=query.get("order") == "desc",
        limit=query.get("limit") or 100,
        cursor=query.get("cursor"),
        nulls=nulls,
    )
    total = connection.execute(f"SELECT count(*) FROM run_list l{filters.sql()}", filters.values).fetchone()[0]  # noqa: S608
    return _answer(connection, run_rows(connection, page.ids), total, page.next_cursor)


def run_rows(connection: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The list rows of these runs, in this order."""
    marks = ", ".join("?" * len(ids))
    found = {
        row["id"]: row
        for row in connection.execute(
            "SELECT r.*, l.last_step, l.checkpoints, l.evaluations, l.overall, l.best_step, l.modified_at,"  # noqa: S608
            f" l.wandb_count, l.issues, l.scores_json, l.parents_json FROM runs r JOIN run_list l ON l.run_id = r.id"
            f" WHERE r.id IN ({marks})",
            ids,
        )
    }
    return [_run_row(found[run_id]) for run_id in ids if run_id in found]


def _run_row(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "key": row["key"],
        "id": row["id"],
        "name": row["name"],
        "run_dir": row["run_dir"],
        "stage": row["stage"],
        "state": row["state"],
        "config_state": row["config_state"],
        "last_step": row["last_step"],
        "max_steps": row["max_steps"],
        "checkpoint_count": row["checkpoints"],
        "evaluation_count": row["evaluations"],
        "best_overall": row["overall"],
        "best_step": row["best_step"],
        "scores": json.loads(row["scores_json"]),
        "parents": json.loads(row["parents_json"]),
        "wandb_count": row["wandb_count"],
        "issues": row["issues"],
        "modified_at": row["modified_at"],
        "missing_since": row["missing_since"],
    }


def list_evaluations(connection: sqlite3.Connection, query: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluations by the parameters of :data:`primebeaker.watcher.parameters.EVALUATION_PARAMETERS`."""
    filters = Filter()
    word_filter(filters, "l.search", query.get("q") or "")
    for name in ("status", "workflow"):
        if query.get(name):
            filters.add(f"l.{name} = ?", query[name])
    for name, table in (("run", "runs"), ("checkpoint", "checkpoints")):
        if query.get(name):
            filters.add(f"l.{name}_id = (SELECT id FROM {table} WHERE key = ?)", query[name])  # noqa: S608
    if query.get("min_score") is not None:
        filters.add("l.overall >= ?", query["min_score"])
    if query.get("max_score") is not None:
        filters.add("l.overall <= ?", query["max_score"])
    if query.get("benchmark"):
        filters.add(
            "EXISTS (SELECT 1 FROM evaluation_benchmarks x WHERE x.evaluation_id = l.evaluation_id AND x.dataset = ?)",
            query["benchmark"],
        )
    sort = query.get("sort") or "finished_at"
    tables, value, tie, scored, nulls = "evaluation_list l", f"l.{sort}", "l.key", filters, None
    if sort.startswith("benchmark:"):
        name = sort.partition(":")[2]
        tables = "evaluation_benchmarks b JOIN evaluation_list l ON l.evaluation_id = b.evaluation_id"
        value, tie = "b.mean_accuracy", "b.id"
        scored = filters.but("b.dataset = ?", name)
        unscored = "NOT EXISTS (SELECT 1 FROM evaluation_benchmarks x WHERE x.evaluation_id = l.evaluation_id"
        nulls = ("evaluation_list l", filters.but(f"{unscored} AND x.dataset = ?)", name))
    page = fetch_page(
        connection,
        tables,
        "l.evaluation_id",
        value,
        tie,
        scored,
        descending=query.get("order", "desc") == "desc",
        limit=query.get("limit") or 100,
        cursor=query.get("cursor"),
        nulls=nulls,
    )
    total = connection.execute(
        f"SELECT count(*) FROM evaluation_list l{filters.sql()}",  # noqa: S608
        filters.values,
    ).fetchone()[0]
    return _answer(connection, evaluation_rows(connection, page.ids), total, page.next_cursor)


def evaluation_rows(connection: sqlite3.Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The list rows of these evaluations, in this order."""
    marks = ", ".join("?" * len(ids))
    benchmarks: dict[int, list[dict[str, Any]]] = {}
    for row in connection.execute(
        f"SELECT * FROM evaluation_benchmarks WHERE evaluation_id IN ({marks}) ORDER BY id",  # noqa: S608
        ids,
    ):
        benchmarks.setdefault(row["evaluation_id"], []).append(benchmark_row(row))
    found = {
        row["id"]: row
        for row in connection.execute(
            "SELECT e.id, e.key, e.model_ref, e.base_model, e.config_path, e.workflow, e.run_dir, e.status,"  # noqa: S608
            " e.provisional, e.error, e.overall, e.started_at, e.finished_at, e.indexed_at, e.missing_since,"
            " c.key AS checkpoint, c.step, r.key AS run, r.name AS run_name, r.stage FROM evaluations e"
            " LEFT JOIN checkpoints c ON c.id = e.checkpoint_id LEFT JOIN runs r ON r.id = c.run_id"
            f" WHERE e.id IN ({marks})",
            ids,
        )
    }
    rows = []
    for evaluation_id in ids:
        if evaluation_id in found:
            row = dict(found[evaluation_id])
            row["provisional"] = bool(row["provisional"])
            row["benchmarks"] = benchmarks.get(evaluation_id, [])
            rows.append(row)
    return rows


def benchmark_row(row: sqlite3.Row) -> dict[str, Any]:
    """One benchmark; ``stderr`` is the standard deviation over the square root of the runs."""
    runs = row["runs"] or 0
    stderr = row["stdev_accuracy"] / runs**0.5 if runs and row["stdev_accuracy"] is not None else None
    names = ("dataset", "runs", "mean_accuracy", "stdev_accuracy", "min_accuracy", "max_accuracy", "failed_runs")
    return {**{name: row[name] for name in names}, "stderr": stderr}


def list_issues(connection: sqlite3.Connection, query: Mapping[str, Any]) -> dict[str, Any]:
    """Problems of single files, the worst first."""
    filters = Filter()
    for name in ("severity", "code"):
        if query.get(name):
            filters.add(f"l.{name} = ?", query[name])
    rank = "CASE l.severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END"
    page = fetch_page(
        connection,
        "issues l",
        "l.id",
        rank,
        "l.id",
        filters,
        descending=query.get("order") == "desc",
        limit=query.get("limit") or 100,
        cursor=query.get("cursor"),
        nullable=False,
    )
    marks = ", ".join("?" * len(page.ids))
    found = {
        row["id"]: dict(row)
        for row in connection.execute(
            f"SELECT id, severity, code, path, message, hint FROM issues WHERE id IN ({marks})",  # noqa: S608
            page.ids,
        )
    }
    total = connection.execute(f"SELECT count(*) FROM issues l{filters.sql()}", filters.values).fetchone()[0]  # noqa: S608
    return _answer(connection, [found[row_id] for row_id in page.ids if row_id in found], total, page.next_cursor)


def list_scans(connection: sqlite3.Connection, query: Mapping[str, Any]) -> dict[str, Any]:
    """Scans, by their number."""
    filters = Filter()
    page = fetch_page(
        connection,
        "scans l",
        "l.id",
        "l.started_at",
        "l.id",
        filters,
        descending=query.get("order") == "desc",
        limit=query.get("limit") or 100,
        cursor=query.get("cursor"),
        nullable=False,
    )
    marks = ", ".join("?" * len(page.ids))
    rows = connection.execute(f"SELECT * FROM scans WHERE id IN ({marks})", page.ids)  # noqa: S608
    found = {row["id"]: dict(row) for row in rows}
    for row in found.values():
        row["roots"] = json.loads(row.pop("roots_json") or "null")
    total = connection.execute("SELECT count(*) FROM scans").fetchone()[0]
    return _answer(connection, [found[row_id] for row_id in page.ids], total, page.next_cursor)
