"""The resolver used where Prime-RL's own config classes are not installed (a rehearsal on a laptop).

It fills what the processes of a topology need from each other: output directories, ports, transports, checkpoint and
W&B settings; everything else is passed through as written.  Nothing is validated beyond that, which the caller says
in a notice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from primebeaker.errors import Mistakes, UserError
from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.tables import Table, drop, fill, lookup, put

__all__ = ["NOTICE", "SubConfigs", "resolve_rl", "resolve_sft"]

NOTICE = "config not validated by Prime-RL: its config package is not installed here"


class SubConfigs(NamedTuple):
    """The three sub-configs of an RL run, as plain tables."""

    trainer: Table
    orchestrator: Table
    inference: Table


#: Shared key -> the keys it stands for. A sub-config's own value wins, but may not differ.
_SHARED: Mapping[str, tuple[str, ...]] = {
    "model.name": ("trainer.model.name", "inference.model.name", "orchestrator.model.name"),
    "model.vlm": ("trainer.model.vlm", "inference.model.vlm", "orchestrator.model.vlm"),
    "log.level": ("trainer.log.level", "orchestrator.log.level", "inference.log.level"),
    "log.json_logging": ("trainer.log.json_logging", "orchestrator.log.json_logging", "inference.log.json_logging"),
    "ckpt.output_dir": ("trainer.ckpt.output_dir",),
    "rollout_transport": ("trainer.rollout_transport", "orchestrator.rollout_transport"),
    "max_steps": ("trainer.max_steps", "orchestrator.max_steps"),
    "seq_len": ("trainer.model.seq_len", "orchestrator.seq_len"),
    "tokenizer.chat_template": (
        "trainer.tokenizer.chat_template",
        "orchestrator.tokenizer.chat_template",
        "inference.model.chat_template",
    ),
    **{
        f"{table}.{name}": (f"trainer.{table}.{name}", f"orchestrator.{table}.{name}")
        for table, names in {
            "ckpt": ("interval", "resume_step", "keep_last", "keep_interval"),
            "wandb": ("project", "entity", "name", "group", "tags", "offline"),
            "file_monitor": ("filename",),
            "tokenizer": ("name", "trust_remote_code"),
        }.items()
        for name in names
    },
}
#: A bare table of this name switches the feature on for both sides.
_ENABLING = ("ckpt", "wandb", "file_monitor")


def resolve_rl(values: Mapping[str, Any], contract: Contract) -> SubConfigs:
    """The sub-configs of an RL TOML.

    Args:
        values: The TOML's values; not changed.
        contract: The Prime-RL version.

    Raises:
        UserErrors: A shared key and a sub-config key disagree.
    """
    data = copy.deepcopy(dict(values))
    for name in ("trainer", "orchestrator", "inference"):
        data.setdefault(name, {})
    mistakes = Mistakes()
    for shared, targets in _SHARED.items():
        _propagate(data, shared, targets, mistakes)
    _propagate_output_dir(data, contract, mistakes)
    mistakes.raise_if_any()
    for name in _ENABLING:
        if isinstance(data.get(name), dict):
            fill(data, f"trainer.{name}", {})
            fill(data, f"orchestrator.{name}", {})
    for key in ("trainer.model.name", "orchestrator.model.name", "inference.model.name"):
        fill(data, key, contract.default_model)
    fill(data, "trainer.log.ranks_filter", list(contract.default_ranks_filter))
    _resolve_transports(data, contract)
    _resolve_ports(data, contract)
    parts = SubConfigs(data["trainer"], data["orchestrator"], data["inference"])
    for key in contract.files.inference_excludes:
        drop(parts.inference, key)
    return parts


def resolve_sft(values: Mapping[str, Any], contract: Contract) -> Table:
    """The sub-config of an SFT TOML; ``values`` is not changed."""
    data = copy.deepcopy(dict(values))
    fill(data, "log.ranks_filter", list(contract.default_ranks_filter))
    for key in contract.files.sft_excludes:
        drop(data, key)
    return data


def _propagate(data: Table, shared: str, targets: tuple[str, ...], mistakes: Mistakes) -> None:
    value = lookup(data, shared)
    if value is None:
        return
    for target in targets:
        own = lookup(data, target)
        if own is not None and own != value:
            mistakes.add(_disagree(shared, value, target, own))
        fill(data, target, copy.deepcopy(value))


def _propagate_output_dir(data: Table, contract: Contract, mistakes: Mistakes) -> None:
    output_dir = lookup(data, "output_dir", "outputs")
    nested = f"{output_dir}/run_default" if contract.generation == "0.7" else output_dir
    for target, expected in (("trainer.output_dir", output_dir), ("orchestrator.output_dir", nested)):
        own = lookup(data, target)
        if own is not None and own != expected:
            mistakes.add(_disagree("output_dir", output_dir, target, own))
        fill(data, target, expected)


def _disagree(shared: str, value: object, target: str, own: object) -> UserError:
    return UserError(f"{shared} = {value!r} and {target} = {own!r} disagree", hint=f"keep one of them, best {shared}")


def _resolve_transports(data: Table, contract: Contract) -> None:
    shared = lookup(data, "weight_broadcast", {})
    lora = lookup(data, "trainer.model.lora") is not None
    kind = shared.get("type") or ("filesystem" if lora else contract.default_broadcast)
    broadcast: Table = {"type": kind}
    if kind == "nccl":
        broadcast = {"host": "localhost", "port": contract.ports.nccl, "timeout": 1200} | broadcast | shared
    elif kind == "nixl":
        broadcast = {"host": "localhost", "port": 8001, "timeout": 1200, "session_id": "default"} | broadcast | shared
    put(data, "trainer.weight_broadcast", dict(broadcast))
    put(data, "orchestrator.weight_broadcast", dict(broadcast))
    put(data, "inference.weight_broadcast", {"type": kind})
    for side in ("trainer", "orchestrator"):
        transport = lookup(data, f"{side}.rollout_transport", {})
        if transport.get("type", contract.default_transport) == "zmq":
            transport = {"type": "zmq", "host": "localhost", "port": contract.ports.zmq} | transport
        put(data, f"{side}.rollout_transport", transport)


def _resolve_ports(data: Table, contract: Contract) -> None:
    fill(data, contract.keys.router_port, contract.ports.router)
    port = lookup(data, contract.keys.router_port)
    fill(data, contract.keys.backend_port, port + contract.ports.backend_offset if isinstance(port, int) else port)
    fill(data, "inference.router", {})
    if isinstance(data["inference"]["router"], dict):
        fill(data, "inference.router.type", contract.router_type)
        if lookup(data, "inference.router.type") == contract.router_type:
            fill(data, "inference.router.policy", contract.router_policy)
