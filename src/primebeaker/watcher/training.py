"""What a training TOML says about its run: stage, directory, predecessors, datasets, W&B, hyperparameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from primebeaker.watcher.paths import normalise
from primebeaker.watcher.values import lookup, text_at

__all__ = ["datasets_of", "hyperparameters", "is_model_path", "stage_of", "training_facts"]

_WANDB_TABLES = (
    "wandb",
    "monitors.wandb",
    "trainer.wandb",
    "trainer.monitors.wandb",
    "orchestrator.monitors.wandb",
)
_MODEL_KEYS = ("trainer.model.name", "orchestrator.model.name", "inference.model.name", "model.name")

#: Summary field -> keys, the first present wins.
_HYPERPARAMETERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("learning_rate", ("trainer.optim.lr", "optim.lr")),
    ("min_learning_rate", ("trainer.scheduler.min_lr", "scheduler.min_lr")),
    ("weight_decay", ("trainer.optim.weight_decay", "optim.weight_decay")),
    ("beta1", ("trainer.optim.betas1", "optim.betas1")),
    ("beta2", ("trainer.optim.betas2", "optim.betas2")),
    ("max_steps", ("max_steps", "trainer.max_steps", "orchestrator.max_steps")),
    (
        "sequence_length",
        ("orchestrator.seq_len", "data.seq_len", "model.seq_len", "trainer.model.seq_len", "seq_len"),
    ),
    ("batch_size", ("orchestrator.batch_size", "data.batch_size")),
    ("micro_batch_size", ("data.micro_batch_size",)),
    ("group_size", ("orchestrator.group_size",)),
    ("kl_tau", ("trainer.loss.kl_tau",)),
    ("warmup_steps", ("trainer.scheduler.warmup_steps", "scheduler.warmup_steps")),
    ("scheduler", ("trainer.scheduler.type", "scheduler.type")),
    ("oversampling_factor", ("orchestrator.oversampling_factor",)),
)


def stage_of(tree: Mapping[str, Any]) -> str | None:
    """``rl``, ``sft``, or None for a TOML of another kind (inference only, environment servers)."""
    if isinstance(tree.get("orchestrator"), dict):
        return "rl"
    data = tree.get("data")
    if isinstance(data, dict) and (data.get("type") == "sft" or isinstance(data.get("name"), str)):
        return "sft"
    return None


def is_model_path(reference: str, repo_root: str, exists: bool | None = None) -> bool:
    """Whether a model reference is a path: absolute, ``./``, ``../``, ``~``, or existing under the repository.

    Args:
        reference: As written.
        repo_root: What a relative reference is looked for under.
        exists: The answer to that look, when it is known already.
    """
    if reference.startswith(("/", "./", "../", "~")):
        return True
    return os.path.exists(os.path.join(repo_root, reference)) if exists is None else exists  # noqa: PTH110, PTH118


def training_facts(tree: Mapping[str, Any], stage: str, repo_root: str) -> dict[str, Any]:
    """What linking needs from one training TOML, as JSON-able data.

    Keys: ``stage``, ``output_dir`` (absolute or None), ``run_dir`` (when ``[run]`` fixes it), ``references``
    (``[key, reference, is path]``), ``fork`` (directory and step of ``resume.dir``), ``datasets`` (``[role, path]``),
    ``wandb``, ``max_steps``, ``metrics`` (path of the metric log).
    """
    output = text_at(tree, "output_dir")
    output_dir = normalise(output, repo_root) if output else None
    chosen = text_at(tree, "run.dir") or text_at(tree, "run.name")
    references = []
    for key in _MODEL_KEYS:
        reference = text_at(tree, key)
        if reference:
            path = is_model_path(reference, repo_root)
            references.append([key, normalise(reference, repo_root) if path else reference, path])
    fork = text_at(tree, "resume.dir")
    steps = lookup(tree, "max_steps")
    metrics = text_at(tree, "monitors.file.path")
    facts: dict[str, Any] = {
        "stage": stage,
        "output_dir": output_dir,
        "run_dir": normalise(chosen, output_dir) if chosen and output_dir else None,
        "references": references,
        "fork": [normalise(fork, repo_root), _step(lookup(tree, "resume.step"))] if fork else None,
        "datasets": [[role, path] for role, path in datasets_of(tree, stage)],
        "wandb": _wandb(tree),
        "max_steps": _step(steps),
        "metrics": metrics,
    }
    return {key: value for key, value in facts.items() if value not in (None, [], {})}


def datasets_of(tree: Mapping[str, Any], stage: str) -> list[tuple[str, str]]:
    """``(role, path as written)`` of every dataset, each once."""
    pairs: list[tuple[str, str]] = []
    if stage == "sft":
        for role, key in (("train", "data.name"), ("validation", "val.data.name")):
            name = text_at(tree, key)
            if name:
                pairs.append((role, name))
    else:
        for role, key in (("train", "orchestrator.train"), ("eval", "orchestrator.eval")):
            pairs.extend((role, name) for name in _dataset_strings(lookup(tree, key)))
    return list(dict.fromkeys(pairs))


def _dataset_strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "dataset" and isinstance(item, str) and item:
                yield item
            else:
                yield from _dataset_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _dataset_strings(item)


def _wandb(tree: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for dotted in _WANDB_TABLES:
        table = lookup(tree, dotted)
        if isinstance(table, dict):
            settings = {
                key: table[key]
                for key in ("project", "entity", "name", "group")
                if isinstance(table.get(key), str) and table[key]
            }
            if table.get("offline") is True:
                settings["offline"] = True
            if isinstance(table.get("tags"), list):
                settings["tags"] = [tag for tag in table["tags"] if isinstance(tag, str)]
            break
    else:
        return {}
    name = text_at(tree, "run.name")
    if "name" not in settings and name:
        settings["name"] = name
    return settings or {"offline": False}


def _step(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def hyperparameters(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The compact summary shown beside a run; absent keys are left out."""
    summary: dict[str, Any] = {}
    for name, keys in _HYPERPARAMETERS:
        for key in keys:
            value = lookup(tree, key)
            if isinstance(value, str | int | float):
                summary[name] = value
                break
    return summary
