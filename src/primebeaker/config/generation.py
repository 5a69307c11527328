"""Which Prime-RL generation a TOML is written for.

A key that only one generation knows votes for it. Without a vote it is 0.7, the generation of the catalogued images;
votes for both are a mistake, since no Prime-RL accepts such a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from primebeaker.config.catalogue import GENERATIONS, Generation, Root, catalogue
from primebeaker.config.paths import format_path
from primebeaker.errors import UserError

__all__ = ["Vote", "detect_generation", "kind_of_toml", "votes"]

_SHOWN_KEYS = 6


class Vote(NamedTuple):
    """A key that only one generation knows.

    Args:
        generation: The one that knows it.
        path: Where it stands.
        known_as: Its path in the catalogue, ``[]`` for the elements of arrays.
    """

    generation: Generation
    path: tuple[str | int, ...]
    known_as: str


def kind_of_toml(values: Mapping[str, Any]) -> Root:
    """``rl`` when ``[orchestrator]`` or ``[trainer]`` is present, else ``sft``."""
    return "rl" if "orchestrator" in values or "trainer" in values else "sft"


def detect_generation(values: Mapping[str, Any], kind: Root | None = None) -> Generation:
    """The Prime-RL generation of a TOML.

    Args:
        values: The TOML's values.
        kind: The root it is read as; by default that of :func:`kind_of_toml`.

    Raises:
        UserError: It holds keys of both generations; the message lists them.
    """
    sides: dict[Generation, list[str]] = {generation: [] for generation in GENERATIONS}
    for vote in votes(values, kind or kind_of_toml(values)):
        sides[vote.generation].append(format_path(vote.path))
    old, new = sides["0.7"], sides["0.8"]
    if old and new:
        raise UserError(
            f"keys of two Prime-RL generations: {_listed(old)} of 0.7, {_listed(new)} of 0.8",
            hint="keep to one generation",
        )
    return "0.8" if new else "0.7"


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(keys[:_SHOWN_KEYS]) + more


def votes(values: Mapping[str, Any], kind: Root) -> list[Vote]:
    """Every key that only one generation knows; of nested ones the outermost."""
    return list(_votes(values, kind, "", ()))


def _votes(table: Mapping[str, Any], kind: Root, prefix: str, path: tuple[str | int, ...]) -> Iterator[Vote]:
    old, new = (catalogue(generation, kind) for generation in GENERATIONS)
    for key, value in table.items():
        before, after = old.child(prefix, key), new.child(prefix, key)
        where = (*path, key)
        if before is None and after is not None and not old.accepts_any_key(prefix):
            yield Vote("0.8", where, after)
        elif after is None and before is not None and not new.accepts_any_key(prefix):
            # Extensions belong to particular images of 0.7, not to the generation.
            if not old.fields[before].extension:
                yield Vote("0.7", where, before)
        elif before is not None and after is not None and before not in old.soft_prefixes | new.soft_prefixes:
            if isinstance(value, Mapping):
                yield from _votes(value, kind, before, where)
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    if isinstance(item, Mapping):
                        yield from _votes(item, kind, f"{before}[]", (*where, number))
