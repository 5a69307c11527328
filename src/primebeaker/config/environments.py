"""Ids of environments in training TOMLs, and which of them are ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from primebeaker.bundled import ALIASES, CANONICAL, ENVIRONMENT_NAMESPACE, MODULES
from primebeaker.errors import did_you_mean

__all__ = ["EntryPath", "LegacyId", "UnknownId", "bundled_module", "entries", "legacy_ids", "unknown_bundled_ids"]

EntryPath = tuple[str | int, ...]


class LegacyId(NamedTuple):
    """The id of a classic environment and where it stands."""

    path: EntryPath
    value: str


class UnknownId(NamedTuple):
    """An id below our namespace that names nothing, with the nearest name."""

    path: EntryPath
    value: str
    hint: str | None


def entries(values: Mapping[str, Any], *collections: str) -> Iterator[tuple[EntryPath, Mapping[str, Any]]]:
    """The environment entries of a TOML.

    Args:
        values: The TOML's values.
        collections: Which of ``source`` (Prime-RL's own name) and ``env`` (of old files); by default both.
    """
    orchestrator = values.get("orchestrator")
    for side in ("train", "eval"):
        section = orchestrator.get(side) if isinstance(orchestrator, Mapping) else None
        for collection in collections or ("source", "env"):
            found = section.get(collection) if isinstance(section, Mapping) else None
            for number, entry in enumerate(found if isinstance(found, list) else []):
                if isinstance(entry, Mapping):
                    yield ("orchestrator", side, collection, number), entry


def legacy_ids(values: Mapping[str, Any]) -> Iterator[LegacyId]:
    """Every ``legacy.id`` that is a string."""
    for path, entry in entries(values):
        legacy = entry.get("legacy")
        if isinstance(legacy, Mapping) and isinstance(legacy.get("id"), str):
            yield LegacyId((*path, "legacy", "id"), legacy["id"])


def bundled_module(identifier: str) -> str | None:
    """The bundled module that an id's last dotted part names, or None for a foreign id.

    Verifiers turns ``-`` into ``_`` before it imports, so both spellings name the module.
    """
    module = identifier.partition(":")[0].rpartition(".")[2].replace("-", "_")
    return module if module in MODULES else None


def unknown_bundled_ids(values: Mapping[str, Any]) -> Iterator[UnknownId]:
    """Ids below ``primebeaker.environments`` that name no bundled environment."""
    for found in legacy_ids(values):
        module_path = found.value.partition(":")[0].replace("-", "_")
        if not module_path.startswith(f"{ENVIRONMENT_NAMESPACE}."):
            continue
        name = module_path.removeprefix(f"{ENVIRONMENT_NAMESPACE}.")
        if name in MODULES:
            continue
        words = {canonical.replace("-", "_"): module for canonical, module in CANONICAL.items()}
        words |= {alias.replace("-", "_"): CANONICAL[canonical] for alias, canonical in ALIASES.items()}
        module = words.get(name)
        hint = f"did you mean {module!r}?" if module else did_you_mean(name, MODULES)
        yield UnknownId(found.path, found.value, hint)
