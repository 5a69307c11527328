"""The bundled environments by name: 16 canonical names, 15 aliases, one module each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import MappingProxyType, ModuleType
from typing import Any

from primebeaker.bundled import ALIASES, CANONICAL, ENVIRONMENT_NAMESPACE, MODULES
from primebeaker.errors import did_you_mean

__all__ = ["ENVIRONMENTS", "environment_names", "load_environment_module"]

#: Every name, aliases included, to the base name of its module.
ENVIRONMENTS: MappingProxyType[str, str] = MappingProxyType(
    {**CANONICAL, **{alias: CANONICAL[name] for alias, name in ALIASES.items()}}
)

_BY_MODULE = {module.replace("_", "-"): module for module in MODULES}
_FACTORY_SUFFIX = ":load_environment"


class UnknownEnvironment(KeyError):
    """A name that is no environment; the text is one readable line."""

    def __str__(self) -> str:
        return str(self.args[0])


def environment_names() -> tuple[str, ...]:
    """All 31 names, sorted."""
    return tuple(sorted(ENVIRONMENTS))


def module_name(name: str) -> str:
    """The base name of the module that ``name`` stands for, in any of its spellings.

    Raises:
        UnknownEnvironment: No environment is called so (a ``KeyError``).
    """
    spelled = name.strip().removeprefix(f"{ENVIRONMENT_NAMESPACE}.").removesuffix(_FACTORY_SUFFIX).removesuffix(".py")
    normalized = spelled.replace("_", "-").lower()
    found = ENVIRONMENTS.get(normalized) or _BY_MODULE.get(normalized)
    if found is None:
        hint = did_you_mean(normalized, [*ENVIRONMENTS, *_BY_MODULE])
        raise UnknownEnvironment(
            f"unknown environment {name!r}{f'; {hint}' if hint else ''};"
            " python -m primebeaker.environments lists the names"
        )
    return found


def canonical_name(name: str) -> str:
    """The canonical name of the environment that ``name`` stands for; raises as :func:`module_name` does."""
    module = module_name(name)
    if module == "podman_terminal_verifier_env":
        return "podman-terminal"
    return next(canonical for canonical, known in CANONICAL.items() if known == module)


def load_environment_module(name: str) -> ModuleType:
    """Import and return the module of an environment, whose factory is ``load_environment``.

    Raises:
        KeyError: No environment is called so; the text is one line with the nearest name.
    """
    return importlib.import_module(f"{ENVIRONMENT_NAMESPACE}.{module_name(name)}")


def environment_spec(name: str) -> Any:
    """The declaration (:class:`EnvironmentSpec`) of an environment; needs no optional dependency."""
    return load_environment_module(name).SPEC


def bundled_specs() -> Iterator[Any]:
    """The declarations of all environments, by name."""
    for name in sorted(CANONICAL):
        yield environment_spec(name)
