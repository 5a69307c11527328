"""From an environment's declaration to its ``load_environment``.

A module of this package declares an :class:`EnvironmentSpec` and a function that builds the environment from checked
values; :func:`factory` makes the ``load_environment`` that Verifiers calls.  Declarations import nothing heavy, so they
can be listed without the ``runtime`` extra.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primebeaker.environments._shared.arguments import VERIFIERS_ARGUMENTS, Argument, check_arguments
from primebeaker.environments._shared.behaviour import Reward

__all__ = ["EnvironmentSpec", "Values", "arguments_elsewhere", "factory", "require_runtime", "verifiers_arguments"]

logger = logging.getLogger("primebeaker.environments")

#: The checked values of one load, by argument name.
Values = Mapping[str, Any]

_DISTRIBUTIONS = {
    "verifiers": "verifiers",
    "datasets": "datasets",
    "literegistry_tool_client": "literegistry-tool-client",
}


@dataclass(frozen=True)
class EnvironmentSpec:
    """What an environment is, as data.

    Args:
        name: The canonical name.
        summary: One sentence.
        arguments: The arguments of ``load_environment``, ``dataset`` first.
        rewards: Its reward functions and metrics.
        tools: Definitions of the tools offered with the default arguments.
        check: Rules over several arguments: pairs of the argument at fault and what is expected of it.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    rewards: Sequence[Reward]
    tools: tuple[Mapping[str, Any], ...] = ()
    check: Callable[[Values], Iterable[tuple[str, str]]] = lambda values: ()


def factory(spec: EnvironmentSpec, build: Callable[[Values], Any]) -> Callable[..., Any]:
    """Make the ``load_environment`` of an environment.

    Args:
        spec: Its declaration.
        build: Builds the Verifiers environment from checked values; may import heavy libraries.
    """

    def load_environment(*positional: Any, **keywords: Any) -> Any:
        require_runtime()
        given = dict(keywords)
        if len(positional) > 1:
            raise TypeError(f"{spec.name}: only the dataset may be given by position")
        if positional and "dataset" in given:
            raise TypeError(f"{spec.name}: dataset is given twice")
        if positional:
            given["dataset"] = positional[0]
        values, ignored = check_arguments(
            spec.name, spec.arguments, given, known_elsewhere=arguments_elsewhere, check=spec.check
        )
        for name in ignored:
            logger.warning("%s: argument %s is not used by this environment and is ignored", spec.name, name)
        return build(values)

    load_environment.__signature__ = _signature(spec)  # type: ignore[attr-defined]  # what Verifiers and help() show
    load_environment.__doc__ = f"{spec.summary}\n\nRaises ValueError or TypeError for a wrong argument or row."
    return load_environment


def verifiers_arguments(values: Values) -> dict[str, Any]:
    """The keywords that go to the Verifiers environment itself, without those that are applied to the rows."""
    applied = ("system_prompt", "few_shot")
    names = [argument.name for argument in VERIFIERS_ARGUMENTS if argument.name not in applied]
    return {name: values[name] for name in names if name in values}


def require_runtime() -> None:
    """Check that the libraries an environment needs are there.

    Raises:
        ImportError: One is missing; the text names it and how to install it.
    """
    for module, distribution in _DISTRIBUTIONS.items():
        if not _is_installed(module):
            raise ImportError(
                f"the environments need {distribution}, which is not installed: pip install 'primebeaker[runtime]'"
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def arguments_elsewhere() -> set[str]:
    """The names of the arguments of all bundled environments: TOML files share argument blocks."""
    from primebeaker.environments.registry import bundled_specs

    return {argument.name for spec in bundled_specs() for argument in spec.arguments}


def _signature(spec: EnvironmentSpec) -> inspect.Signature:
    kinds = inspect.Parameter
    # Arguments that must be given come first, as Python asks; all but the dataset are passed by keyword.
    ordered = sorted(spec.arguments, key=lambda argument: (argument.name != "dataset", not argument.required))
    parameters = [
        kinds(
            argument.name,
            kinds.POSITIONAL_OR_KEYWORD if argument.name == "dataset" else kinds.KEYWORD_ONLY,
            default=kinds.empty if argument.required else argument.default,
        )
        for argument in ordered
    ]
    return inspect.Signature([*parameters, kinds("verifiers_arguments", kinds.VAR_KEYWORD)])
