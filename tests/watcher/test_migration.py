"""An index of schema 1 becomes one of schema 2: ids stay, credentials go, a crash leaves the old file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from primebeaker.watcher.database import open_reader
from primebeaker.watcher.errors import DatabaseUnusableError
from primebeaker.watcher.migrate import migrate

from .conftest import Tree
from .test_family import rows

_V1 = """
CREATE TABLE schema_metadata (version INTEGER PRIMARY KEY, installed_at TEXT);
INSERT INTO schema_metadata VALUES (1, '2025-01-01T00:00:00+00:00');
CREATE TABLE models (id INTEGER PRIMARY KEY, model_path TEXT UNIQUE, output_dir TEXT, checkpoint_step INTEGER,
    indexed_at TEXT);
CREATE TABLE training_runs (id INTEGER PRIMARY KEY, model_id INTEGER REFERENCES models(id), stage TEXT,
    checkpoint_path TEXT, output_dir TEXT, config_path TEXT, config_sha256 TEXT, raw_config_toml TEXT);
CREATE TABLE wandb_runs (id INTEGER PRIMARY KEY, training_run_id INTEGER, run_id TEXT, project TEXT, entity TEXT,
    name TEXT, url TEXT, offline INTEGER, launch_spec_path TEXT, local_run_path TEXT, raw_launch_json TEXT);
CREATE TABLE datasets (id INTEGER PRIMARY KEY, identity_key TEXT UNIQUE, dataset_name TEXT, manifest_path TEXT,
    config_uid TEXT, kind TEXT, train_path TEXT, validation_path TEXT, hf_dataset_path TEXT, raw_manifest_json TEXT);
CREATE TABLE training_run_datasets (training_run_id INTEGER, dataset_id INTEGER, role TEXT, configured_path TEXT);
CREATE TABLE dataset_sources (id INTEGER PRIMARY KEY, dataset_id INTEGER, source_name TEXT, source_path TEXT,
    weight REAL, train_quota INTEGER, validation_quota INTEGER, raw_source_json TEXT);
CREATE TABLE evaluations (id INTEGER PRIMARY KEY, model_id INTEGER, config_path TEXT, workflow TEXT, run_dir TEXT,
    status TEXT, error TEXT, raw_config_yaml TEXT, outcome_json TEXT);
CREATE TABLE evaluation_benchmarks (id INTEGER PRIMARY KEY, evaluation_id INTEGER, dataset TEXT, runs INTEGER,
    mean_accuracy REAL, stdev_accuracy REAL, min_accuracy REAL, max_accuracy REAL);
CREATE VIEW model_provenance AS SELECT model_path FROM models;
"""


def old_index(path: Path, runs: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(_V1)
    rl, sft = f"{runs}/math-rl", f"{runs}/chat-sft"
    connection.execute(
        "INSERT INTO models VALUES (41, ?, ?, 15, '2025-05-05T00:00:00+00:00')", (f"{rl}/weights/step_15", rl)
    )
    connection.execute("INSERT INTO models VALUES (42, '/gone/weights/step_7', '/gone', 7, 'x')")
    toml = '[orchestrator]\nbatch_size = 4\n[wandb]\napi_key = "hunter2hunter2"\n'
    connection.execute(
        "INSERT INTO training_runs VALUES (1, 41, 'rl', ?, ?, '/c/rl.toml', 'aa', ?)",
        (f"{rl}/weights/step_15", rl, toml),
    )
    connection.execute(
        "INSERT INTO training_runs VALUES (2, 41, 'sft', ?, ?, '/c/sft.toml', 'bb', 'not [toml')",
        (f"{sft}/weights/step_20", sft),
    )
    launch = json.dumps({"tasks": [{"envVars": [{"name": "HF_TOKEN", "value": "hunter3hunter3"}]}]})
    connection.execute(
        "INSERT INTO wandb_runs VALUES (1, 1, 'w1', 'p', 'e', 'n', 'https://wandb.ai/e/p/runs/w1', 0, '/l.json', NULL, ?)",
        (launch,),
    )
    connection.execute(
        "INSERT INTO datasets VALUES (5, 'hf:org/chat', 'org/chat', NULL, NULL, 'hf', NULL, NULL, NULL, NULL)"
    )
    connection.execute("INSERT INTO training_run_datasets VALUES (2, 5, 'train', 'org/chat')")
    connection.execute("INSERT INTO dataset_sources VALUES (9, 5, 'a', '/a', 0.5, 1, 2, NULL)")
    connection.execute(
        "INSERT INTO evaluations VALUES (77, 41, '/e.yaml', 'moss', '/r', 'complete', NULL, 'api_key: hunter4hunter4', '{}')"
    )
    connection.execute("INSERT INTO evaluation_benchmarks VALUES (1, 77, 'a', 3, 0.5, 0.1, 0.4, 0.6)")
    connection.commit()
    connection.close()


def test_everything_of_schema_1_is_carried_over(family: Tree) -> None:
    old_index(family.database, family.runs)
    with pytest.raises(DatabaseUnusableError, match="run primebeaker watcher update"):
        open_reader(family.database)
    family.update()
    assert rows(family, "SELECT max(version) FROM schema_metadata") == [(2,)]
    assert rows(family, "SELECT id, step FROM checkpoints WHERE id IN (41, 42) ORDER BY id") == [(41, 15), (42, 7)]
    assert rows(family, "SELECT missing_since IS NULL FROM checkpoints WHERE id = 41") == [(1,)]
    assert rows(family, "SELECT overall, status FROM evaluations WHERE id = 77") == [(0.5, "complete")]
    assert rows(family, "SELECT source_name, weight FROM dataset_sources WHERE dataset_id = 5") == [("a", 0.5)]
    assert rows(family, "SELECT count(*) FROM sqlite_master WHERE name LIKE 'old_%'") == [(0,)]
    assert rows(family, "SELECT sft_output_dir FROM model_provenance WHERE rl_checkpoint_step = 15") == [
        (str(family.runs / "chat-sft"),)
    ]
    data = family.database.read_bytes()
    for secret in (b"hunter2hunter2", b"hunter3hunter3", b"hunter4hunter4"):
        assert secret not in data
    backups = list(family.root.glob("index.sqlite3.backup-*"))
    assert len(backups) == 1
    assert sqlite3.connect(backups[0]).execute("SELECT count(*) FROM models").fetchone() == (2,)


def test_tables_of_another_program_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE schema_metadata (version INTEGER); INSERT INTO schema_metadata VALUES (1);")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseUnusableError, match="cannot be migrated"):
        migrate(path, warn=lambda _line: None)
    assert path.read_bytes() == before
