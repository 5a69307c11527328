"""From schema 1 to 2: copy first, then one transaction; ids of models stay, credentials are taken out on the way."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from primebeaker.redaction import mask_credentials, redact_tree
from primebeaker.watcher.documents import redacted_toml, redacted_yaml, stored_text
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.paths import checkpoint_step, entity_key, normalise, run_dir_of
from primebeaker.watcher.schema import SCHEMA_VERSION, create_statements
from primebeaker.watcher.timing import now, parse_time
from primebeaker.watcher.training import hyperparameters
from primebeaker.watcher.values import jsonable, semantic_digest

__all__ = ["backup_path", "copy_database", "migrate"]

_OLD = (
    "models",
    "training_runs",
    "wandb_runs",
    "datasets",
    "training_run_datasets",
    "dataset_sources",
    "evaluations",
    "evaluation_benchmarks",
)


def backup_path(database: Path) -> Path:
    """``<database>.backup-<UTC time to the microsecond>``."""
    return database.with_name(f"{database.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")


def copy_database(source: Path, target: Path) -> None:
    """A whole, consistent copy (mode 0600), also of a database in use."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    try:
        reader = sqlite3.connect(source)
        writer = sqlite3.connect(target)
        try:
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode=DELETE")
        finally:
            writer.close()
            reader.close()
    except sqlite3.DatabaseError:
        # What is no database is kept byte for byte.
        shutil.copyfile(source, target)


def migrate(database: Path, *, warn: Callable[[str], None]) -> Path:
    """Bring an index of schema 1 to the present schema.

    Returns:
        The backup that was made first.

    Raises:
        DatabaseUnusableError: The tables are not those of schema 1; nothing is changed.
    """
    backup = backup_path(database)
    copy_database(database, backup)
    connection = sqlite3.connect(database, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA legacy_alter_table=ON")
    try:
        connection.execute("BEGIN IMMEDIATE")
        _migrate(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise DatabaseUnusableError(
            f"{database} cannot be migrated: {error}", hint=f"run primebeaker watcher rebuild --database={database}"
        ) from error
    finally:
        connection.close()
    warn(f"{database} was migrated to schema {SCHEMA_VERSION}; the old file is {backup}")
    return backup


def _migrate(connection: sqlite3.Connection) -> None:
    for kind in ("view", "trigger", "index"):
        for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = ? AND sql IS NOT NULL", (kind,)
        ).fetchall():
            connection.execute(f'DROP {kind} "{row["name"]}"')
    present = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in _OLD:
        if table in present:
            connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    connection.execute("DROP TABLE schema_metadata")
    for statement in create_statements().split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT INTO schema_metadata VALUES (?, ?)", (SCHEMA_VERSION, now()))
    connection.execute("INSERT INTO meta VALUES ('generation', 1)")
    _Migration(connection).run()
    for table in _OLD:
        if table in present:
            connection.execute(f"DROP TABLE old_{table}")


class _Migration:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.runs: dict[str, int] = {}
        self.training: dict[int, int] = {}

    def run(self) -> None:
        rows = self.connection.execute("SELECT * FROM old_training_runs ORDER BY id").fetchall()
        stages: dict[int, sqlite3.Row] = {}
        for row in rows:
            run_id = self._run(row["output_dir"] or run_dir_of(row["checkpoint_path"] or ""), row["stage"])
            self.training[row["id"]] = run_id
            self._config(run_id, row)
            stages.setdefault(row["model_id"], row)
        for model in self.connection.execute("SELECT * FROM old_models ORDER BY id").fetchall():
            self._model(model)
        # A stage below a model is its predecessor: its own checkpoint is known by path alone.
        for row in rows:
            self._edge(row)
        self._wandb()
        self._datasets()
        self._evaluations()

    def _insert(self, table: str, **values: Any) -> int:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        cursor = self.connection.execute(
            f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 (names are ours)
            tuple(values.values()),
        )
        return int(cursor.lastrowid or 0)

    def _run(self, directory: str, stage: str | None) -> int:
        run_dir = normalise(directory, "/")
        if run_dir in self.runs:
            return self.runs[run_dir]
        moment = now()
        self.runs[run_dir] = self._insert(
            "runs",
            key=entity_key("run", run_dir),
            run_dir=run_dir,
            name=run_dir.rpartition("/")[2] or run_dir,
            stage=stage if stage in ("rl", "sft") else "unknown",
            state="stopped",
            config_state="none",
            first_seen_at=moment,
            indexed_at=moment,
        )
        return self.runs[run_dir]

    def _config(self, run_id: int, row: sqlite3.Row) -> None:
        path, text = row["config_path"], row["raw_config_toml"]
        known = self.connection.execute("SELECT 1 FROM configs WHERE run_id = ? AND path = ?", (run_id, path))
        if not path or known.fetchone():
            return
        tree: dict[str, Any] = {}
        clean = ""
        try:
            tree = tomllib.loads(text or "")
            clean = redacted_toml(text or "", tree)
        except (tomllib.TOMLDecodeError, RecursionError):
            clean = mask_credentials(text or "", key="wandb")
        stored = stored_text(clean)
        config_id = self._insert(
            "configs",
            run_id=run_id,
            path=normalise(path, "/"),
            role="source",
            sha256=row["config_sha256"],
            semantic_sha256=semantic_digest(tree),
            text=stored.text,
            text_truncated=int(stored.truncated),
            values_json=json.dumps(redact_tree(jsonable(tree)), ensure_ascii=False),
            hyperparameters_json=json.dumps(hyperparameters(tree), ensure_ascii=False),
        )
        self.connection.execute(
            "UPDATE runs SET config_id = ?, config_state = 'ok' WHERE id = ? AND config_id IS NULL", (config_id, run_id)
        )

    def _model(self, model: sqlite3.Row) -> None:
        path = normalise(model["model_path"], "/")
        stage = self.connection.execute(
            "SELECT stage FROM old_training_runs WHERE model_id = ? ORDER BY (output_dir = ?) DESC, stage = 'rl' DESC",
            (model["id"], model["output_dir"]),
        ).fetchone()
        run_id = self._run(model["output_dir"] or run_dir_of(path), stage["stage"] if stage else None)
        step = model["checkpoint_step"]
        self._insert(
            "checkpoints",
            id=model["id"],
            key=entity_key("checkpoint", path),
            run_id=run_id,
            path=path,
            step=step if isinstance(step, int) else checkpoint_step(path) or 0,
            kind="weights",
            indexed_at=parse_time(model["indexed_at"]) or now(),
        )

    def _edge(self, row: sqlite3.Row) -> None:
        model = self.connection.execute("SELECT * FROM checkpoints WHERE id = ?", (row["model_id"],)).fetchone()
        run_id = self.training[row["id"]]
        if model is None or model["run_id"] == run_id or not row["checkpoint_path"]:
            return
        path = normalise(row["checkpoint_path"], "/")
        known = self.connection.execute("SELECT id FROM checkpoints WHERE path = ?", (path,)).fetchone()
        parent = (
            known["id"]
            if known
            else self._insert(
                "checkpoints",
                key=entity_key("checkpoint", path),
                run_id=run_id,
                path=path,
                step=checkpoint_step(path) or 0,
                kind="weights",
                indexed_at=now(),
            )
        )
        self._insert(
            "lineage_edges",
            child_run_id=model["run_id"],
            parent_checkpoint_id=parent,
            parent_ref=path,
            relation="init",
        )

    def _wandb(self) -> None:
        for row in self.connection.execute("SELECT * FROM old_wandb_runs ORDER BY id").fetchall():
            run_id = self.training.get(row["training_run_id"])
            if run_id is None:
                continue
            self._insert(
                "wandb_runs",
                run_id=run_id,
                wandb_run_id=row["run_id"],
                project=row["project"],
                entity=row["entity"],
                name=row["name"],
                url=mask_credentials(row["url"]) if row["url"] else None,
                offline=int(bool(row["offline"])),
                launch_spec_path=row["launch_spec_path"],
                local_run_path=row["local_run_path"],
                source="launch" if row["launch_spec_path"] else "local",
            )
            self._launch(run_id, row)

    def _launch(self, run_id: int, row: sqlite3.Row) -> None:
        if not row["launch_spec_path"]:
            return
        raw: str | None = None
        try:
            raw = json.dumps(redact_tree(json.loads(row["raw_launch_json"] or "null")), ensure_ascii=False)
        except ValueError:
            raw = None
        ordinal = self.connection.execute("SELECT count(*) + 1 FROM attempts WHERE run_id = ?", (run_id,)).fetchone()
        self._insert(
            "attempts",
            run_id=run_id,
            ordinal=ordinal[0],
            kind="launch",
            attempt_key=row["launch_spec_path"],
            launch_spec_path=row["launch_spec_path"],
            raw_json=raw,
        )

    def _datasets(self) -> None:
        columns = {row["name"] for row in self.connection.execute("PRAGMA table_info(old_datasets)")}
        for row in self.connection.execute("SELECT * FROM old_datasets ORDER BY id").fetchall():
            values = {name: row[name] for name in row.keys() if name in columns and name != "raw_manifest_json"}  # noqa: SIM118
            self._insert("datasets", **values)
        for row in self.connection.execute("SELECT * FROM old_dataset_sources ORDER BY id").fetchall():
            self._insert(
                "dataset_sources",
                **{name: row[name] for name in row.keys() if name != "raw_source_json"},  # noqa: SIM118
            )
        for row in self.connection.execute("SELECT * FROM old_training_run_datasets").fetchall():
            run_id = self.training.get(row["training_run_id"])
            if run_id is not None:
                self._insert(
                    "run_datasets",
                    run_id=run_id,
                    dataset_id=row["dataset_id"],
                    role=row["role"] or "train",
                    configured_path=row["configured_path"] or "",
                )

    def _evaluations(self) -> None:
        for row in self.connection.execute("SELECT * FROM old_evaluations ORDER BY id").fetchall():
            checkpoint = self.connection.execute(
                "SELECT id, path, run_id, step FROM checkpoints WHERE id = ?", (row["model_id"],)
            ).fetchone()
            if checkpoint is None:
                continue
            run_dir = normalise(row["run_dir"], "/") if row["run_dir"] else ""
            config_path = normalise(row["config_path"], "/") if row["config_path"] else run_dir
            key = entity_key("evaluation", checkpoint["path"], config_path, run_dir)
            overall = self.connection.execute(
                "SELECT avg(mean_accuracy) FROM old_evaluation_benchmarks WHERE evaluation_id = ?", (row["id"],)
            ).fetchone()[0]
            self._insert(
                "evaluations",
                id=row["id"],
                key=key,
                checkpoint_id=checkpoint["id"],
                model_ref=checkpoint["path"],
                config_path=config_path,
                workflow=row["workflow"],
                run_dir=run_dir,
                status=row["status"] or "incomplete",
                error=mask_credentials(row["error"]) if row["error"] else None,
                overall=overall,
                indexed_at=now(),
                outcome_json=_clean_json(row["outcome_json"]),
                config_text=_clean_yaml(row["raw_config_yaml"]),
            )
            words = " ".join((checkpoint["path"], config_path, run_dir, row["workflow"] or "")).casefold()
            self.connection.execute(
                "INSERT OR IGNORE INTO evaluation_list SELECT id, key, ?, checkpoint_id, status, workflow, overall,"
                " model_ref, ?, finished_at, ? FROM evaluations WHERE id = ?",
                (checkpoint["run_id"], checkpoint["step"], words, row["id"]),
            )
        for row in self.connection.execute("SELECT * FROM old_evaluation_benchmarks").fetchall():
            names = (
                "evaluation_id",
                "dataset",
                "runs",
                "mean_accuracy",
                "stdev_accuracy",
                "min_accuracy",
                "max_accuracy",
            )
            self._insert("evaluation_benchmarks", **{name: row[name] for name in names})


def _clean_json(text: str | None) -> str | None:
    try:
        return json.dumps(redact_tree(json.loads(text)), ensure_ascii=False) if text else None
    except ValueError:
        return None


def _clean_yaml(text: str | None) -> str | None:
    if not text:
        return None
    try:
        return redacted_yaml(text, yaml.safe_load(text))
    except yaml.YAMLError:
        return mask_credentials(text, key="wandb")
