"""Differences: two configurations, and the scores of up to ten runs, checkpoints or evaluations side by side."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.redaction import redact_tree
from primebeaker.watcher.details import run_detail
from primebeaker.watcher.documents import redacted_toml
from primebeaker.watcher.lists import benchmark_row
from primebeaker.watcher.reading import UnreadableError, decode, parse_toml, read_file
from primebeaker.watcher.references import Entity
from primebeaker.watcher.values import flatten, jsonable

__all__ = ["compare", "diff_values", "read_configuration", "stored_values"]

#: Where a run lies and what it is called differs always and says nothing.
_IDENTITY = ("output_dir", "run.dir", "run.name", "ckpt.output_dir", "wandb.name", "wandb.group", "monitors.wandb.name")
_IDENTITY_TAILS = ("wandb.name", "wandb.group", "wandb.tags", "output_dir")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and bool(left == right)


def _is_identity(path: str) -> bool:
    return path in _IDENTITY or path.endswith(tuple(f".{tail}" for tail in _IDENTITY_TAILS))


def diff_values(left: Any, right: Any, *, everything: bool = False) -> dict[str, Any]:
    """How two parsed configurations differ, by dotted path; comments, order and the spelling of numbers never count."""
    one, other = dict(flatten(left)), dict(flatten(right))
    answer: dict[str, Any] = {"changed": [], "only_left": [], "only_right": [], "equal": 0, "identity": []}
    same: list[dict[str, Any]] = []
    for path in sorted({*one, *other}):
        if path not in other:
            row = {"path": path, "value": one[path]}
            answer["only_left"].append(row)
        elif path not in one:
            answer["only_right"].append({"path": path, "value": other[path]})
        elif _same(one[path], other[path]):
            answer["equal"] += 1
            same.append({"path": path, "value": one[path]})
        else:
            target = "identity" if _is_identity(path) else "changed"
            answer[target].append({"path": path, "left": one[path], "right": other[path]})
    if everything:
        answer["same"] = same
    return answer


def stored_values(connection: sqlite3.Connection, entity: Entity, attempt: int | None = None) -> dict[str, Any] | None:
    """The stored configuration of a run or a checkpoint's run: ``key``, ``path``, ``sha256``, ``values``, ``text``."""
    run_id = entity.id
    if entity.kind == "checkpoint":
        run_id = connection.execute("SELECT run_id FROM checkpoints WHERE id = ?", (entity.id,)).fetchone()[0]
    if attempt is not None:
        row = connection.execute(
            "SELECT c.* FROM configs c JOIN attempts a ON a.id = c.attempt_id WHERE c.run_id = ? AND a.ordinal = ?"
            " ORDER BY c.id LIMIT 1",
            (run_id, attempt),
        ).fetchone()
    else:
        row = connection.execute(
            "SELECT c.* FROM configs c JOIN runs r ON r.id = c.run_id WHERE c.run_id = ? ORDER BY"
            " c.id = r.config_id DESC, c.role = 'source' DESC, c.role = 'resume' DESC, c.id LIMIT 1",
            (run_id,),
        ).fetchone()
    if row is None:
        return None
    return {
        "key": entity.key,
        "path": row["path"],
        "sha256": row["sha256"],
        "values": json.loads(row["values_json"] or "{}"),
        "text": row["text"],
    }


def read_configuration(path: Path) -> dict[str, Any]:
    """The same for a TOML file.

    Raises:
        UserError: It cannot be read or is no TOML.
    """
    try:
        data, _ = read_file(str(path), str(path))
        text = decode(data, str(path))
        tree = parse_toml(text, str(path))
    except UnreadableError as error:
        raise UserError(error.issue.message, hint=error.issue.hint) from error
    return {
        "key": None,
        "path": str(path),
        "sha256": hashlib.sha256(data).hexdigest(),
        "values": redact_tree(jsonable(tree)),
        "text": redacted_toml(text, tree),
    }


def compare(
    connection: sqlite3.Connection, entities: Sequence[Entity], *, baseline: str | None = None, only_diff: bool = True
) -> dict[str, Any]:
    """Scores, hyperparameters, configurations and datasets side by side.

    ``delta`` is the cell less the baseline; it is significant when it exceeds twice the combined standard error and
    both have at least two runs.
    """
    columns = [_column(connection, entity) for entity in entities]
    base = next((column for column in columns if column["key"] == baseline), columns[0])
    names = list(dict.fromkeys(name for column in columns for name in column["scores"]))
    benchmarks = [
        {"name": name, "cells": [_cell(column["scores"].get(name), base["scores"].get(name)) for column in columns]}
        for name in sorted(names)
    ]
    rows = list(dict.fromkeys(name for column in columns for name in column["hyperparameters"]))
    hyperparameters: list[dict[str, Any]] = [
        {"name": name, "values": [column["hyperparameters"].get(name) for column in columns]} for name in rows
    ]
    flat = [dict(flatten(column["values"])) for column in columns]
    paths = sorted({path for values in flat for path in values})
    config: list[dict[str, Any]] = [{"path": path, "values": [values.get(path) for values in flat]} for path in paths]
    if only_diff:
        hyperparameters = [row for row in hyperparameters if not _alike(row["values"])]
        config = [row for row in config if not _alike(row["values"])]
    identity = [row for row in config if _is_identity(row["path"])]
    return {
        "baseline": base["key"],
        "columns": [{name: column[name] for name in _COLUMN} for column in columns],
        "benchmarks": benchmarks,
        "hyperparameters": hyperparameters,
        "config_diff": [row for row in config if not _is_identity(row["path"])],
        "identity": identity,
        "datasets": [column["datasets"] for column in columns],
    }


_COLUMN = ("key", "kind", "label", "run", "run_name", "stage", "step", "overall")


def _alike(values: Sequence[Any]) -> bool:
    return all(_same(values[0], value) for value in values[1:])


def _cell(score: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if score is None:
        return None
    cell: dict[str, Any] = {**score, "delta": None, "significant": False}
    if base is not None and score["mean"] is not None and base["mean"] is not None:
        cell["delta"] = score["mean"] - base["mean"]
        if (score["runs"] or 0) >= 2 and (base["runs"] or 0) >= 2:
            error = ((score["stderr"] or 0) ** 2 + (base["stderr"] or 0) ** 2) ** 0.5
            cell["significant"] = abs(cell["delta"]) > 2 * error
    return cell


def _column(connection: sqlite3.Connection, entity: Entity) -> dict[str, Any]:
    home = entity
    step: int | None = None
    if entity.kind == "run":
        condition, values = "l.run_id = ?", (entity.id,)
    elif entity.kind == "checkpoint":
        condition, values = "l.checkpoint_id = ?", (entity.id,)
    else:
        condition, values = "l.evaluation_id = ?", (entity.id,)
    run: dict[str, Any] | None = None
    run_id: int | None = entity.id if entity.kind == "run" else None
    if entity.kind == "checkpoint":
        run_id, step = connection.execute("SELECT run_id, step FROM checkpoints WHERE id = ?", (entity.id,)).fetchone()
    elif entity.kind == "evaluation":
        run_id, step = connection.execute(
            "SELECT run_id, step FROM evaluation_list WHERE evaluation_id = ?", (entity.id,)
        ).fetchone() or (None, None)
    if run_id is not None:
        row = connection.execute("SELECT key, name FROM runs WHERE id = ?", (run_id,)).fetchone()
        home = Entity("run", run_id, row[0], row[1])
        run = run_detail(connection, home)
    scores: dict[str, dict[str, Any]] = {}
    for row in connection.execute(
        "SELECT b.*, e.provisional FROM evaluation_list l JOIN evaluations e ON e.id = l.evaluation_id"  # noqa: S608
        f" JOIN evaluation_benchmarks b ON b.evaluation_id = e.id WHERE {condition} AND e.missing_since IS NULL"
        " ORDER BY e.provisional, b.mean_accuracy DESC",
        values,
    ):
        shown = benchmark_row(row)
        scores.setdefault(
            row["dataset"],
            {
                "mean": row["mean_accuracy"],
                "stderr": shown["stderr"],
                "runs": row["runs"],
                "provisional": bool(row["provisional"]),
            },
        )
    stored = stored_values(connection, home) if run else None
    means = [score["mean"] for score in scores.values() if score["mean"] is not None]
    label = f"{run['name']}@{step}" if run and step is not None else run["name"] if run else entity.label
    return {
        "key": entity.key,
        "kind": entity.kind,
        "label": label,
        "run": run["key"] if run else None,
        "run_name": run["name"] if run else None,
        "stage": run["stage"] if run else None,
        "step": step,
        "overall": sum(means) / len(means) if means else None,
        "scores": scores,
        "hyperparameters": run["hyperparameters"] if run else {},
        "values": stored["values"] if stored else {},
        "datasets": [
            {"name": item["dataset_name"], "role": item["role"], "path": item["configured_path"]}
            for item in (run["datasets"] if run else [])
        ],
    }
