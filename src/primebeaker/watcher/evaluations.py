"""What an evaluation YAML evaluates, where its results go, and what counts as all of them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

from primebeaker.watcher.paths import normalise
from primebeaker.watcher.training import is_model_path
from primebeaker.watcher.values import lookup, text_at

__all__ = ["ARCHIVE_WORKFLOW", "DEFAULT_WORKFLOW", "Subject", "archive_subject", "subject_of"]

DEFAULT_WORKFLOW = "moss"
ARCHIVE_WORKFLOW = "moss-archive"
_LAUNCHER_LINE = "Launching LiteRegistry stack for "
_LAUNCHER_BYTES = 2**20
_OWN_KEYS = ("evaluation", "search_agent", "inference", "rejection")


class Subject(NamedTuple):
    """One evaluation as configured.

    Attributes:
        model: Absolute path of a checkpoint, or a hub id; empty when unknown.
        is_path: Whether ``model`` is a path.
        config_path: The YAML, or for an archive its ``launcher.log`` or directory.
        workflow: As stored.
        run_dir: The result directory, None when the YAML names none.
        expected: What a whole result holds, by kind: ``datasets``, ``runs``, ``rows``, ``records``, ``rounds``,
            ``output_path``.
    """

    model: str
    is_path: bool
    config_path: str
    workflow: str
    run_dir: str | None
    expected: dict[str, Any]


def subject_of(document: Any, config_path: str, repo_root: str) -> Subject | None:
    """The subject of an evaluation YAML, or None when it has none of the known shapes."""
    if not isinstance(document, dict):
        return None
    workflow = text_at(document, "workflow")
    if workflow == "search-agent":
        model = text_at(document, "search_agent.model") or text_at(document, "model")
        run_dir = text_at(document, "search_agent.run_dir") or text_at(document, "run_dir")
        expected = _search_expected(document)
    elif workflow == "rubric-judge-audit":
        model = text_at(document, "inference.model")
        run_dir = text_at(document, "outputs.audit_dir")
        expected = _audit_expected(document)
    elif workflow == "rejection-sampling":
        model, run_dir = text_at(document, "rejection.model"), text_at(document, "rejection.output_dir")
        expected = _only(rounds=_count(lookup(document, "rejection.rounds")))
    elif workflow not in (None, "standard") and not isinstance(document.get("evaluation"), dict):
        model = text_at(document, "arguments.model_path") or text_at(document, "arguments.model")
        output = text_at(document, "arguments.output_path")
        run_dir = text_at(document, "run_dir") or (posixpath.dirname(output) if output else None)
        expected = _only(output_path=normalise(output, repo_root) if output else None)
    else:
        nested = isinstance(document.get("evaluation"), dict)
        model = text_at(document, "evaluation.model") or text_at(document, "model")
        run_dir = text_at(document, "evaluation.run_dir") or text_at(document, "run_dir")
        if not nested and not (model and run_dir):
            return None
        expected = _standard_expected(document["evaluation"] if nested else document)
    if model is None and not any(isinstance(document.get(key), dict) for key in _OWN_KEYS):
        return None
    is_path = model is not None and is_model_path(model, repo_root)
    return Subject(
        model=normalise(model, repo_root) if model and is_path else model or "",
        is_path=is_path,
        config_path=config_path,
        workflow=workflow or DEFAULT_WORKFLOW,
        run_dir=normalise(run_dir, repo_root) if run_dir else None,
        expected=expected,
    )


def _only(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _standard_expected(table: Mapping[str, Any]) -> dict[str, Any]:
    listed = table.get("datasets")
    if isinstance(listed, str):
        listed = [part.strip() for part in listed.split(",")]
    datasets = [name for name in listed if isinstance(name, str) and name] if isinstance(listed, list) else None
    return _only(datasets=datasets or None, runs=_count(table.get("runs")))


def _search_expected(document: Mapping[str, Any]) -> dict[str, Any]:
    nested = lookup(document, "search_agent")
    tables = [table for table in (nested, document) if isinstance(table, dict)]

    def setting(name: str) -> int | None:
        return next((found for table in tables if (found := _count(table.get(name))) is not None), None)

    rows = setting("max_rows")
    if rows is None:
        return {}
    each = setting("rollouts_per_example")
    return {"rows": rows * (1 if each is None else each)}


def _audit_expected(document: Mapping[str, Any]) -> dict[str, Any]:
    names = ("min_step", "max_step", "step_interval", "rubrics_per_step")
    least, most, interval, each = (_count(lookup(document, f"sample.{name}")) for name in names)
    if least is None or most is None or most < least:
        return {}
    interval = 5 if interval is None else interval
    if not interval:
        return {}
    steps = most // interval - (least + interval - 1) // interval + 1
    return {"records": max(steps, 0) * (128 if each is None else each)}


def archive_subject(directory: str, launcher_log: bytes | None) -> Subject:
    """The subject of a result directory without YAML, from the first MiB of its ``launcher.log``."""
    model = ""
    if launcher_log is not None:
        for line in launcher_log[:_LAUNCHER_BYTES].decode("utf-8", "replace").splitlines():
            if line.startswith(_LAUNCHER_LINE) and line[len(_LAUNCHER_LINE) :].strip():
                model = line[len(_LAUNCHER_LINE) :].strip()
                break
    is_path = model.startswith(("/", "./", "../", "~"))
    return Subject(
        model=normalise(model, directory) if is_path else model,
        is_path=is_path,
        config_path=directory if launcher_log is None else f"{directory}/launcher.log",
        workflow=ARCHIVE_WORKFLOW,
        run_dir=directory,
        expected={},
    )
