"""What a role is told: the variables of its task, checked completely before anything is created.

All faults are collected, one line each, so that a wrong launch is mended in one go.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from primebeaker.errors import Mistakes, UserError
from primebeaker.redaction import mask_url_passwords

__all__ = [
    "PROTECTED",
    "REGISTRY_SCHEMES",
    "GatewayInputs",
    "RoleInputs",
    "Tunables",
    "check_registry",
    "read_gateway_inputs",
    "read_inputs",
    "read_tunables",
]

Kind = Literal["rl", "sft"]

REGISTRY_SCHEMES = ("redis", "rediss", "head+file", "head+sqlite", "head+redis", "file", "sqlite")
_LAUNCH_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_MOST_NODES = 1024
# A single-node task has no rendezvous, but its waits need the same bound.
_SINGLE_NODE_TIMEOUT = 1800.0

#: Variables a setup command cannot change; every ``BEAKER_*`` is one of them too.
PROTECTED = frozenset(
    {
        "TOTAL_NODES",
        "GPUS_PER_NODE",
        "TRAINER_GPU_COUNT",
        "MIXED_INFER_GPU_COUNT",
        "TOTAL_INFER_RANKS",
        "CONFIG_PATH",
        "OUTPUT_DIR",
        "WORKING_DIR",
        "SCRATCH",
        "RENDEZVOUS_DIR",
        "LAUNCH_ID",
        "RENDEZVOUS_TIMEOUT_SECONDS",
        "REGISTRY",
        "GATEWAY_PORT",
        "GATEWAY_WORKERS",
        "REQUIRED_LITEREGISTRY_SERVICES",
        "LOCAL_SEARCH_MODEL_PATHS_JSON",
        "PRIMEBEAKER_SETUP_COMMAND",
        "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID",
    }
)


@dataclass(frozen=True, kw_only=True)
class Tunables:
    """Optional settings of a role; plain numbers, seconds.

    Attributes:
        grace: TERM to KILL, 0…300.
        heartbeat_timeout: Silence of a peer before it counts as lost; 0 switches the watch off.
        drain_timeout: Between the first and the second clean end of trainer and orchestrator.
        inference_ready_timeout: Until every engine answers.
        poll: Ceiling of every file poll, 0.05…10.
        stall: Without log output and new step for so long, the run counts as stuck; 0 switches the watch off.
        node_ip: Overrides address detection.
    """

    grace: float = 10.0
    heartbeat_timeout: float = 180.0
    drain_timeout: float = 1800.0
    inference_ready_timeout: float = 4200.0
    poll: float = 1.0
    stall: float = 0.0
    node_ip: str | None = None


@dataclass(frozen=True, kw_only=True)
class GatewayInputs:
    """What the tool gateway of a single-node task needs; fields as in :class:`RoleInputs`."""

    registry: str
    gateway_port: int
    gateway_workers: int
    required_services: Mapping[str, int]
    search_paths: tuple[str, ...]
    rendezvous_timeout: float


@dataclass(frozen=True, kw_only=True)
class RoleInputs:
    """The checked variables of one role.

    Attributes:
        kind: ``rl`` or ``sft``.
        rank: This replica's 0-based rank; rank 0 leads.
        nodes: Replicas of the topology.
        gpus_per_node: GPUs each replica uses.
        trainer_gpus: RL: GPUs of the trainer on rank 0.
        mixed_infer_gpus: RL: GPUs of rank 0 that serve inference.
        infer_ranks: RL: inference engines of the whole topology.
        registry: RL: LiteRegistry URI; may carry a password.
        required_services: RL: service name to least live count.
        search_paths: RL: local-search services to probe through the gateway.
        config_path: The training TOML (the snapshot where that is the valid one).
        notices: Lines for the log.
    """

    kind: Kind
    rank: int
    nodes: int
    gpus_per_node: int
    trainer_gpus: int = 0
    mixed_infer_gpus: int = 0
    infer_ranks: int = 0
    config_path: Path
    output_dir: Path
    working_dir: Path
    scratch: Path
    rendezvous_dir: Path
    launch_id: str
    rendezvous_timeout: float
    registry: str = ""
    gateway_port: int = 1212
    gateway_workers: int = 8
    required_services: Mapping[str, int]
    search_paths: tuple[str, ...] = ()
    setup_command: str | None = None
    leader_hostname: str | None = None
    job_id: str | None = None
    tunables: Tunables
    notices: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader."""
        return self.rank == 0

    @property
    def tmpdir(self) -> Path:
        """The node-local scratch directory of this role."""
        return Path(f"/tmp/primebeaker-{self.kind}-{self.launch_id}-{self.rank}")  # noqa: S108  named by launch and rank


class _Reader:
    """Reads variables of one environment, remembering every mistake."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.mistakes = Mistakes()

    def wrong(self, name: str, expected: str, *, hint: str | None = None) -> None:
        value = self.env.get(name)
        shown = "is not set" if value is None else f"= {mask_url_passwords(value)!r}"
        self.mistakes.add(UserError(f"{name} {shown}: expected {expected}", hint=hint))

    def integer(self, name: str, least: int, most: int | None = None, *, default: int | None = None) -> int:
        bounds = f"a whole number from {least} to {most}" if most is not None else f"a whole number of at least {least}"
        text = self.env.get(name)
        if text is None and default is not None:
            return default
        if text is None or not _INTEGER.fullmatch(text.strip()):
            self.wrong(name, bounds)
            return least
        value = int(text)
        if value < least or (most is not None and value > most):
            self.wrong(name, bounds)
            return least
        return value

    def number(
        self, name: str, least: float, most: float | None, default: float | None, *, above: bool = False
    ) -> float:
        text = self.env.get(name)
        if text is None and default is not None:
            return default
        try:
            value = float(text or "")
        except ValueError:
            value = math.nan
        fits = (value > least if above else value >= least) and (most is None or value <= most) and math.isfinite(value)
        if not fits:
            upper = f" up to {most:g}" if most is not None else ""
            self.wrong(name, f"a number {'above' if above else 'of at least'} {least:g}{upper}")
            return default or 1.0
        return value

    def directory(self, name: str) -> Path:
        text = self.env.get(name, "")
        path = Path(text)
        if not text or not path.is_absolute():
            self.wrong(name, "an absolute path")
            return Path("/")
        if not _creatable(path):
            self.wrong(name, "a directory that exists or can be created")
        return path

    def json(self, name: str, check: Callable[[Any], bool], expected: str, default: Any) -> Any:
        try:
            value = json.loads(self.env.get(name, ""))
        except ValueError:
            value = None
        if value is None or not check(value):
            self.wrong(name, expected)
            return default
        return value


def read_inputs(
    kind: Kind,
    env: Mapping[str, str],
    *,
    choose_config: Callable[[Mapping[str, str]], tuple[Path, tuple[str, ...]]],
    gpus_seen: int | None = None,
    tensor_parallel: Callable[[Path], int] = lambda path: 1,
) -> RoleInputs:
    """Check a role's environment.

    Args:
        kind: ``rl`` or ``sft``.
        env: The environment.
        choose_config: Gives the readable TOML and notices; raises :class:`UserError`.
        gpus_seen: GPUs of this machine, None when they cannot be counted.
        tensor_parallel: Reads the GPUs of one engine from the TOML.

    Raises:
        UserErrors: One line for every fault.
    """
    read = _Reader(env)
    rl = kind == "rl"
    nodes = read.integer("TOTAL_NODES", 1 if rl else 2, _MOST_NODES)
    rank = _rank(read, nodes)
    _same_count(read, nodes)
    gpus = read.integer("GPUS_PER_NODE", 1)
    _enough_gpus(read, gpus, gpus_seen)
    notices: tuple[str, ...] = ()
    config_path = Path("/")
    with read.mistakes.collect():
        config_path, notices = choose_config(env)
    output_dir, working_dir = read.directory("OUTPUT_DIR"), read.directory("WORKING_DIR")
    scratch, rendezvous_dir = read.directory("SCRATCH"), read.directory("RENDEZVOUS_DIR")
    if not _LAUNCH_ID.fullmatch(env.get("LAUNCH_ID", "")):
        read.wrong("LAUNCH_ID", "1 to 128 letters, digits, dots, dashes and underscores")
    timeout = read.number("RENDEZVOUS_TIMEOUT_SECONDS", 0, None, None, above=True)
    specific: dict[str, Any] = {"required_services": {}}
    used = gpus
    if rl:
        specific = _rl_inputs(read, nodes, gpus, config_path, tensor_parallel)
        used = specific["trainer_gpus"] + specific["mixed_infer_gpus"] if rank == 0 else gpus
    _enough_devices(read, used)
    tunables = _tunables(read)
    read.mistakes.raise_if_any()
    return RoleInputs(
        kind=kind,
        rank=rank,
        nodes=nodes,
        gpus_per_node=gpus,
        config_path=config_path,
        launch_id=env["LAUNCH_ID"],
        rendezvous_timeout=timeout,
        setup_command=env.get("PRIMEBEAKER_SETUP_COMMAND") or None,
        leader_hostname=env.get("BEAKER_LEADER_REPLICA_HOSTNAME") or None,
        job_id=env.get("BEAKER_JOB_ID") or None,
        tunables=tunables,
        notices=notices,
        output_dir=output_dir,
        working_dir=working_dir,
        scratch=scratch,
        rendezvous_dir=rendezvous_dir,
        **specific,
    )


def _rl_inputs(
    read: _Reader, nodes: int, gpus: int, config: Path, tensor_parallel: Callable[[Path], int]
) -> dict[str, Any]:
    trainer = read.integer("TRAINER_GPU_COUNT", 1)
    mixed = read.integer("MIXED_INFER_GPU_COUNT", 0)
    if trainer + mixed > gpus:
        read.mistakes.add(
            UserError(
                f"TRAINER_GPU_COUNT + MIXED_INFER_GPU_COUNT = {trainer + mixed}: "
                f"expected at most GPUS_PER_NODE = {gpus}"
            )
        )
    ranks = read.integer("TOTAL_INFER_RANKS", 1)
    with read.mistakes.collect():
        tp = tensor_parallel(config)
        inference_gpus = mixed + (nodes - 1) * gpus
        uneven = [size for size in (mixed, gpus if nodes > 1 else 0) if size % tp]
        if uneven:
            read.mistakes.add(
                UserError(f"{uneven[0]} inference GPUs of one replica do not divide into engines of {tp} GPUs")
            )
        elif ranks * tp != inference_gpus:
            read.wrong(
                "TOTAL_INFER_RANKS", f"{inference_gpus // tp}, since {inference_gpus} GPUs make engines of {tp} each"
            )
    return {
        "trainer_gpus": trainer,
        "mixed_infer_gpus": mixed,
        "infer_ranks": ranks,
        **_gateway_inputs(read),
    }


def read_gateway_inputs(env: Mapping[str, str]) -> GatewayInputs:
    """The gateway's variables, for a single-node task.

    Raises:
        UserErrors: One line for every fault.
    """
    read = _Reader(env)
    values = _gateway_inputs(read)
    timeout = read.number("RENDEZVOUS_TIMEOUT_SECONDS", 0, None, _SINGLE_NODE_TIMEOUT, above=True)
    read.mistakes.raise_if_any()
    return GatewayInputs(**values, rendezvous_timeout=timeout)


def _gateway_inputs(read: _Reader) -> dict[str, Any]:
    services = read.json(
        "REQUIRED_LITEREGISTRY_SERVICES",
        lambda value: (
            isinstance(value, dict) and all(name and type(count) is int and count >= 1 for name, count in value.items())
        ),
        "a JSON object of service names with whole numbers of at least 1",
        {},
    )
    paths = read.json(
        "LOCAL_SEARCH_MODEL_PATHS_JSON",
        lambda value: isinstance(value, list) and all(isinstance(item, str) and item for item in value),
        "a JSON array of non-empty strings",
        [],
    )
    return {
        "registry": _registry(read),
        "gateway_port": read.integer("GATEWAY_PORT", 1, 65535),
        "gateway_workers": read.integer("GATEWAY_WORKERS", 1),
        "required_services": services,
        "search_paths": tuple(paths),
    }


def _registry(read: _Reader) -> str:
    """``REGISTRY``, checked; its password never reaches a message."""
    uri = read.env.get("REGISTRY", "")
    with read.mistakes.collect():
        check_registry(uri, name="REGISTRY")
    return uri


def check_registry(uri: str, *, name: str) -> None:
    """Check the form of a LiteRegistry URI.

    Raises:
        UserError: Unknown scheme or empty rest; the text masks the password.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme in REGISTRY_SCHEMES and rest.strip("/"):
        return
    shown = f"= {mask_url_passwords(uri)!r}" if uri else "is not set"
    raise UserError(f"{name} {shown}: expected a LiteRegistry URI with one of {', '.join(REGISTRY_SCHEMES)}")


def _rank(read: _Reader, nodes: int) -> int:
    name = "BEAKER_REPLICA_RANK"
    if name not in read.env and nodes == 1:
        return 0
    return read.integer(name, 0, nodes - 1)


def _same_count(read: _Reader, nodes: int) -> None:
    count = read.env.get("BEAKER_REPLICA_COUNT")
    if count is not None and count.strip() != str(nodes):
        read.mistakes.add(
            UserError(f"TOTAL_NODES = {read.env.get('TOTAL_NODES')!r}: expected BEAKER_REPLICA_COUNT = {count}")
        )


def _enough_gpus(read: _Reader, gpus: int, seen: int | None) -> None:
    assigned = read.env.get("BEAKER_ASSIGNED_GPU_COUNT", "")
    if assigned.isascii() and assigned.isdigit() and gpus > int(assigned):
        read.wrong("GPUS_PER_NODE", f"at most BEAKER_ASSIGNED_GPU_COUNT = {assigned}")
    elif seen is not None and gpus > seen:
        read.wrong("GPUS_PER_NODE", f"at most the {seen} GPUs that nvidia-smi lists")


def _enough_devices(read: _Reader, used: int) -> None:
    """GPU indexes count into the role's own list of devices, where it has one."""
    own = read.env.get("CUDA_VISIBLE_DEVICES")
    if own is not None and len([device for device in own.split(",") if device.strip()]) < used:
        read.wrong("CUDA_VISIBLE_DEVICES", f"at least {used} devices")


_TUNABLES: dict[str, tuple[str, float, float | None]] = {
    "grace": ("PRIMEBEAKER_GRACE_SECONDS", 0, 300),
    "heartbeat_timeout": ("PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS", 0, None),
    "drain_timeout": ("PRIMEBEAKER_DRAIN_TIMEOUT_SECONDS", 0, None),
    "inference_ready_timeout": ("PRIMEBEAKER_INFERENCE_READY_TIMEOUT_SECONDS", 0, None),
    "poll": ("PRIMEBEAKER_POLL_SECONDS", 0.05, 10),
    "stall": ("PRIMEBEAKER_STALL_SECONDS", 0, None),
}


def _tunables(read: _Reader) -> Tunables:
    defaults = {field.name: field.default for field in fields(Tunables)}
    values = {
        name: read.number(variable, least, most, float(str(defaults[name])))
        for name, (variable, least, most) in _TUNABLES.items()
    }
    return Tunables(**values, node_ip=read.env.get("PRIMEBEAKER_NODE_IP") or None)


def read_tunables(env: Mapping[str, str]) -> Tunables:
    """The tunables alone, for a single-node task.

    Raises:
        UserErrors: One line for every fault.
    """
    read = _Reader(env)
    tunables = _tunables(read)
    read.mistakes.raise_if_any()
    return tunables


def _creatable(path: Path) -> bool:
    node = path
    while not node.exists():
        if node.parent == node:
            return False
        node = node.parent
    return node.is_dir() and os.access(node, os.W_OK | os.X_OK)
