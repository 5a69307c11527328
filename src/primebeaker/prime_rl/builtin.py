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


def _shared(contract: Contract) -> dict[str, tuple[str, ...]]:
    """Shared key -> the keys it stands for. A sub-config's own value wins, but may not differ."""
    keys = contract.keys
    both = ["ckpt.interval", "ckpt.keep_last", "ckpt.keep_interval", keys.resume_step, keys.file_monitor]
    both += [f"{keys.wandb}.{name}" for name in ("project", "entity", "name", "group", "tags", "offline")]
    both += ["log.level", "log.json_logging", "model.name", "model.vlm", "max_steps", "rollout_transport"]
    both += [f"tokenizer.{name}" for name in ("name", "trust_remote_code", "chat_template")]
    targets: dict[str, tuple[str, ...]] = {key: (f"trainer.{key}", f"orchestrator.{key}") for key in both}
    targets["seq_len"] = ("trainer.model.seq_len", "orchestrator.seq_len")
    targets["ckpt.output_dir"] = ("trainer.ckpt.output_dir",)
    for key in ("log.level", "log.json_logging"):
        targets[key] += (f"inference.{key}",)
    targets["model.name"] += (keys.inference_model,)
    targets["tokenizer.chat_template"] += (keys.chat_template,)
    if contract.generation == "0.7":
        targets["model.vlm"] += ("inference.model.vlm",)
    return targets


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
    for shared, targets in _shared(contract).items():
        _propagate(data, shared, targets, mistakes)
    _propagate_output_dir(data, contract, mistakes)
    mistakes.raise_if_any()
    # A bare table switches the feature on for both sides.
    for name in ("ckpt", contract.keys.wandb, contract.keys.file_monitor.rpartition(".")[0]):
        if isinstance(lookup(data, name), dict):
            fill(data, f"trainer.{name}", {})
            fill(data, f"orchestrator.{name}", {})
    for key in ("trainer.model.name", "orchestrator.model.name", contract.keys.inference_model):
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
    if contract.generation == "0.7":
        expected_dirs = (output_dir, f"{output_dir}/run_default")
    else:
        # Without a name Prime-RL makes one up: nobody else can know that directory.
        run = lookup(data, "run.dir") or lookup(data, "run.name")
        expected_dirs = (f"{output_dir}/{run}" if run else output_dir,) * 2
    for target, expected in zip(("trainer.output_dir", "orchestrator.output_dir"), expected_dirs, strict=True):
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
