"""Validation and resolution by Prime-RL's own config classes, with their faults told in our words.

Importing those classes costs seconds and pulls in Verifiers, so callers run this in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from primebeaker.errors import Mistakes, PrimeBeakerError, UserError, did_you_mean
from primebeaker.prime_rl.builtin import SubConfigs
from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.tables import Table

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["ConfigPackageError", "available", "resolve_rl", "resolve_sft"]


class ConfigPackageError(PrimeBeakerError):
    """Prime-RL's config package is installed but cannot be imported."""

    exit_code = 2


def available() -> bool:
    """Whether Prime-RL's config classes are installed (nothing of it is imported)."""
    try:
        return importlib.util.find_spec("prime_rl.configs") is not None
    except (ImportError, ValueError):
        return False


def resolve_rl(values: Mapping[str, Any], contract: Contract) -> SubConfigs:
    """The sub-configs as ``RLConfig`` resolves them.

    Raises:
        UserErrors: One line for every fault Prime-RL finds, with key, value and reason.
        ConfigPackageError: The config package itself does not import.
    """
    config = _validate("rl", values)
    return SubConfigs(
        trainer=_dump(config.trainer, contract),
        orchestrator=_dump(config.orchestrator, contract),
        inference=_dump(config.inference, contract, contract.files.inference_excludes),
    )


def resolve_sft(values: Mapping[str, Any], contract: Contract) -> Table:
    """The sub-config as ``SFTConfig`` resolves it; faults as in :func:`resolve_rl`."""
    return _dump(_validate("sft", values), contract, contract.files.sft_excludes)


def _validate(kind: Literal["rl", "sft"], values: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    name = {"rl": "RLConfig", "sft": "SFTConfig"}[kind]
    try:
        model: type[BaseModel] = getattr(importlib.import_module(f"prime_rl.configs.{kind}"), name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigPackageError(f"Prime-RL's config package cannot be imported: {reason}") from None
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        mistakes = Mistakes()
        for fault in error.errors(include_url=False):
            mistakes.add(_explain(model, values, fault))
        mistakes.raise_if_any()
        raise
    except Exception as error:
        # Its validators also import the tasksets a TOML names, so nearly anything can come out.
        raise UserError(f"refused by Prime-RL: {error}") from None


def _dump(model: Any, contract: Contract, exclude: frozenset[str] = frozenset()) -> Table:
    module = importlib.import_module("prime_rl.utils.config")
    dump = module.to_toml_dict if contract.generation == "0.7" else module.dump_resolved_config
    return dict(dump(model, exclude=set(exclude) or None))


def _explain(model: type[BaseModel], values: Mapping[str, Any], fault: Mapping[str, Any]) -> UserError:
    path = _dotted(fault["loc"], values)
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = _known_keys(model, fault["loc"][:-1])
        return UserError("unknown key", key=path, hint=did_you_mean(str(fault["loc"][-1]), known))
    if kind == "union_tag_invalid":
        context = fault.get("ctx", {})
        tag = str(context.get("discriminator", "type")).strip("'")
        return UserError(f"{path}.{tag} = {context.get('tag')!r}: expected one of {context.get('expected_tags')}")
    if kind == "missing":
        return UserError("this key is required", key=path)
    reason = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    value = fault.get("input")
    shown = f" = {value!r}" if isinstance(value, str | int | float | bool) else ""
    if not path:
        return UserError(reason)
    return UserError(f"{path}{shown}: {_reason(kind, reason)}")


_EXPECTED = {
    "int": "expected a whole number",
    "float": "expected a number",
    "bool": "expected true or false",
    "string": "expected text",
    "list": "expected a list",
    "tuple": "expected a list",
    "dict": "expected a table",
    "model": "expected a table",
    "path": "expected a path",
}


def _reason(kind: str, reason: str) -> str:
    word, _, rest = kind.partition("_")
    if rest in ("type", "parsing", "from_float", "attributes_type"):
        return _EXPECTED.get(word, reason)
    return reason.removeprefix("Input should be ").join(("expected ", "")) if "Input should be " in reason else reason


def _dotted(location: Sequence[int | str], values: Any) -> str:
    text = ""
    for position, part in enumerate(location):
        if isinstance(part, int):
            text += f"[{part}]"
        elif isinstance(values, Mapping) and part not in values and position < len(location) - 1:
            continue  # the name of a union's alternative, which the TOML does not spell
        else:
            text += f".{part}"
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            values = None
    return text.removeprefix(".")


def _known_keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    current: Any = model
    for part in location:
        fields = getattr(current, "model_fields", {})
        annotation = getattr(fields.get(part), "annotation", None)
        current = annotation if isinstance(annotation, type) else None
    return list(getattr(current, "model_fields", {}))
