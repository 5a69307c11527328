"""The catalogue of Prime-RL's configuration fields, by generation and root.

The facts are data (``data/prime_rl_fields.json``), walked from Prime-RL's own config package by
``tools/regenerate_prime_rl_fields.py``; nothing of Prime-RL is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

__all__ = [
    "GENERATIONS",
    "Catalogue",
    "Field",
    "Generation",
    "Root",
    "catalogue",
    "protected_env_vars",
    "renamed_to",
]

Generation = Literal["0.7", "0.8"]
Root = Literal["rl", "sft", "inference"]

GENERATIONS: Final[tuple[Generation, Generation]] = ("0.7", "0.8")


@dataclass(frozen=True, slots=True)
class Field:
    """What Prime-RL accepts at one dotted path.

    Args:
        path: The path; ``[]`` stands for each element of an array, ``*`` for any key.
        types: ``string integer float boolean table array null any``; null is written as the string ``"None"``.
        facts: ``default``, ``enum``, bounds, ``items``, ``required``, ``variants``, as in the data file.
    """

    path: str
    types: frozenset[str]
    facts: Mapping[str, Any]
    extension: bool = False

    def legal_in(self, tags: Mapping[str, Any]) -> bool:
        """Whether the key is legal in a parent table whose tags have these values."""
        variants = self.facts.get("variants")
        return variants is None or _holds(variants, tags, unknown=True)

    def required_in(self, tags: Mapping[str, Any]) -> bool:
        """Whether the key must be given in a parent table whose tags have these values."""
        required = self.facts.get("required", False)
        return bool(required) if isinstance(required, bool) else _holds(required, tags, unknown=False)


def _holds(conditions: Sequence[str], tags: Mapping[str, Any], *, unknown: bool) -> bool:
    """Whether one of ``tag=value`` holds; ``unknown`` is the answer for a tag whose value is not known."""
    parts = [condition.partition("=") for condition in conditions]
    return any(tags[tag] == value if tag in tags else unknown for tag, _, value in parts)


@dataclass(frozen=True)
class Catalogue:
    """Every field of one root in one Prime-RL generation."""

    generation: Generation
    root: Root
    tag: str
    commit: str
    fields: Mapping[str, Field]
    open_tables: frozenset[str]
    soft_prefixes: frozenset[str]
    #: Table path -> key -> the field's path.
    children: Mapping[str, Mapping[str, str]] = field(repr=False)

    def child(self, table: str, key: str) -> str | None:
        """The path of ``key`` in ``table`` (empty: the top level), or None when Prime-RL does not know it."""
        known = self.children.get(table, {})
        return known.get(key) or known.get("*")

    def accepts_any_key(self, table: str) -> bool:
        """Whether a table takes any extra key: open, free-form, or filled by another package."""
        return table in self.open_tables or table in self.soft_prefixes or (table != "" and table not in self.children)

    def keys(self, table: str) -> list[str]:
        """The known keys of a table."""
        return [key for key in self.children.get(table, {}) if key != "*"]

    def tags(self, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The tags of a table: as written, else by default. A tag that is not legal itself is left out."""
        found: dict[str, Any] = {}
        for name in ("type", "name"):
            known = self.fields.get(f"{table}.{name}" if table else name)
            if known is None or "enum" not in known.facts:
                continue
            value = values.get(name, known.facts.get("default"))
            if value in known.facts["enum"]:
                found[name] = value
        return found

    def required(self, table: str) -> Iterator[tuple[str, Field]]:
        """The fields of a table that are required, in some variant at least."""
        for key, path in self.children.get(table, {}).items():
            known = self.fields.get(path)
            if known is not None and known.facts.get("required"):
                yield key, known


@cache
def _facts() -> dict[str, Any]:
    text = resources.files("primebeaker.config").joinpath("data/prime_rl_fields.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def catalogue(generation: Generation, root: Root) -> Catalogue:
    """The catalogue of one root in one generation."""
    facts = _facts()["generations"][generation]
    of_root = facts["roots"][root]
    fields = {path: _field(path, entry) for path, entry in of_root["fields"].items()}
    for path, entry in facts.get("extension_fields", {}).get(root, {}).items():
        fields.setdefault(path, _field(path, entry, extension=True))
    children: dict[str, dict[str, str]] = {}
    for path, known in fields.items():
        _register(children, path)
        for alias in known.facts.get("aliases", ()):
            children[path.rpartition(".")[0]][alias] = path
    return Catalogue(
        generation=generation,
        root=root,
        tag=facts["prime_rl"]["tag"],
        commit=facts["prime_rl"]["commit"],
        fields=fields,
        open_tables=frozenset(of_root["open_tables"]),
        soft_prefixes=frozenset(facts["soft_prefixes"]),
        children=children,
    )


def _field(path: str, entry: Mapping[str, Any], *, extension: bool = False) -> Field:
    return Field(path, frozenset(entry["type"].split("|")), entry, extension)


def _register(children: dict[str, dict[str, str]], path: str) -> None:
    """Enter a path, and the any-key tables on its way that have no field of their own."""
    while True:
        table, _, key = path.rpartition(".")
        known = children.setdefault(table, {})
        name = key.removesuffix("[]")
        if name in known:
            return
        known[name] = f"{table}.{name}" if table else name
        if not table.endswith(".*"):
            return
        path = table


def protected_env_vars(generation: Generation) -> frozenset[str]:
    """The environment variables that Prime-RL sets itself and refuses in ``env_vars`` tables."""
    return frozenset(_facts()["generations"][generation]["protected_env_vars"])


@cache
def _renames(root: Root, to: Generation) -> dict[str, str | None]:
    forward: dict[str, str | None] = _facts()["renamed_0.7_to_0.8"][root]
    if to == "0.8":
        return forward
    # The new name is followed by a note in some entries: "resume.step (...)".
    return {new.split(" ")[0]: old for old, new in forward.items() if new is not None}


def renamed_to(path: str, root: Root, to: Generation, present: Sequence[str]) -> str:
    """What became of a key that the generation ``to`` does not know: its new name, or that it was removed.

    Args:
        path: The key, elements of arrays as ``[]``.
        root: The root it belongs to.
        to: The generation that does not know it.
        present: The keys below it that the document holds, to pick the useful part of a long list.
    """
    renames = _renames(root, to)
    if path in renames:
        new = renames[path]
        return f"removed in Prime-RL {to}" if new is None else f"in Prime-RL {to} it is {new}"
    below = {old: new for old, new in renames.items() if old.startswith(f"{path}.") and new is not None}
    useful = {old: new for old, new in below.items() if old in present} or below
    for old, new in renames.items():
        if new is not None and path.startswith(f"{old}."):
            return f"in Prime-RL {to} {old} is {new}"
    if useful:
        return f"in Prime-RL {to} " + ", ".join(f"{old} is {new}" for old, new in useful.items())
    parent = path.rpartition(".")[0]
    for old, new in renames.items():
        if new is not None and parent and (new == parent or old == parent):
            return f"in Prime-RL {to} see {new}"
    return f"Prime-RL {to} has no such key"
