"""Launch specs, their receipts, attempt manifests of resumes, and joint run files: who launched what, when, where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from primebeaker.watcher.paths import normalise
from primebeaker.watcher.timing import parse_time
from primebeaker.watcher.values import lookup, text_at

__all__ = ["JOINT_SCHEMA", "attempt_facts", "joint_facts", "launch_facts", "receipt_facts"]

JOINT_SCHEMA = "primebeaker.run/v1"

_ENV = {
    "OUTPUT_DIR": "output_dir",
    "CONFIG_PATH": "config_path",
    "WANDB_PROJECT": "wandb_project",
    "WANDB_ENTITY": "wandb_entity",
    "WANDB_NAME": "wandb_name",
    "WANDB_SHARED_RUN_ID": "wandb_shared_run_id",
    "WANDB_RUN_ID": "wandb_run_id",
    "WANDB_BASE_URL": "wandb_base_url",
    "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "service_experiment_id",
}


def launch_facts(spec: Any) -> dict[str, Any] | None:
    """What a launch spec says, or None when the JSON is none (no list ``tasks``).

    Keys: the variables of the tasks (the first task that sets one wins), ``task_names``.  A placeholder in angle
    brackets is no service experiment id.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("tasks"), list):
        return None
    facts: dict[str, Any] = {"output_dirs": [], "config_paths": []}
    for task in spec["tasks"]:
        if not isinstance(task, dict):
            continue
        for name, value in _environment(task):
            field = _ENV.get(name)
            if not field or not value:
                continue
            if field in ("output_dir", "config_path"):
                path = normalise(value)
                if path not in facts[f"{field}s"]:
                    facts[f"{field}s"].append(path)
            elif not value.startswith("<"):
                facts.setdefault(field, value)
    description = spec.get("description")
    if isinstance(description, str) and description:
        facts["description"] = description[:500]
    return {key: value for key, value in facts.items() if value}


def _environment(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    variables = task.get("envVars", task.get("env"))
    if isinstance(variables, dict):
        for name, value in variables.items():
            if isinstance(value, str):
                yield str(name), value
    elif isinstance(variables, list):
        for entry in variables:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("value"), str):
                yield entry["name"], entry["value"]


def receipt_facts(receipt: Any) -> dict[str, Any]:
    """What the receipt beside a launch spec says about the submitted experiment."""
    facts: dict[str, Any] = {name: text_at(receipt, name) for name in ("experiment_id", "experiment_name", "workspace")}
    facts["submitted_at"] = parse_time(lookup(receipt, "submitted_at"))
    facts["wandb_run"] = _wandb_run(lookup(receipt, "wandb_run"))
    return {key: value for key, value in facts.items() if value}


def attempt_facts(manifest: Any) -> dict[str, Any] | None:
    """What the manifest of a resume attempt says, or None when the JSON is none (no ``attempt_id``)."""
    identity = text_at(manifest, "attempt_id")
    if identity is None:
        return None
    facts: dict[str, Any] = {"attempt_id": identity, "created_at": parse_time(lookup(manifest, "created_at"))}
    for name in ("status", "source_experiment_id", "child_experiment_id", "experiment_name", "error"):
        facts[name] = text_at(manifest, name)
    for name in ("source_config_path", "generated_config_path"):
        path = text_at(manifest, name)
        facts[name] = normalise(path) if path else None
    step = lookup(manifest, "checkpoint.step")
    facts["step"] = step if isinstance(step, int) and not isinstance(step, bool) else None
    spec = text_at(manifest, "launch.spec_path")
    facts["spec_path"] = normalise(spec) if spec else None
    facts["wandb_run"] = _wandb_run(lookup(manifest, "launch.wandb_run"))
    return {key: value for key, value in facts.items() if value is not None}


def _wandb_run(value: Any) -> dict[str, str] | None:
    """A W&B run as written in receipts: an id, or a table with ``id``/``run_id``, ``project``, ``entity``, ``name``."""
    if isinstance(value, str) and value:
        return {"id": value.rstrip("/").rpartition("/")[2]}
    if not isinstance(value, dict):
        return None
    found = {name: text_at(value, name) for name in ("project", "entity", "name", "url")}
    found["id"] = text_at(value, "id") or text_at(value, "run_id")
    return {key: item for key, item in found.items() if item} or None


def joint_facts(document: Any, path: str) -> dict[str, Any] | None:
    """The training TOML that a joint run file names, or None when the YAML is no joint run."""
    if not isinstance(document, dict) or document.get("schema") != JOINT_SCHEMA:
        return None
    toml = text_at(document, "rl.toml")
    return {"config_path": normalise(toml, path.rpartition("/")[0])} if toml else {}
