"""Beaker's experiment spec, version 2, as typed data: only keys that Beaker knows, in one fixed order.

The file form is JSON, which Beaker reads as YAML.  Beaker first expands a spec file as a Go template, so text of a
user must never bring ``{{`` or ``}}`` into it (see :func:`spec_json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EnvVar", "ExperimentSpec", "TaskSpec", "WekaMount", "escape_templates", "spec_json"]


@dataclass(frozen=True)
class EnvVar:
    """One variable: a plain ``value``, or the name of a Beaker ``secret``."""

    name: str
    value: str | None = None
    secret: str | None = None

    def as_dict(self) -> dict[str, str]:
        """The ``envVars`` entry."""
        if self.secret is not None:
            return {"name": self.name, "secret": self.secret}
        return {"name": self.name, "value": self.value or ""}


@dataclass(frozen=True)
class WekaMount:
    """A Weka bucket mounted at a path of the task."""

    mount_path: str
    bucket: str

    def as_dict(self) -> dict[str, Any]:
        """The ``datasets`` entry."""
        return {"mountPath": self.mount_path, "source": {"weka": self.bucket}}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One task. Optional keys that are None are left out of the spec."""

    name: str
    image: Mapping[str, str]
    command: Sequence[str]
    env_vars: Sequence[EnvVar]
    datasets: Sequence[WekaMount]
    result_path: str
    clusters: Sequence[str]
    priority: str
    min_runtime_hours: int
    auto_resume: bool
    gpu_count: int
    cpu_count: float | None = None
    memory: str | None = None
    shared_memory: str | None = None
    timeout: str | None = None
    #: More than one replica makes the replicas meet: leader selection, one start, host network, one fate.
    replicas: int | None = None
    synchronized_start_timeout: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The task object."""
        task: dict[str, Any] = {"name": self.name, "image": dict(self.image), "command": list(self.command)}
        if self.replicas is not None:
            task["replicas"] = self.replicas
            task["leaderSelection"] = True
            task["synchronizedStartTimeout"] = self.synchronized_start_timeout
            task["hostNetworking"] = True
            task["propagateFailure"] = True
            task["propagatePreemption"] = True
        task["envVars"] = [variable.as_dict() for variable in self.env_vars]
        task["datasets"] = [mount.as_dict() for mount in self.datasets]
        task["result"] = {"path": self.result_path}
        task["resources"] = _without_none(
            {
                "gpuCount": self.gpu_count,
                "cpuCount": self.cpu_count,
                "memory": self.memory,
                "sharedMemory": self.shared_memory,
            }
        )
        task["context"] = {
            "priority": self.priority,
            "minRuntime": f"{self.min_runtime_hours}h",
            "autoResume": self.auto_resume,
        }
        task["constraints"] = {"cluster": list(self.clusters)}
        if self.timeout is not None:
            task["timeout"] = self.timeout
        return task


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec:
    """A whole experiment."""

    description: str
    tasks: Sequence[TaskSpec] = field(default_factory=tuple)
    budget: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The spec as JSON values, keys in their fixed order."""
        spec: dict[str, Any] = {
            "version": "v2",
            "description": self.description,
            "tasks": [task.as_dict() for task in self.tasks],
        }
        if self.budget is not None:
            spec["budget"] = self.budget
        return spec


def spec_json(spec: Mapping[str, Any]) -> str:
    """The bytes of a spec file: indent 2, final newline, and nothing that Beaker's template pass would expand."""
    return escape_templates(json.dumps(spec, indent=2, ensure_ascii=False)) + "\n"


def escape_templates(document: str) -> str:
    r"""Write ``{{`` and ``}}`` inside the strings of an indented JSON document as ``\u007b`` and ``\u007d`` pairs.

    Outside of strings an indented document never holds two braces in a row.
    """
    return document.replace("{{", "\\u007b\\u007b").replace("}}", "\\u007d\\u007d")


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
