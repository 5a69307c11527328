"""One run, checkpoint or evaluation with everything that is known about it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from primebeaker.errors import UserError
from primebeaker.watcher.lists import evaluation_rows, run_rows
from primebeaker.watcher.references import Entity

__all__ = ["checkpoint_detail", "evaluation_detail", "run_detail", "show_model"]


def _dicts(connection: sqlite3.Connection, sql: str, *values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(sql, values)]


def _attempts(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = _dicts(connection, "SELECT * FROM attempts WHERE run_id = ? ORDER BY ordinal", run_id)
    for row in rows:
        raw = json.loads(row.pop("raw_json") or "null") or {}
        row["error"] = raw.get("error")
        row.pop("run_id")
    return rows


def _superseded(step: int, ordinal: int | None, attempts: list[dict[str, Any]]) -> bool:
    """Whether a later attempt went on from an earlier step."""
    return ordinal is not None and any(
        later["ordinal"] > ordinal and later["resume_step"] is not None and step > later["resume_step"]
        for later in attempts
    )


def _checkpoints(connection: sqlite3.Connection, run_id: int, attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ordinals = {row["id"]: row["ordinal"] for row in attempts}
    evaluations: dict[int, list[dict[str, Any]]] = {}
    ids = [
        row[0]
        for row in connection.execute(
            "SELECT evaluation_id FROM evaluation_list WHERE run_id = ? ORDER BY step, key", (run_id,)
        )
    ]
    by_key = {
        row["key"]: row
        for start in range(0, len(ids), 500)
        for row in evaluation_rows(connection, ids[start : start + 500])
    }
    for row in connection.execute("SELECT key, checkpoint_id FROM evaluation_list WHERE run_id = ?", (run_id,)):
        if row[0] in by_key:
            evaluations.setdefault(row[1], []).append(by_key[row[0]])
    rows = _dicts(connection, "SELECT * FROM checkpoints WHERE run_id = ? ORDER BY step", run_id)
    lacks = _lacks(connection, run_id)
    for row in rows:
        row["stable"] = bool(row["stable"])
        row["lacks"] = lacks.get(row["step"])
        row["attempt"] = ordinals.get(row.pop("attempt_id"))
        row["superseded"] = _superseded(row["step"], row["attempt"], attempts)
        row["evaluations"] = evaluations.get(row["id"], [])
        row.pop("run_id")
    return rows


def _lacks(connection: sqlite3.Connection, run_id: int) -> dict[int, list[str]]:
    """What keeps each step with a saved state from being resumed; an empty list when nothing does."""
    found = connection.execute(
        "SELECT f.facts, r.stage FROM runs r JOIN files f ON f.path = r.run_dir AND f.kind = 'run_directory'"
        " WHERE r.id = ?",
        (run_id,),
    ).fetchone()
    rows = json.loads(found[0] or "{}").get("checkpoints", ()) if found else ()
    judged = {row[0]: row[9] for row in rows if len(row) > 9 and row[9] is not None}
    parts = ("trainer",) if found and found[1] == "sft" else ("trainer", "orchestrator")
    return {step: [word for part in parts for word in lacks[part]] for step, lacks in judged.items()}


def _datasets(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = _dicts(
        connection,
        "SELECT b.role, b.configured_path, d.id, d.identity_key, d.dataset_name, d.manifest_path, d.config_uid, d.kind,"
        " d.train_path, d.validation_path, d.hf_dataset_path FROM run_datasets b JOIN datasets d ON d.id = b.dataset_id"
        " WHERE b.run_id = ? ORDER BY b.id",
        run_id,
    )
    for row in rows:
        row["sources"] = _dicts(
            connection,
            "SELECT source_name, source_path, weight, train_quota, validation_quota FROM dataset_sources"
            " WHERE dataset_id = ? ORDER BY id",
            row["id"],
        )
    return rows


def _wandb(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = _dicts(connection, "SELECT * FROM wandb_runs WHERE run_id = ? ORDER BY id", run_id)
    for row in rows:
        row["offline"] = bool(row["offline"])
        row["local_paths"] = json.loads(row.pop("local_paths_json"))
        row.pop("run_id")
    return rows


def _children(connection: sqlite3.Connection, run_id: int, checkpoint_id: int | None = None) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT DISTINCT r.key, r.name, r.stage, r.state, e.relation, c.step AS from_step, l.last_step, l.overall"
        " FROM lineage_edges e JOIN checkpoints c ON c.id = e.parent_checkpoint_id JOIN runs r ON r.id = e.child_run_id"
        " LEFT JOIN run_list l ON l.run_id = r.id WHERE c.run_id = ? AND e.child_run_id != c.run_id"
        " AND (? IS NULL OR c.id = ?) ORDER BY r.name, r.key LIMIT 1000",
        (run_id, checkpoint_id, checkpoint_id),
    )
    return [dict(row) for row in rows]


def issues_of_run(connection: sqlite3.Connection, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Problems of files below the run directory and of its configurations."""
    directory = run["run_dir"] or ""
    return _dicts(
        connection,
        "SELECT severity, code, path, message, hint FROM issues WHERE path = ? OR (path > ? AND path < ?)"
        " OR path IN (SELECT path FROM configs WHERE run_id = ?) ORDER BY id LIMIT 200",
        directory,
        directory + "/",
        directory + "0",
        run["id"],
    )


def run_detail(connection: sqlite3.Connection, entity: Entity) -> dict[str, Any]:
    """A run: its list row and attempts, checkpoints, configurations, datasets, W&B runs, parents and children."""
    rows = run_rows(connection, [entity.id])
    if not rows:
        raise UserError(f"run {entity.key} is not in the list", hint="run primebeaker watcher update")
    detail = rows[0]
    run = connection.execute("SELECT * FROM runs WHERE id = ?", (entity.id,)).fetchone()
    attempts = _attempts(connection, entity.id)
    ordinals = {row["id"]: row["ordinal"] for row in attempts}
    configs = _dicts(
        connection,
        "SELECT id, path, role, attempt_id, sha256, semantic_sha256, text_truncated, hyperparameters_json FROM configs"
        " WHERE run_id = ? ORDER BY id",
        entity.id,
    )
    hyperparameters: dict[str, Any] = {}
    for row in configs:
        summary = json.loads(row.pop("hyperparameters_json") or "{}")
        row["attempt"] = ordinals.get(row.pop("attempt_id"))
        row["chosen"] = row["id"] == run["config_id"]
        if row.pop("id") == run["config_id"] or (not hyperparameters and row["role"] != "candidate"):
            hyperparameters = summary
    checkpoints = _checkpoints(connection, entity.id, attempts)
    detail |= {
        "base_model": run["base_model"],
        "first_seen_at": run["first_seen_at"],
        "indexed_at": run["indexed_at"],
        "aliases": json.loads(run["aliases_json"]),
        "attempts": attempts,
        "checkpoints": checkpoints,
        "configs": configs,
        "hyperparameters": hyperparameters,
        "datasets": _datasets(connection, entity.id),
        "wandb_runs": _wandb(connection, entity.id),
        "parents": _parents(connection, entity.id),
        "children": _children(connection, entity.id),
        "evaluations": [row for checkpoint in checkpoints for row in checkpoint["evaluations"]],
        "issues": issues_of_run(connection, run),
    }
    return detail


def _parents(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = _dicts(
        connection,
        "SELECT e.parent_ref AS ref, e.relation, e.source_path, e.source_key, e.ambiguous, c.key AS checkpoint, c.step,"
        " c.kind, r.key AS run, r.name, r.stage FROM lineage_edges e LEFT JOIN checkpoints c"
        " ON c.id = e.parent_checkpoint_id LEFT JOIN runs r ON r.id = c.run_id WHERE e.child_run_id = ? ORDER BY e.id",
        run_id,
    )
    for row in rows:
        row["ambiguous"] = bool(row["ambiguous"])
    return rows


def ancestors_of(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """Runs this one descends from, nearest first, each with the checkpoint it was left at."""
    return _dicts(
        connection,
        "SELECT r.key, r.name, r.stage, r.run_dir, a.depth, c.key AS checkpoint, c.path AS checkpoint_path, c.step"
        " FROM run_ancestors a JOIN runs r ON r.id = a.ancestor_run_id"
        " LEFT JOIN checkpoints c ON c.id = a.checkpoint_id"
        " WHERE a.run_id = ? AND a.depth > 0 ORDER BY a.depth, r.key",
        run_id,
    )


def checkpoint_detail(connection: sqlite3.Connection, entity: Entity) -> dict[str, Any]:
    """A checkpoint with its run, attempt, ancestors, evaluations and the runs that start from it."""
    run_id = connection.execute("SELECT run_id FROM checkpoints WHERE id = ?", (entity.id,)).fetchone()[0]
    attempts = _attempts(connection, run_id)
    checkpoint = next(row for row in _checkpoints(connection, run_id, attempts) if row["id"] == entity.id)
    evaluations = checkpoint.pop("evaluations")
    rows = run_rows(connection, [run_id])
    return {
        "checkpoint": checkpoint,
        "run": rows[0] if rows else None,
        "attempt": next((row for row in attempts if row["ordinal"] == checkpoint["attempt"]), None),
        "ancestors": ancestors_of(connection, run_id),
        "evaluations": evaluations,
        "children": _children(connection, run_id, entity.id),
    }


def evaluation_detail(connection: sqlite3.Connection, entity: Entity) -> dict[str, Any]:
    """An evaluation with its configuration, outcome, failures, and what was expected and observed."""
    detail = evaluation_rows(connection, [entity.id])[0]
    row = connection.execute(
        "SELECT config_text, outcome_json, expected_json, observed_json FROM evaluations WHERE id = ?", (entity.id,)
    ).fetchone()
    outcome = json.loads(row["outcome_json"] or "{}")
    detail |= {
        "config_text": row["config_text"],
        "failures": outcome.pop("failures", [])[:200],
        "outcome": outcome,
        "expected": json.loads(row["expected_json"] or "{}"),
        "observed": json.loads(row["observed_json"] or "{}"),
        "metrics": _dicts(
            connection,
            "SELECT name, value, count FROM evaluation_metrics WHERE evaluation_id = ? ORDER BY name",
            entity.id,
        ),
        "issues": _dicts(
            connection,
            "SELECT severity, code, path, message, hint FROM issues WHERE owner = ? ORDER BY id LIMIT 200",
            detail["config_path"],
        ),
    }
    return detail


def show_model(connection: sqlite3.Connection, entity: Entity, *, config: bool = False) -> dict[str, Any]:
    """The stored graph of one checkpoint: rows of the views, then everything about it."""
    detail = checkpoint_detail(connection, entity)
    path = detail["checkpoint"]["path"]
    run_id = connection.execute("SELECT run_id FROM checkpoints WHERE id = ?", (entity.id,)).fetchone()[0]
    provenance = _dicts(connection, "SELECT * FROM model_provenance WHERE rl_model = ?", path)
    wandb = _dicts(connection, "SELECT * FROM model_wandb_runs WHERE rl_model = ? ORDER BY stage, run_id", path)
    mix = _dicts(connection, "SELECT * FROM dataset_mix WHERE rl_model = ? ORDER BY stage, role, source_name", path)
    evaluations = _dicts(
        connection, "SELECT * FROM evaluation_results WHERE rl_model = ? ORDER BY config_path, dataset", path
    )
    counts = connection.execute(
        "SELECT count(*), (SELECT count(*) FROM wandb_runs w JOIN run_ancestors x ON x.ancestor_run_id = w.run_id"
        " WHERE x.run_id = :run), (SELECT count(DISTINCT b.dataset_id) FROM run_datasets b JOIN run_ancestors x"
        " ON x.ancestor_run_id = b.run_id WHERE x.run_id = :run), (SELECT count(*) FROM dataset_sources s WHERE"
        " s.dataset_id IN (SELECT b.dataset_id FROM run_datasets b JOIN run_ancestors x ON x.ancestor_run_id = b.run_id"
        " WHERE x.run_id = :run)), (SELECT count(*) FROM evaluation_list l JOIN run_ancestors x"
        " ON x.ancestor_run_id = l.run_id WHERE x.run_id = :run), (SELECT count(*) FROM evaluation_benchmarks b"
        " JOIN evaluation_list l ON l.evaluation_id = b.evaluation_id JOIN run_ancestors x"
        " ON x.ancestor_run_id = l.run_id WHERE x.run_id = :run)"
        " FROM run_ancestors a JOIN runs r ON r.id = a.ancestor_run_id WHERE a.run_id = :run AND r.stage != 'unknown'",
        {"run": run_id},
    ).fetchone()
    names = ("training_runs", "wandb_runs", "datasets", "dataset_sources", "evaluations", "benchmarks")
    run = connection.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
    shown: dict[str, Any] = {
        "provenance": provenance[0] if provenance else None,
        "wandb_runs": wandb,
        "dataset_mix": mix,
        "evaluations": evaluations,
        "counts": dict(zip(names, counts, strict=True)),
        "checkpoint": detail["checkpoint"],
        "run": detail["run"],
        "attempts": _attempts(connection, run_id),
        "ancestors": detail["ancestors"],
        "issues": issues_of_run(connection, run),
    }
    if config:
        text = connection.execute("SELECT text FROM configs WHERE id = ?", (run["config_id"],)).fetchone()
        shown["config"] = text[0] if text else None
    return shown
