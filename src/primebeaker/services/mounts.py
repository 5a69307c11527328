"""Mounts of a spec that this machine does not have: the embedded engine runs a stack without them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["mount_warnings", "with_mounts_here"]


def mount_warnings(spec: Mapping[str, Any]) -> list[str]:
    """A warning for each place that tasks would mount and that does not exist here."""
    places = {mount["mountPath"]: None for task in spec["tasks"] for mount in task.get("datasets", ())}
    return [
        f"{place} does not exist on this machine; the services run without it"
        for place in places
        if not _is_here(place)
    ]


def with_mounts_here(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with only those mounts whose place exists on this machine."""

    def kept(task: Mapping[str, Any]) -> dict[str, Any]:
        mounts = [mount for mount in task.get("datasets", ()) if _is_here(mount["mountPath"])]
        others = {key: value for key, value in task.items() if key != "datasets"}
        return {**others, "datasets": mounts} if mounts else others

    return {**spec, "tasks": [kept(task) for task in spec["tasks"]]}


def _is_here(place: str) -> bool:
    return Path(place).exists()
