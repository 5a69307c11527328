"""The attempts of one run and its W&B runs, merged from launch specs, receipts, manifests and local directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from primebeaker.watcher.records import AttemptRecord, CheckpointRecord, WandbRecord

__all__ = ["attempts_of", "bind_checkpoints", "wandb_rows", "wandb_url"]

_UI_BASE = "https://wandb.ai"


def attempts_of(
    launches: Mapping[str, dict[str, Any]],
    receipts: Mapping[str, dict[str, Any]],
    manifests: Mapping[str, dict[str, Any]],
    local_ids: Sequence[str],
) -> list[AttemptRecord]:
    """The attempts of a run in their order.

    Args:
        launches: Launch specs of the run, by path.
        receipts: Receipts, by path of their spec.
        manifests: Attempt manifests, by path.
        local_ids: W&B run ids of local directories.
    """
    records: list[AttemptRecord] = []
    by_spec: dict[str, AttemptRecord] = {}
    for path, facts in launches.items():
        receipt = receipts.get(path, {})
        record = AttemptRecord(
            attempt_key=path,
            kind="launch",
            status="submitted" if receipt.get("experiment_id") else None,
            experiment_id=receipt.get("experiment_id"),
            experiment_name=receipt.get("experiment_name"),
            workspace=receipt.get("workspace"),
            service_experiment_id=facts.get("service_experiment_id"),
            launch_spec_path=path,
            started_at=receipt.get("submitted_at"),
            config_paths=list(facts.get("config_paths", ())),
        )
        ids = (facts.get("wandb_shared_run_id"), facts.get("wandb_run_id"), (receipt.get("wandb_run") or {}).get("id"))
        record.wandb_ids = list(dict.fromkeys(value for value in ids if value))
        records.append(record)
        by_spec[path] = record
    for path, facts in manifests.items():
        known = by_spec.get(facts.get("spec_path", ""))
        record = known or AttemptRecord(attempt_key=facts["attempt_id"], kind="resume")
        if known is None:
            records.append(record)
        record.attempt_key, record.kind, record.manifest_path = facts["attempt_id"], "resume", path
        record.launch_spec_path = record.launch_spec_path or facts.get("spec_path")
        record.status = facts.get("status") or record.status
        record.experiment_id = facts.get("child_experiment_id") or record.experiment_id
        record.experiment_name = record.experiment_name or facts.get("experiment_name")
        record.source_experiment_id = facts.get("source_experiment_id")
        record.resume_step = facts.get("step")
        record.started_at = record.started_at or facts.get("created_at")
        record.error = facts.get("error")
        names = (facts.get("generated_config_path"), facts.get("source_config_path"))
        record.config_paths = list(dict.fromkeys([*record.config_paths, *(name for name in names if name)]))
        run_id = (facts.get("wandb_run") or {}).get("id")
        if run_id and run_id not in record.wandb_ids:
            record.wandb_ids.append(run_id)
    _bind_local_ids(records, local_ids)
    records.sort(key=AttemptRecord.order)
    launched = False
    for record in records:
        if record.kind == "launch":
            record.kind = "retry" if launched else "launch"
            launched = True
    _fill_source_experiment(records)
    return records


def _bind_local_ids(records: list[AttemptRecord], local_ids: Sequence[str]) -> None:
    claimed = {run_id for record in records for run_id in record.wandb_ids}
    left = [run_id for run_id in local_ids if run_id not in claimed]
    if not records:
        records.extend(AttemptRecord(f"wandb:{run_id}", "unknown", wandb_ids=[run_id]) for run_id in left)
    elif len(records) == 1 and not records[0].wandb_ids and len(left) == 1:
        records[0].wandb_ids = left


def _fill_source_experiment(records: Sequence[AttemptRecord]) -> None:
    """The first launch without receipt is the experiment that the first resume started from."""
    sources = [record.source_experiment_id for record in records if record.source_experiment_id]
    known = {record.experiment_id for record in records}
    first = [record for record in records if record.kind == "launch" and not record.experiment_id]
    if len(first) == 1 and sources and sources[0] not in known:
        first[0].experiment_id = sources[0]


def bind_checkpoints(checkpoints: Sequence[CheckpointRecord], attempts: Sequence[AttemptRecord]) -> None:
    """Say which attempt wrote each checkpoint, and which steps each attempt covers."""
    for checkpoint in checkpoints:
        if len(attempts) == 1:
            checkpoint.attempt = attempts[0].attempt_key
            continue
        able = [
            attempt
            for attempt in attempts
            if (attempt.resume_step or 0) < checkpoint.step
            and not (attempt.started_at and checkpoint.modified_at and attempt.started_at > checkpoint.modified_at)
        ]
        latest = max((attempt.resume_step or 0 for attempt in able), default=None)
        best = [attempt for attempt in able if (attempt.resume_step or 0) == latest]
        if len(best) > 1 and all(attempt.started_at for attempt in best):
            best = [max(best, key=lambda attempt: attempt.started_at or "")]
        checkpoint.attempt = best[0].attempt_key if len(best) == 1 else None
    for attempt in attempts:
        steps = [checkpoint.step for checkpoint in checkpoints if checkpoint.attempt == attempt.attempt_key]
        attempt.first_step = (attempt.resume_step or 0) + 1
        attempt.last_step = max(steps, default=None)


def wandb_url(entity: str | None, project: str | None, run_id: str | None, base: str | None) -> str | None:
    """The run's page, when entity, project and id are known."""
    if not (entity and project and run_id):
        return None
    ui = _UI_BASE
    if base:
        parts = urlsplit(base)
        if parts.scheme in ("http", "https") and parts.netloc and "@" not in parts.netloc:
            ui = f"{parts.scheme}://{parts.netloc.removeprefix('api.')}"
    return "/".join([ui, quote(entity, safe=""), quote(project, safe=""), "runs", quote(run_id, safe="")])


def wandb_rows(
    attempts: Sequence[AttemptRecord],
    launches: Mapping[str, dict[str, Any]],
    manifests: Mapping[str, dict[str, Any]],
    settings: Mapping[str, Any],
    local: Sequence[Mapping[str, Any]],
    run_dir: str,
    *,
    flags: Sequence[str] = (),
    entity: str | None = None,
) -> list[WandbRecord]:
    """One row an id; a placeholder without id only when settings but no id are known.

    Args:
        attempts: The run's attempts, in order.
        launches: Its launch specs.
        manifests: Its attempt manifests.
        settings: The W&B table of its configuration.
        local: Its local W&B directories.
        run_dir: The run directory, for the paths of ``local``.
        flags: Ids given on the command line.
        entity: The entity of runs whose files name none.
    """
    rows: dict[str, WandbRecord] = {}

    def add(run_id: str, source: str, attempt: AttemptRecord | None) -> WandbRecord:
        row = rows.setdefault(run_id, WandbRecord(run_id, source=source))
        if attempt is not None and row.attempt is None:
            row.attempt = attempt.attempt_key
        return row

    for attempt in attempts:
        facts = launches.get(attempt.launch_spec_path or "", {})
        manifest = manifests.get(attempt.manifest_path or "", {}).get("wandb_run") or {}
        for run_id in attempt.wandb_ids:
            known = (facts.get("wandb_shared_run_id"), facts.get("wandb_run_id"))
            source = "launch" if run_id in known else "manifest" if attempt.manifest_path else "local"
            row = add(run_id, source, attempt)
            row.launch_spec_path = row.launch_spec_path or attempt.launch_spec_path
            for name in ("project", "entity", "name"):
                value = getattr(row, name) or facts.get(f"wandb_{name}") or manifest.get(name)
                setattr(row, name, value)
            row.url = row.url or facts.get("wandb_base_url")
    heads: dict[str, Mapping[str, Any]] = {}
    for entry in local:
        row = add(entry["id"], "local", None)
        row.local_paths.append(f"{run_dir}/{entry['path']}")
        row.local_run_path = row.local_run_path or row.local_paths[0]
        row.offline = int(bool(entry.get("offline")) or bool(row.offline))
        if entry.get("exit") is not None:
            row.state = "finished" if entry["exit"] == 0 else "failed"
        heads.setdefault(entry["id"], entry.get("head") or {})
    for run_id in flags:
        add(run_id, "flag", None)
    launch_env = {
        name: next((facts[f"wandb_{name}"] for facts in launches.values() if facts.get(f"wandb_{name}")), None)
        for name in ("project", "entity", "name")
    }
    if not rows:
        known_settings = {name: launch_env[name] or settings.get(name) for name in launch_env}
        if not any(known_settings.values()):
            return []
        row = WandbRecord(None, source="launch" if any(launch_env.values()) else "config")
        row.launch_spec_path = next(iter(launches), None)
        rows[""] = row
    for run_id, row in rows.items():
        head = heads.get(run_id, {})
        row.project = row.project or launch_env["project"] or settings.get("project") or head.get("project")
        row.entity = row.entity or launch_env["entity"] or settings.get("entity") or head.get("entity") or entity
        row.name = row.name or launch_env["name"] or settings.get("name") or head.get("name")
        row.offline = int(bool(row.offline) or bool(settings.get("offline")))
        base = row.url or os.environ.get("WANDB_BASE_URL")
        row.url = None if row.offline else wandb_url(row.entity, row.project, row.wandb_run_id, base)
    return list(rows.values())
