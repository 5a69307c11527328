"""The older routes ``/api/models``: their field names are a contract with programs that read them."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from typing import Any

from primebeaker.watcher.metrics import Curves, online_wanted, run_metrics
from primebeaker.watcher.references import Entity
from primebeaker.watcher.wandb_fetch import Wanted

__all__ = ["model", "model_metrics", "models"]

# The representative checkpoint of a run: evaluated ones first, then the highest step.
_REPRESENTATIVE = (
    "(SELECT c.id FROM checkpoints c WHERE c.run_id = l.run_id AND c.missing_since IS NULL AND c.kind != 'referenced'"
    " ORDER BY EXISTS (SELECT 1 FROM evaluation_list x WHERE x.checkpoint_id = c.id) DESC, c.step DESC LIMIT 1)"
)
_ALL_EVALUATIONS = (
    "(SELECT sum(o.evaluations) FROM run_ancestors a JOIN run_list o ON o.run_id = a.ancestor_run_id"
    " WHERE a.run_id = l.run_id AND (a.depth = 0 OR o.stage = 'sft'))"
)


def models(connection: sqlite3.Connection, q: str, limit: int) -> dict[str, Any]:
    """One entry a run that has a checkpoint, evaluated ones first."""
    words = q.casefold()
    condition = "l.checkpoints > 0 AND (? = '' OR instr(lower(r.run_dir || ' ' || c.path), ?) > 0)"
    source = (
        f"FROM run_list l JOIN runs r ON r.id = l.run_id JOIN checkpoints c ON c.id = {_REPRESENTATIVE}"
        f" WHERE {condition}"
    )
    total = connection.execute(f"SELECT count(*) {source}", (words, words)).fetchone()[0]
    rows = connection.execute(
        "SELECT c.id, c.path AS model_path, r.run_dir AS output_dir, c.step AS checkpoint_step, c.indexed_at,"  # noqa: S608
        f" l.checkpoints AS checkpoint_count, {_ALL_EVALUATIONS} AS evaluation_count, r.stage, l.wandb_count,"
        " (SELECT count(DISTINCT dataset_id) FROM run_datasets d WHERE d.run_id = r.id) AS dataset_count, r.name,"
        f" {_ALL_EVALUATIONS} > 0 AS has_evaluations, c.key {source}"
        " ORDER BY has_evaluations DESC, evaluation_count DESC, c.indexed_at DESC, r.run_dir LIMIT ?",
        (words, words, limit),
    ).fetchall()
    items = [{**dict(row), "has_evaluations": bool(row["has_evaluations"])} for row in rows]
    return {"models": items, "count": len(items), "query": q, "total": total}


def model(connection: sqlite3.Connection, checkpoint_id: int) -> dict[str, Any] | None:
    """One checkpoint with its run's steps, training runs, datasets and evaluations."""
    row = connection.execute(
        "SELECT c.id, c.path AS model_path, r.run_dir AS output_dir, c.step AS checkpoint_step, c.indexed_at, r.name,"
        " r.stage, r.id AS run FROM checkpoints c JOIN runs r ON r.id = c.run_id WHERE c.id = ?",
        (checkpoint_id,),
    ).fetchone()
    if row is None:
        return None
    shown = dict(row)
    run_id = shown.pop("run")
    checkpoints = connection.execute(
        "SELECT c.id, c.path AS model_path, c.step AS checkpoint_step, c.indexed_at, (SELECT count(*) FROM"
        " evaluation_list l WHERE l.checkpoint_id = c.id) AS evaluation_count FROM checkpoints c WHERE c.run_id = ?"
        " ORDER BY c.step DESC",
        (run_id,),
    ).fetchall()
    lineage = connection.execute(
        "SELECT a.ancestor_run_id, a.checkpoint_id, a.depth FROM run_ancestors a WHERE a.run_id = ? ORDER BY a.depth,"
        " a.ancestor_run_id",
        (run_id,),
    ).fetchall()
    return {
        "model": shown,
        "checkpoints": [dict(item) for item in checkpoints],
        "training_runs": [_training_run(connection, item, checkpoint_id) for item in lineage],
        "datasets": [item for entry in lineage for item in _datasets(connection, entry["ancestor_run_id"])],
        "evaluations": _evaluations(connection, run_id),
    }


def _training_run(connection: sqlite3.Connection, entry: sqlite3.Row, checkpoint_id: int) -> dict[str, Any]:
    model_id = checkpoint_id if entry["depth"] == 0 else entry["checkpoint_id"]
    row = connection.execute(
        "SELECT r.id, r.stage, r.run_dir, f.path, f.sha256, f.text, f.hyperparameters_json, c.path AS checkpoint FROM"
        " runs r LEFT JOIN configs f ON f.id = r.config_id LEFT JOIN checkpoints c ON c.id = ? WHERE r.id = ?",
        (model_id, entry["ancestor_run_id"]),
    ).fetchone()
    wandb = connection.execute(
        "SELECT wandb_run_id AS run_id, project, entity, name, url, offline, launch_spec_path, local_run_path"
        " FROM wandb_runs WHERE run_id = ? ORDER BY id",
        (row["id"],),
    ).fetchall()
    return {
        "id": row["id"],
        "model_id": model_id,
        "stage": row["stage"],
        "checkpoint_path": row["checkpoint"],
        "output_dir": row["run_dir"],
        "config_path": row["path"],
        "config_sha256": row["sha256"],
        "raw_config_toml": row["text"],
        "hyperparameters": json.loads(row["hyperparameters_json"] or "{}"),
        "wandb_runs": [{**dict(item), "offline": bool(item["offline"])} for item in wandb],
    }


def _datasets(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT r.stage, b.role, min(b.configured_path) AS configured_path, group_concat(b.configured_path, char(10))"
        " AS paths, d.id AS dataset_id, d.dataset_name, d.manifest_path, d.config_uid, d.kind, d.train_path,"
        " d.validation_path, d.hf_dataset_path FROM run_datasets b JOIN datasets d ON d.id = b.dataset_id JOIN runs r"
        " ON r.id = b.run_id WHERE b.run_id = ? GROUP BY d.id ORDER BY min(b.id)",
        (run_id,),
    ).fetchall()
    shown = []
    for row in rows:
        item = dict(row)
        item["configured_paths"] = sorted(set(item.pop("paths").split("\n")))
        item["sources"] = [
            dict(source)
            for source in connection.execute(
                "SELECT source_name, source_path, weight, train_quota, validation_quota FROM dataset_sources"
                " WHERE dataset_id = ? ORDER BY source_name",
                (item["dataset_id"],),
            )
        ]
        shown.append(item)
    return shown


def _evaluations(connection: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT e.id, e.config_path, e.workflow, e.run_dir, e.status, e.error, c.id AS model_id, c.path AS model_path,"
        " c.step AS checkpoint_step, r.stage FROM evaluations e JOIN checkpoints c ON c.id = e.checkpoint_id"
        " JOIN runs r ON r.id = c.run_id WHERE c.run_id = :run OR c.id IN (SELECT checkpoint_id FROM run_ancestors"
        " WHERE run_id = :run AND depth > 0) ORDER BY r.stage = 'sft', c.step DESC, e.config_path LIMIT 5000",
        {"run": run_id},
    ).fetchall()
    shown = []
    for row in rows:
        benchmarks = connection.execute(
            "SELECT dataset, runs, mean_accuracy, stdev_accuracy, min_accuracy, max_accuracy FROM evaluation_benchmarks"
            " WHERE evaluation_id = ? ORDER BY id",
            (row["id"],),
        ).fetchall()
        shown.append({**dict(row), "benchmarks": [dict(item) for item in benchmarks]})
    return shown


_CHARTS = (
    ("sft_validation_loss", "SFT validation loss", "sft", "number", ("val/loss",)),
    (
        "eval_accuracy",
        "Evaluation accuracy",
        "rl",
        "percent",
        (
            "val/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
            "eval/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
        ),
    ),
)


def _family(connection: sqlite3.Connection, checkpoint_id: int) -> list[sqlite3.Row] | None:
    """The run of a checkpoint and its ancestors, nearest first."""
    row = connection.execute("SELECT run_id FROM checkpoints WHERE id = ?", (checkpoint_id,)).fetchone()
    if row is None:
        return None
    return connection.execute(
        "SELECT r.id, r.key, r.name, r.stage FROM run_ancestors a JOIN runs r ON r.id = a.ancestor_run_id"
        " WHERE a.run_id = ? ORDER BY a.depth, r.id",
        (row[0],),
    ).fetchall()


def model_wanted(connection: sqlite3.Connection, checkpoint_id: int, curves: Curves) -> list[Wanted]:
    """What W&B has to be asked for the two charts of a model."""
    return [
        wanted
        for *_, stage, _unit, names in _CHARTS
        for run in _family(connection, checkpoint_id) or ()
        if run["stage"] == stage
        for wanted in online_wanted(connection, Entity("run", run["id"], run["key"], run["name"]), curves, names=names)
    ]


def model_metrics(connection: sqlite3.Connection, checkpoint_id: int, curves: Curves) -> dict[str, Any] | None:
    """The two charts of a model, attempts merged by their mean."""
    runs = _family(connection, checkpoint_id)
    if runs is None:
        return None
    sources: list[dict[str, Any]] = []
    charts: list[dict[str, Any]] = []
    for identity, title, stage, unit, names in _CHARTS:
        for run in [item for item in runs if item["stage"] == stage]:
            entity = Entity("run", run["id"], run["key"], run["name"])
            found = run_metrics(connection, entity, curves, names=names, merge="mean", most=10_000)
            sources += [_source(connection, run, item, found["available"]) for item in found["sources"]]
            series = found["series"]
            if series:
                used = list(dict.fromkeys(item["metric"] for item in series))
                charts.append(_chart(identity, title, stage, unit, names[0], used, series[0], len(found["sources"])))
    return {"fetched_at": datetime.now(UTC).isoformat(timespec="microseconds"), "sources": sources, "charts": charts}


def _source(connection: sqlite3.Connection, run: sqlite3.Row, item: dict[str, Any], names: list[str]) -> dict[str, Any]:
    own = item["path"].rpartition("/")[2] if item["source"] == "wandb" else None
    wandb = connection.execute(
        "SELECT entity, project, wandb_run_id, name, url FROM wandb_runs WHERE run_id = ?"
        " ORDER BY wandb_run_id IS NOT ?, id LIMIT 1",
        (run["id"], own),
    ).fetchone()
    return {
        "stage": run["stage"],
        "entity": wandb["entity"] if wandb else None,
        "project": wandb["project"] if wandb else None,
        "run_id": wandb["wandb_run_id"] if wandb else None,
        "name": wandb["name"] if wandb else run["name"],
        "url": wandb["url"] if wandb else None,
        "path": item["path"],
        "state": item["state"],
        "metrics": names[:200],
        "error": item["error"],
    }


def _chart(
    identity: str, title: str, stage: str, unit: str, asked: str, used: list[str], series: dict[str, Any], count: int
) -> dict[str, Any]:
    points = [
        {"step": step, "value": value, "min": least, "max": most, "samples": samples, "attempts": samples}
        for step, value, least, most, samples in series["points"]
    ]
    return {
        "id": identity,
        "title": title,
        "stage": stage,
        "format": unit,
        "requested_metric": asked,
        "metrics_used": used,
        "attempt_count": max((point["samples"] for point in points), default=0),
        "source_count": count,
        "points": points,
    }
