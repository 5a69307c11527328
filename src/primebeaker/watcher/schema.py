"""The index's tables and views (schema version 2).

The views' names and columns are a contract with users who query the file themselves.  ``run_ancestors``, ``run_list``
and ``evaluation_list`` are derived from the other tables at the end of a scan, so that views and lists stay fast on
100,000 evaluations; ``files.facts`` keeps what was read from an unchanged file, so that it is never opened again.
"""

from __future__ import annotations

__all__ = ["BULK_INDEXES", "ENTITY_TABLES", "PARSER_VERSION", "SCHEMA_VERSION", "create_statements", "index_statements"]

SCHEMA_VERSION = 2
#: Raise it when a parser learns something new: every file is then read once more.
PARSER_VERSION = 1

#: Tables whose rows have a public key and can be missing.
ENTITY_TABLES = ("runs", "checkpoints", "evaluations")

_TABLES = """
CREATE TABLE schema_metadata (version INTEGER PRIMARY KEY, installed_at TEXT NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value);
CREATE TABLE scans (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, host TEXT, pid INTEGER, started_at TEXT NOT NULL, finished_at TEXT,
    status TEXT NOT NULL, roots_json TEXT, files_seen INTEGER, files_parsed INTEGER, issues INTEGER, error TEXT
);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, size INTEGER, mtime_ns INTEGER,
    inode INTEGER, device INTEGER, sha256 TEXT, parser_version INTEGER, status TEXT NOT NULL, error TEXT,
    first_scan_id INTEGER, last_scan_id INTEGER, parsed_at TEXT, facts TEXT
);
CREATE INDEX files_scan ON files(last_scan_id);
CREATE INDEX files_kind ON files(kind, status);
CREATE TABLE configs (
    id INTEGER PRIMARY KEY, run_id INTEGER REFERENCES runs(id) ON DELETE CASCADE,
    attempt_id INTEGER REFERENCES attempts(id) ON DELETE SET NULL, path TEXT NOT NULL, role TEXT NOT NULL,
    sha256 TEXT, semantic_sha256 TEXT, text TEXT, text_truncated INTEGER NOT NULL DEFAULT 0, values_json TEXT,
    hyperparameters_json TEXT
);
CREATE INDEX configs_run ON configs(run_id);
CREATE INDEX configs_attempt ON configs(attempt_id);
CREATE INDEX configs_path ON configs(path);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, run_dir TEXT UNIQUE, name TEXT NOT NULL, stage TEXT NOT NULL,
    state TEXT NOT NULL, base_model TEXT, config_state TEXT NOT NULL,
    config_id INTEGER REFERENCES configs(id) ON DELETE SET NULL, max_steps INTEGER, first_seen_at TEXT NOT NULL,
    indexed_at TEXT NOT NULL, missing_since TEXT, aliases_json TEXT NOT NULL DEFAULT '[]', digest TEXT
);
CREATE INDEX runs_stage_state ON runs(stage, state);
CREATE INDEX runs_config ON runs(config_id);
CREATE INDEX runs_name ON runs(name);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    kind TEXT NOT NULL, attempt_key TEXT NOT NULL, status TEXT, experiment_id TEXT, experiment_name TEXT,
    workspace TEXT, source_experiment_id TEXT, service_experiment_id TEXT, resume_step INTEGER, first_step INTEGER,
    last_step INTEGER, launch_spec_path TEXT, manifest_path TEXT, joint_config_path TEXT, started_at TEXT,
    raw_json TEXT, UNIQUE (run_id, attempt_key)
);
CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    attempt_id INTEGER REFERENCES attempts(id) ON DELETE SET NULL, path TEXT NOT NULL UNIQUE, step INTEGER NOT NULL,
    kind TEXT NOT NULL, stable INTEGER NOT NULL DEFAULT 0, trainer_shards INTEGER, orchestrator_progress INTEGER,
    size_bytes INTEGER, modified_at TEXT, indexed_at TEXT NOT NULL, missing_since TEXT
);
CREATE INDEX checkpoints_run_step ON checkpoints(run_id, step);
CREATE INDEX checkpoints_attempt ON checkpoints(attempt_id);
CREATE TABLE lineage_edges (
    id INTEGER PRIMARY KEY, child_run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    parent_checkpoint_id INTEGER REFERENCES checkpoints(id) ON DELETE CASCADE, parent_ref TEXT NOT NULL,
    relation TEXT NOT NULL, source_path TEXT, source_key TEXT, ambiguous INTEGER NOT NULL DEFAULT 0,
    UNIQUE (child_run_id, parent_ref, relation)
);
CREATE INDEX lineage_parent ON lineage_edges(parent_checkpoint_id);
CREATE TABLE wandb_runs (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    attempt_id INTEGER REFERENCES attempts(id) ON DELETE SET NULL, wandb_run_id TEXT, project TEXT, entity TEXT,
    name TEXT, url TEXT, offline INTEGER NOT NULL DEFAULT 0, state TEXT, launch_spec_path TEXT, local_run_path TEXT,
    local_paths_json TEXT NOT NULL DEFAULT '[]', source TEXT, UNIQUE (run_id, wandb_run_id)
);
CREATE INDEX wandb_attempt ON wandb_runs(attempt_id);
CREATE INDEX wandb_run_id ON wandb_runs(wandb_run_id);
CREATE TABLE datasets (
    id INTEGER PRIMARY KEY, identity_key TEXT NOT NULL UNIQUE, dataset_name TEXT, manifest_path TEXT, config_uid TEXT,
    kind TEXT, train_path TEXT, validation_path TEXT, hf_dataset_path TEXT, raw_manifest_json TEXT
);
CREATE TABLE dataset_sources (
    id INTEGER PRIMARY KEY, dataset_id INTEGER NOT NULL REFERENCES datasets(id) ON DELETE CASCADE,
    source_name TEXT NOT NULL, source_path TEXT, weight REAL, train_quota INTEGER, validation_quota INTEGER,
    raw_source_json TEXT, UNIQUE (dataset_id, source_name)
);
CREATE TABLE run_datasets (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    dataset_id INTEGER NOT NULL REFERENCES datasets(id) ON DELETE CASCADE, role TEXT NOT NULL,
    configured_path TEXT NOT NULL
);
CREATE INDEX run_datasets_run ON run_datasets(run_id);
CREATE INDEX run_datasets_dataset ON run_datasets(dataset_id);
CREATE TABLE evaluations (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    checkpoint_id INTEGER REFERENCES checkpoints(id) ON DELETE SET NULL, base_model TEXT, model_ref TEXT NOT NULL,
    config_path TEXT NOT NULL, workflow TEXT, run_dir TEXT NOT NULL DEFAULT '', status TEXT NOT NULL,
    provisional INTEGER NOT NULL DEFAULT 0, error TEXT, overall REAL, started_at TEXT, finished_at TEXT,
    indexed_at TEXT NOT NULL, missing_since TEXT, signature TEXT, digest TEXT, expected_json TEXT, observed_json TEXT,
    outcome_json TEXT, config_text TEXT, UNIQUE (config_path, model_ref, run_dir)
);
CREATE TABLE evaluation_benchmarks (
    id INTEGER PRIMARY KEY, evaluation_id INTEGER NOT NULL REFERENCES evaluations(id) ON DELETE CASCADE,
    dataset TEXT NOT NULL, runs INTEGER, mean_accuracy REAL, stdev_accuracy REAL, min_accuracy REAL,
    max_accuracy REAL, failed_runs INTEGER NOT NULL DEFAULT 0, UNIQUE (evaluation_id, dataset)
);
CREATE TABLE evaluation_metrics (
    id INTEGER PRIMARY KEY, evaluation_id INTEGER NOT NULL REFERENCES evaluations(id) ON DELETE CASCADE,
    name TEXT NOT NULL, value REAL, count INTEGER, UNIQUE (evaluation_id, name)
);
CREATE TABLE issues (
    id INTEGER PRIMARY KEY, scan_id INTEGER, severity TEXT NOT NULL, code TEXT NOT NULL, path TEXT NOT NULL,
    message TEXT NOT NULL, hint TEXT, owner TEXT NOT NULL DEFAULT '', UNIQUE (code, path, message)
);
CREATE INDEX issues_path ON issues(path);
CREATE INDEX issues_owner ON issues(owner);
CREATE TABLE run_ancestors (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    ancestor_run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, checkpoint_id INTEGER, depth INTEGER,
    PRIMARY KEY (run_id, ancestor_run_id)
) WITHOUT ROWID;
CREATE INDEX run_ancestors_up ON run_ancestors(ancestor_run_id);
CREATE TABLE run_list (
    run_id INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE, key TEXT NOT NULL, name TEXT, stage TEXT,
    state TEXT, last_step INTEGER, checkpoints INTEGER, evaluations INTEGER, overall REAL, best_step INTEGER,
    modified_at TEXT, wandb_count INTEGER, issues INTEGER, scores_json TEXT, parents_json TEXT, search TEXT
);
CREATE TABLE evaluation_list (
    evaluation_id INTEGER PRIMARY KEY REFERENCES evaluations(id) ON DELETE CASCADE, key TEXT NOT NULL,
    run_id INTEGER, checkpoint_id INTEGER, status TEXT, workflow TEXT, overall REAL, model TEXT, step INTEGER,
    finished_at TEXT, search TEXT
);
"""

#: Indexes that the first scan makes after its rows: sorting once costs a third of keeping them sorted meanwhile.
BULK_INDEXES = {
    "evaluations_checkpoint": "evaluations(checkpoint_id)",
    "evaluations_status": "evaluations(status)",
    # Few rows are missing, gone or without a checkpoint, so that counting the others is counting all.
    "evaluations_missing": "evaluations(id) WHERE missing_since IS NOT NULL",
    "evaluations_base": "evaluations(base_model, missing_since) WHERE base_model IS NOT NULL",
    "files_gone": "files(id) WHERE status = 'gone'",
    "benchmarks_dataset": "evaluation_benchmarks(dataset, mean_accuracy)",
    "evaluation_list_status": "evaluation_list(status, key)",
    "evaluation_list_overall": "evaluation_list(overall, key)",
    "evaluation_list_model": "evaluation_list(model, key)",
    "evaluation_list_step": "evaluation_list(step, key)",
    "evaluation_list_finished": "evaluation_list(finished_at, key)",
    "evaluation_list_run": "evaluation_list(run_id)",
    "evaluation_list_checkpoint": "evaluation_list(checkpoint_id)",
}

# depth 0 of run_ancestors is the run itself.
_VIEWS = """
CREATE VIEW model_provenance AS
SELECT c.path AS rl_model, c.step AS rl_checkpoint_step,
    CASE WHEN r.stage = 'sft' THEN NULL ELSE f.path END AS rl_config,
    CASE WHEN r.stage = 'sft' THEN NULL ELSE r.run_dir END AS rl_output_dir,
    CASE WHEN r.stage = 'sft' THEN c.path ELSE (SELECT p.path FROM checkpoints p WHERE p.id = s.checkpoint_id) END
        AS sft_checkpoint,
    CASE WHEN r.stage = 'sft' THEN f.path
        ELSE (SELECT g.path FROM runs q JOIN configs g ON g.id = q.config_id WHERE q.id = s.ancestor_run_id) END
        AS sft_config,
    CASE WHEN r.stage = 'sft' THEN r.run_dir ELSE (SELECT q.run_dir FROM runs q WHERE q.id = s.ancestor_run_id) END
        AS sft_output_dir,
    c.indexed_at AS indexed_at
FROM checkpoints c JOIN runs r ON r.id = c.run_id LEFT JOIN configs f ON f.id = r.config_id
LEFT JOIN run_ancestors s ON s.run_id = r.id AND s.depth > 0 AND s.ancestor_run_id = (
    SELECT a.ancestor_run_id FROM run_ancestors a JOIN runs q ON q.id = a.ancestor_run_id
    WHERE a.run_id = r.id AND a.depth > 0 AND q.stage = 'sft' ORDER BY a.depth, a.ancestor_run_id LIMIT 1);
CREATE VIEW model_wandb_runs AS
SELECT c.path AS rl_model, q.stage AS stage, w.wandb_run_id AS run_id, w.project AS project, w.entity AS entity,
    w.name AS name, w.url AS url, w.offline AS offline, w.launch_spec_path AS launch_spec_path,
    w.local_run_path AS local_run_path
FROM checkpoints c JOIN run_ancestors a ON a.run_id = c.run_id JOIN runs q ON q.id = a.ancestor_run_id
JOIN wandb_runs w ON w.run_id = q.id;
CREATE VIEW dataset_mix AS
SELECT c.path AS rl_model, q.stage AS stage, q.stage AS role, MIN(b.configured_path) AS configured_path,
    d.dataset_name AS dataset_name, d.manifest_path AS manifest_path, d.config_uid AS config_uid, d.kind AS kind,
    s.source_name AS source_name, s.source_path AS source_path, s.weight AS weight, s.train_quota AS train_quota,
    s.validation_quota AS validation_quota
FROM checkpoints c JOIN run_ancestors a ON a.run_id = c.run_id JOIN runs q ON q.id = a.ancestor_run_id
JOIN run_datasets b ON b.run_id = q.id JOIN datasets d ON d.id = b.dataset_id
LEFT JOIN dataset_sources s ON s.dataset_id = d.id
GROUP BY c.id, q.id, d.id, s.id;
CREATE VIEW evaluation_results AS
SELECT c.path AS rl_model, e.config_path AS config_path, e.workflow AS workflow, e.run_dir AS run_dir,
    e.status AS status, e.error AS error, b.dataset AS dataset, b.runs AS runs, b.mean_accuracy AS mean_accuracy,
    b.stdev_accuracy AS stdev_accuracy, b.min_accuracy AS min_accuracy, b.max_accuracy AS max_accuracy
FROM checkpoints c JOIN evaluations e ON e.checkpoint_id = c.id
LEFT JOIN evaluation_benchmarks b ON b.evaluation_id = e.id;
"""


def create_statements() -> str:
    """The SQL that makes an empty index of :data:`SCHEMA_VERSION`."""
    return _TABLES + "".join(f"{statement};\n" for statement in index_statements()) + _VIEWS


def index_statements() -> list[str]:
    """The SQL that makes each of :data:`BULK_INDEXES` that is not there."""
    return [f"CREATE INDEX IF NOT EXISTS {name} ON {columns}" for name, columns in BULK_INDEXES.items()]
