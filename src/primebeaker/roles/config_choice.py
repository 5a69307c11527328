"""Which copy of the training TOML a task reads, and the few values every rank needs from it."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import Contract, contract_for
from primebeaker.prime_rl.tables import lookup

__all__ = ["ChosenConfig", "EnginePlan", "choose_config", "contract_of", "engine_plan", "load_values"]


class ChosenConfig(NamedTuple):
    """The TOML to read, and lines for the log."""

    path: Path
    notices: tuple[str, ...]


def choose_config(env: Mapping[str, str]) -> ChosenConfig:
    """The snapshot when it still has the recorded digest, else ``CONFIG_PATH``.

    Raises:
        UserError: Neither can be read, or ``CONFIG_PATH`` is not absolute.
    """
    config = Path(env.get("CONFIG_PATH", ""))
    if not config.is_absolute():
        raise UserError(f"CONFIG_PATH = {str(config)!r}: expected an absolute path")
    digest = env.get("PRIMEBEAKER_CONFIG_SHA256")
    snapshot = env.get("PRIMEBEAKER_CONFIG_SNAPSHOT")
    current = _digest(config)
    if digest and snapshot and _digest(Path(snapshot)) == digest:
        changed = current is not None and current != digest
        notice = f"{config} changed since the launch; the snapshot {snapshot} is used"
        return ChosenConfig(Path(snapshot), (notice,) if changed else ())
    if current is None:
        raise UserError(f"CONFIG_PATH = {str(config)!r}: expected a readable file")
    if digest and current != digest:
        return ChosenConfig(config, (f"{config} changed since the launch and is used, since no valid snapshot exists",))
    return ChosenConfig(config, ())


def load_values(path: Path) -> dict[str, Any]:
    """The TOML's values.

    Raises:
        UserError: It is unreadable or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    except ValueError as error:
        raise UserError(f"not valid TOML: {error}", file=path) from None


def contract_of(values: Mapping[str, Any]) -> Contract:
    """The Prime-RL version a TOML is written for, as the launch saw it.

    Raises:
        UserError: It holds keys of two generations.
    """
    # The catalogue of Prime-RL's fields is read once, in the first phase; other commands of a role's program need none.
    from primebeaker.config.generation import detect_generation

    return contract_for(detect_generation(values))


class EnginePlan(NamedTuple):
    """What every rank must know before it publishes its ports."""

    tp: int
    backend_port: int


def engine_plan(values: Mapping[str, Any], contract: Contract) -> EnginePlan:
    """GPUs of one engine, and the first engine port a replica prefers.

    Raises:
        UserError: A value is not a positive whole number.
    """
    tp = _positive(values, contract.keys.tensor_parallel, 1)
    router = _positive(values, contract.keys.router_port, contract.ports.router)
    return EnginePlan(tp, _positive(values, contract.keys.backend_port, router + contract.ports.backend_offset))


def _positive(values: Mapping[str, Any], key: str, default: int) -> int:
    value = lookup(values, key, default)
    if type(value) is not int or value < 1:
        raise UserError(f"{key} = {value!r}: expected a whole number of at least 1")
    return value


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
