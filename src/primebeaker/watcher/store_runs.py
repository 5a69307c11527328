"""Writing the runs of a resolution: only those that changed, with keys and ids that never do."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from primebeaker.watcher.paths import checkpoint_step, entity_key, run_dir_of
from primebeaker.watcher.records import AttemptRecord, CheckpointRecord, DatasetRecord, RunRecord
from primebeaker.watcher.resolve import Resolution
from primebeaker.watcher.timing import now
from primebeaker.watcher.writing import Writer

__all__ = ["RunStore"]


@dataclass
class RunStore:
    """Writes runs.

    Attributes:
        writer: The scan's writer.
        digests: (sha256, meaning) of each configuration, part of a run's fingerprint.
        parent_exists: Whether the directory above a run directory is there (else the file system may be unmounted).
        indexed: Checkpoints that are new or changed, by stage.
        unchanged: Paths of checkpoints that are not.
        removed: How many entities went missing.
    """

    writer: Writer
    digests: Mapping[str, tuple[str, str]]
    parent_exists: Callable[[str], bool]
    indexed: dict[str, list[str]] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    removed: int = 0
    touched: set[int] = field(default_factory=set)

    def store(self, resolution: Resolution) -> None:
        """Write everything of a resolution that differs from the index."""
        self._ids: dict[str, int] = {}
        self._dataset_ids: dict[str, int] = {}
        changed: list[RunRecord] = []
        known = {
            row["run_dir"]: row
            for row in self.writer.execute("SELECT id, run_dir, key, digest, state, stage, missing_since FROM runs")
        }
        with self.writer.batch():
            for dataset in resolution.datasets.values():
                self._dataset(dataset)
        for record in resolution.runs.values():
            row = known.get(record.run_dir)
            gone = not record.exists and self._is_missing(record, row)
            held = not record.exists and row is not None and not gone and row["state"] not in ("planned", "missing")
            if held and row is not None:
                # The file system may be unmounted: what is known stays as it is.
                self._ids[record.run_dir] = row["id"]
                continue
            digest = self._digest(record, gone)
            if row is not None and row["digest"] == digest:
                self._ids[record.run_dir] = row["id"]
                self.unchanged += [item.path for item in record.checkpoints if item.kind != "referenced"]
                continue
            with self.writer.batch():
                self._run(record, row, digest, gone)
            changed.append(record)
        for record in changed:
            with self.writer.batch():
                self._edges(record)

    def _is_missing(self, record: RunRecord, row: Any) -> bool:
        if record.unreadable:
            return False
        seen = row is not None and row["state"] not in ("planned",)
        if seen:
            return row["missing_since"] is not None or row["state"] == "missing" or self.parent_exists(record.run_dir)
        return not record.configs and not record.attempts

    def _digest(self, record: RunRecord, gone: bool) -> str:
        parts = [repr(record), str(gone), *(str(self.digests.get(path)) for path, _, _ in record.configs)]
        return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def _dataset(self, record: DatasetRecord) -> None:
        facts = record.facts
        raw = json.dumps(facts, ensure_ascii=False, sort_keys=True) if facts else None
        row = self.writer.execute(
            "SELECT id, raw_manifest_json, dataset_name FROM datasets WHERE identity_key = ?", (record.identity_key,)
        ).fetchone()
        if row is not None and row["raw_manifest_json"] == raw and row["dataset_name"] == record.name:
            self._dataset_ids[record.identity_key] = row["id"]
            return
        values = {
            "dataset_name": record.name,
            "manifest_path": record.manifest_path,
            "config_uid": facts.get("config_uid"),
            "kind": facts.get("kind") or record.identity_key.partition(":")[0],
            "train_path": facts.get("train_path"),
            "validation_path": facts.get("validation_path"),
            "hf_dataset_path": facts.get("hf_dataset_path"),
            "raw_manifest_json": raw,
        }
        if row is None:
            dataset_id = self.writer.insert("datasets", identity_key=record.identity_key, **values)
        else:
            dataset_id = row["id"]
            self.writer.update("datasets", dataset_id, **values)
            self.writer.execute("DELETE FROM dataset_sources WHERE dataset_id = ?", (dataset_id,))
        for source in facts.get("sources", ()):
            self.writer.insert(
                "dataset_sources",
                dataset_id=dataset_id,
                raw_source_json=json.dumps(source, ensure_ascii=False),
                **source,
            )
        self._dataset_ids[record.identity_key] = dataset_id

    def _run(self, record: RunRecord, row: Any, digest: str, gone: bool) -> None:
        moment = now()
        state, missing_since = record.state, None
        if gone:
            state = "missing"
            seen = row is not None and row["state"] != "planned"
            missing_since = (row["missing_since"] or moment) if row is not None else None
            self.removed += int(seen and row["missing_since"] is None)
        values: dict[str, Any] = {
            "name": record.name,
            "stage": record.stage if record.stage != "unknown" or row is None else row["stage"],
            "state": state,
            "base_model": record.base_model,
            "config_state": record.config_state,
            "max_steps": record.max_steps,
            "indexed_at": moment,
            "missing_since": missing_since,
            "aliases_json": json.dumps(record.aliases, ensure_ascii=False),
            "digest": digest,
        }
        if row is None:
            key = entity_key("run", record.run_dir)
            run_id = self.writer.insert("runs", key, run_dir=record.run_dir, first_seen_at=moment, **values)
        else:
            run_id = row["id"]
            self.writer.update("runs", run_id, **values)
        self._ids[record.run_dir] = run_id
        self.touched.add(run_id)
        attempts = self._attempts(run_id, record.attempts)
        self._configs(run_id, record, attempts)
        self._checkpoints(run_id, record, attempts, values["stage"], gone)
        self._wandb(run_id, record, attempts)
        self.writer.execute("DELETE FROM run_datasets WHERE run_id = ?", (run_id,))
        for identity, role, path in record.datasets:
            dataset_id = self._dataset_ids[identity]
            self.writer.insert("run_datasets", run_id=run_id, dataset_id=dataset_id, role=role, configured_path=path)

    def _attempts(self, run_id: int, records: Sequence[AttemptRecord]) -> dict[str, int]:
        stored = {
            row["attempt_key"]: row["id"]
            for row in self.writer.execute("SELECT id, attempt_key FROM attempts WHERE run_id = ?", (run_id,))
        }
        ids: dict[str, int] = {}
        for ordinal, record in enumerate(records, 1):
            values = {
                name: value
                for name, value in vars(record).items()
                if name not in ("attempt_key", "error", "wandb_ids", "config_paths")
            }
            values["ordinal"] = ordinal
            values["raw_json"] = json.dumps(
                {"error": record.error, "wandb_ids": record.wandb_ids, "config_paths": record.config_paths}
            )
            known = stored.pop(record.attempt_key, None)
            if known is None:
                known = self.writer.insert("attempts", run_id=run_id, attempt_key=record.attempt_key, **values)
            else:
                self.writer.update("attempts", known, **values)
            ids[record.attempt_key] = known
        for row_id in stored.values():
            self.writer.execute("DELETE FROM attempts WHERE id = ?", (row_id,))
        return ids

    def _configs(self, run_id: int, record: RunRecord, attempts: Mapping[str, int]) -> None:
        stored = {
            row["path"]: row["id"]
            for row in self.writer.execute("SELECT id, path FROM configs WHERE run_id = ?", (run_id,))
        }
        chosen: int | None = None
        for path, role, attempt in record.configs:
            config_id = stored.pop(path, None) or self._content_row(path)
            if config_id is None:
                continue
            self.writer.update(
                "configs", config_id, run_id=run_id, role=role, attempt_id=attempts.get(attempt) if attempt else None
            )
            if path == record.config_path:
                chosen = config_id
        for config_id in stored.values():
            self.writer.update("configs", config_id, run_id=None, attempt_id=None)
        self.writer.update("runs", run_id, config_id=chosen)

    def _content_row(self, path: str) -> int | None:
        """A row with the file's content that belongs to no run, else a copy of one that does."""
        row = self.writer.execute(
            "SELECT id, run_id FROM configs WHERE path = ? ORDER BY run_id IS NOT NULL LIMIT 1", (path,)
        ).fetchone()
        if row is None or row["run_id"] is None:
            return None if row is None else int(row["id"])
        cursor = self.writer.execute(
            "INSERT INTO configs (path, role, sha256, semantic_sha256, text, text_truncated, values_json,"
            " hyperparameters_json) SELECT path, role, sha256, semantic_sha256, text, text_truncated, values_json,"
            " hyperparameters_json FROM configs WHERE id = ?",
            (row["id"],),
        )
        return int(cursor.lastrowid or 0)

    def _checkpoints(self, run_id: int, record: RunRecord, attempts: Mapping[str, int], stage: str, gone: bool) -> None:
        stored = {
            row["step"]: row
            for row in self.writer.execute("SELECT * FROM checkpoints WHERE run_id = ? ORDER BY id", (run_id,))
        }
        moment = now()
        for item in record.checkpoints:
            values = _checkpoint_values(item, attempts)
            row = stored.pop(item.step, None)
            if row is None:
                key = entity_key("checkpoint", item.path)
                self.writer.insert("checkpoints", key, run_id=run_id, indexed_at=moment, missing_since=None, **values)
            elif item.kind == "referenced" and row["kind"] != "referenced":
                # Its directory was seen once: it is missing now, not merely referred to.
                if row["missing_since"] is None and record.exists and not record.unreadable:
                    self.writer.update("checkpoints", row["id"], missing_since=moment)
                    self.removed += 1
                continue
            elif row["missing_since"] is None and all(row[name] == value for name, value in values.items()):
                if item.kind != "referenced":
                    self.unchanged.append(item.path)
                continue
            else:
                self.writer.update("checkpoints", row["id"], indexed_at=moment, missing_since=None, **values)
            if item.kind != "referenced":
                self.indexed.setdefault(stage, []).append(item.path)
        absent = gone or (record.exists and not record.unreadable)
        for row in stored.values():
            if absent and row["missing_since"] is None and row["kind"] != "referenced":
                self.writer.update("checkpoints", row["id"], missing_since=moment)
                self.removed += 1

    def _wandb(self, run_id: int, record: RunRecord, attempts: Mapping[str, int]) -> None:
        self.writer.execute("DELETE FROM wandb_runs WHERE run_id = ?", (run_id,))
        for item in record.wandb:
            values = {name: value for name, value in vars(item).items() if name not in ("attempt", "local_paths")}
            self.writer.insert(
                "wandb_runs",
                run_id=run_id,
                attempt_id=attempts.get(item.attempt) if item.attempt else None,
                local_paths_json=json.dumps(item.local_paths, ensure_ascii=False),
                **values,
            )

    def _edges(self, record: RunRecord) -> None:
        run_id = self._ids[record.run_dir]
        self.writer.wrote()
        self.writer.execute("DELETE FROM lineage_edges WHERE child_run_id = ?", (run_id,))
        for edge in record.edges:
            parent = self._parent(edge.parent_ref) if edge.is_checkpoint else None
            self.writer.insert(
                "lineage_edges",
                child_run_id=run_id,
                parent_checkpoint_id=parent,
                parent_ref=edge.parent_ref,
                relation=edge.relation,
                source_path=edge.source_path,
                source_key=edge.source_key,
                ambiguous=edge.ambiguous,
            )

    def _parent(self, reference: str) -> int | None:
        home = self._ids.get(run_dir_of(reference))
        row = self.writer.execute(
            "SELECT id FROM checkpoints WHERE run_id = ? AND step = ?", (home, checkpoint_step(reference))
        ).fetchone()
        return None if row is None else int(row["id"])

    def move(self, run_id: int, old: str, new: str, aliases: Sequence[str]) -> None:
        """A run directory that was moved: the run keeps key and id, the old place becomes an alias."""
        spellings = sorted({*aliases, old} - {new})
        self.writer.update(
            "runs",
            run_id,
            run_dir=new,
            name=posixpath.basename(new) or new,
            aliases_json=json.dumps(spellings, ensure_ascii=False),
            digest=None,
            missing_since=None,
        )
        for row in self.writer.execute("SELECT id, path FROM checkpoints WHERE run_id = ?", (run_id,)).fetchall():
            if row["path"].startswith(old + "/"):
                self.writer.update("checkpoints", row["id"], path=new + row["path"][len(old) :])


def _checkpoint_values(item: CheckpointRecord, attempts: Mapping[str, int]) -> dict[str, Any]:
    values = {name: value for name, value in vars(item).items() if name != "attempt"}
    values["attempt_id"] = attempts.get(item.attempt) if item.attempt else None
    return values


def count_by_stage(indexed: Mapping[str, Sequence[str]]) -> Counter[str]:
    """How many checkpoints of each stage were indexed."""
    return Counter({stage: len(paths) for stage, paths in indexed.items()})
