"""From what a user writes to one entity: a key, a path, a run's name, ``NAME@STEP`` or a W&B run id."""

from __future__ import annotations

import re
import sqlite3
from typing import Literal, NamedTuple

from primebeaker.errors import UserError
from primebeaker.watcher.paths import checkpoint_step, normalise, run_dir_of

__all__ = ["Entity", "by_key", "resolve_reference"]

Kind = Literal["run", "checkpoint", "evaluation"]
_TABLE = {"run": "runs", "checkpoint": "checkpoints", "evaluation": "evaluations"}
_KEY = re.compile(r"[0-9a-f]{12}")


class Entity(NamedTuple):
    """One run, checkpoint or evaluation."""

    kind: Kind
    id: int
    key: str
    label: str


def by_key(connection: sqlite3.Connection, key: str, kinds: tuple[Kind, ...]) -> Entity | None:
    """The entity of a public key."""
    label = {"run": "run_dir", "checkpoint": "path", "evaluation": "config_path"}
    for kind in kinds:
        row = connection.execute(f"SELECT id, key, {label[kind]} FROM {_TABLE[kind]} WHERE key = ?", (key,)).fetchone()  # noqa: S608
        if row:
            return Entity(kind, row[0], row[1], row[2])
    return None


def resolve_reference(
    connection: sqlite3.Connection,
    reference: str,
    *,
    base: str = "",
    kinds: tuple[Kind, ...] = ("run", "checkpoint", "evaluation"),
) -> Entity:
    """The one entity a reference names.

    Args:
        connection: The index.
        reference: As written.
        base: What a relative path is taken from.
        kinds: What is asked for.

    Raises:
        UserError: Nothing has that name, or several do (up to 10 are listed).
    """
    if _KEY.fullmatch(reference) and (found := by_key(connection, reference, kinds)):
        return found
    candidates: list[Entity] = []
    if reference.startswith(("/", "./", "../", "~")) or "/" in reference:
        candidates = _by_path(connection, normalise(reference, base))
    if not candidates:
        candidates = _by_name(connection, reference)
    candidates = [item for item in dict.fromkeys(candidates) if item.kind in kinds]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UserError(
            f"{reference!r} names no indexed {' or '.join(kinds)}",
            hint="give a key, an absolute path, a run name, NAME@STEP or a W&B run id",
        )
    listed = ", ".join(f"{item.key} ({item.label})" for item in candidates[:10])
    raise UserError(f"{reference!r} names {len(candidates)} entities: {listed}", hint="give the key or the path")


def _entities(connection: sqlite3.Connection, kind: Kind, sql: str, *values: object) -> list[Entity]:
    return [Entity(kind, row[0], row[1], row[2]) for row in connection.execute(sql + " LIMIT 50", values)]


def _by_path(connection: sqlite3.Connection, path: str) -> list[Entity]:
    found = _entities(connection, "run", "SELECT id, key, run_dir FROM runs WHERE run_dir = ?", path)
    found += _entities(connection, "checkpoint", "SELECT id, key, path FROM checkpoints WHERE path = ?", path)
    step = checkpoint_step(path)
    if not found and step is not None:
        for home in _homes(connection, run_dir_of(path)):
            sql = "SELECT id, key, path FROM checkpoints WHERE run_id = ? AND step = ?"
            found += _entities(connection, "checkpoint", sql, home, step)
    if not found:
        sql = "SELECT id, key, run_dir FROM runs WHERE id = ?"
        found += [item for home in _homes(connection, path) for item in _entities(connection, "run", sql, home)]
    sql = "SELECT id, key, config_path FROM evaluations WHERE config_path = ? OR run_dir = ?"
    return found or _entities(connection, "evaluation", sql, path, path)


def _homes(connection: sqlite3.Connection, run_dir: str) -> list[int]:
    """Runs at this place, also under an old or other spelling."""
    sql = (
        "SELECT id FROM runs WHERE run_dir = ? UNION SELECT r.id FROM runs r, json_each(r.aliases_json) a"
        " WHERE r.aliases_json != '[]' AND a.value = ?"
    )
    return [row[0] for row in connection.execute(sql, (run_dir, run_dir))]


def _by_name(connection: sqlite3.Connection, name: str) -> list[Entity]:
    found = _entities(connection, "run", "SELECT id, key, run_dir FROM runs WHERE name = ?", name)
    run, at, step = name.rpartition("@")
    if not found and at and step.isdecimal() and len(step) < 16:
        sql = (
            "SELECT c.id, c.key, c.path FROM checkpoints c JOIN runs r ON r.id = c.run_id"
            " WHERE r.name = ? AND c.step = ?"
        )
        found = _entities(connection, "checkpoint", sql, run, int(step))
    if not found:
        sql = "SELECT r.id, r.key, r.run_dir FROM runs r JOIN wandb_runs w ON w.run_id = r.id WHERE w.wandb_run_id = ?"
        found = _entities(connection, "run", sql, name)
    return found
