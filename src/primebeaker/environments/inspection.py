"""What the bundled environments are, and whether their arguments and rows are right; for people and for Python.

Nothing here contacts a service: checking loads the rows and the templates only.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from primebeaker.bundled import ALIASES, CANONICAL, ENVIRONMENT_NAMESPACE
from primebeaker.environments._shared.factory import EnvironmentSpec
from primebeaker.environments.registry import (
    UnknownEnvironment,
    canonical_name,
    environment_spec,
    load_environment_module,
    module_name,
)
from primebeaker.errors import UserError, did_you_mean
from primebeaker.json_keys import RepeatedKey, unique_keys

__all__ = ["CheckedEnvironment", "check_environment", "describe", "listing", "parse_arguments", "toml_block"]

_LOGGER = "primebeaker.environments"


def listing() -> list[dict[str, Any]]:
    """The bundled environments: name, aliases, module, one sentence, offered tools."""
    return [_identity(name, environment_spec(name)) for name in sorted(CANONICAL)]


def describe(name: str) -> dict[str, Any]:
    """Everything about one environment: arguments, tools with their schemas, rewards with their formulas.

    Raises:
        UserError: No environment is called so.
    """
    spec = _spec(name)
    return {
        **_identity(spec.name, spec),
        "arguments": [
            {
                "name": argument.name,
                "type": argument.kind.label,
                "required": argument.required,
                "default": None if argument.required else argument.default,
                "description": argument.description,
            }
            for argument in spec.arguments
        ],
        "tool_definitions": [dict(tool) for tool in spec.tools],
        "rewards": [
            {"name": reward.name, "weight": reward.weight, "formula": reward.formula} for reward in spec.rewards
        ],
        "toml": toml_block(spec),
    }


def toml_block(spec: EnvironmentSpec) -> str:
    """A minimal Prime-RL source entry for an environment, to paste into an RL TOML."""
    lines = [
        "[[orchestrator.train.source]]",
        f'name = "{spec.name}"',
        "",
        "[orchestrator.train.source.legacy]",
        f'id = "{ENVIRONMENT_NAMESPACE}.{CANONICAL[spec.name]}"',
        "",
        "[orchestrator.train.source.legacy.args]",
    ]
    for argument in spec.arguments:
        if argument.name == "dataset":
            lines.append('dataset = "data/train.jsonl"')
        elif argument.required:
            lines.append(f'{argument.name} = "…"  # {argument.description}')
        elif (argument.name == "split" or argument.name.endswith("_url")) and isinstance(argument.default, str):
            lines.append(f"{argument.name} = {json.dumps(argument.default)}")
    return "\n".join(lines) + "\n"


def _identity(name: str, spec: EnvironmentSpec) -> dict[str, Any]:
    return {
        "name": name,
        "aliases": [alias for alias, canonical in ALIASES.items() if canonical == name],
        "module": f"{ENVIRONMENT_NAMESPACE}.{CANONICAL[name]}",
        "summary": spec.summary,
        "tools": [tool["name"] for tool in spec.tools],
    }


def _spec(name: str) -> EnvironmentSpec:
    try:
        found = canonical_name(name)
    except UnknownEnvironment as error:
        near = did_you_mean(name, [*CANONICAL, *ALIASES])
        raise UserError(f"unknown environment {name!r}", hint=near or "primebeaker env list lists them") from error
    spec: EnvironmentSpec = environment_spec(found)
    return spec


def parse_arguments(given: tuple[str, ...]) -> dict[str, Any]:
    """Arguments from the command line: ``KEY=VALUE`` with a JSON value or plain text, or one JSON object.

    Raises:
        UserError: A word that is neither, or an argument that is given twice.
    """
    arguments: dict[str, Any] = {}
    for word in given:
        for key, value in _pairs(word):
            if key in arguments:
                raise UserError(f"--args {key} is given twice")
            arguments[key] = value
    return arguments


def _pairs(word: str) -> list[tuple[str, Any]]:
    if word.lstrip().startswith("{"):
        try:
            found = json.loads(word, object_pairs_hook=unique_keys)
        except RepeatedKey as error:
            raise UserError(f"--args: {error}", hint="give it once") from None
        except ValueError as error:
            raise UserError(f"--args {word!r}: not a JSON object: {error}") from None
        return list(found.items())
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--args {word!r}: expected KEY=VALUE or a JSON object")
    try:
        return [(key.strip(), json.loads(text))]
    except ValueError:
        return [(key.strip(), text)]


@dataclass(frozen=True)
class CheckedEnvironment:
    """An environment that loads.

    Args:
        environment: The Verifiers environment.
        name: Its canonical name.
        rows: How many rows it has.
        warnings: What was warned about while it loaded.
    """

    environment: Any
    name: str
    rows: int
    warnings: tuple[str, ...]


def check_environment(name: str, arguments: Mapping[str, Any]) -> CheckedEnvironment:
    """Load an environment: checks its arguments, its templates and every row, without contacting a service.

    Raises:
        UserError: What is wrong, by argument, or by file, row and column.
    """
    spec = _spec(name)
    module = load_environment_module(module_name(name))
    with _kept_signals(), _heard_warnings() as warnings:
        try:
            environment = module.load_environment(**arguments)
        except UserError:
            raise
        except (ImportError, TypeError, ValueError) as error:
            raise UserError(str(error)) from error
    return CheckedEnvironment(environment, spec.name, len(environment.get_dataset()), tuple(warnings))


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Verifiers installs signal handlers when an environment is built, which would break Ctrl-C of a command."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextmanager
def _heard_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a load instead of logging them."""
    heard: list[str] = []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger = logging.getLogger(_LOGGER)
    handler, propagated = Hearing(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
