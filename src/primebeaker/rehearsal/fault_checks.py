"""Which faults a launch has a place for: its replicas, their processes, its ports, its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from primebeaker.errors import Mistakes, UserError, did_you_mean
from primebeaker.launch.topology import Topology
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.faults import Fault

__all__ = ["Stage", "check_faults", "missing_services", "processes_of"]

_MULTI_NODE = frozenset({"late", "no-service"})
_RL = frozenset({"no-service", "model-bad", "tool-outage"})


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a rehearsal has that faults can strike.

    Attributes:
        topology: The launch's.
        values: The training TOML.
        steps: How many steps are made.
        gateway: Whether a gateway runs.
        services: Names of the tool services that run here.
        ports: What each port of the launch is for.
    """

    topology: Topology
    values: Table
    steps: int
    gateway: bool = False
    services: Sequence[str] = ()
    ports: Mapping[int, str] | None = None

    @property
    def replicas(self) -> int:
        """How many replicas the rehearsal starts."""
        return self.topology.nodes


def processes_of(stage: Stage, rank: int) -> tuple[str, ...]:
    """The processes that a replica has, as faults call them."""
    shape = stage.topology
    if shape.kind == "sft":
        workers = shape.gpus_per_node if shape.multi_node else int(lookup(stage.values, "deployment.num_gpus", 1))
        return ("role", "trainer", *_numbered("worker", workers))
    tp = int(lookup(stage.values, GEN_0_7.keys.tensor_parallel, 1))
    if rank > 0:
        return ("role", *_numbered("engine", shape.gpus_per_node // tp))
    if shape.multi_node:
        workers, engines = shape.trainer_gpus, shape.mixed_infer_gpus // tp
    else:
        workers = int(lookup(stage.values, "deployment.num_train_gpus", 1))
        engines = int("inference" in stage.values)
    router = engines or shape.multi_node
    has_router = router and lookup(stage.values, "inference", {}).get("router") != "None"
    return (
        "role",
        *(("gateway",) if stage.gateway else ()),
        *(("router",) if has_router else ()),
        *_numbered("engine", engines),
        "orchestrator",
        "trainer",
        *_numbered("worker", workers),
    )


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{number}" for number in range(count))


def check_faults(faults: Sequence[Fault], stage: Stage) -> None:
    """Refuse faults that this launch has no place for, before anything is started.

    Raises:
        UserErrors: One line for each.
    """
    mistakes = Mistakes()
    for fault in faults:
        with mistakes.collect():
            _check(fault, stage)
    mistakes.raise_if_any()


def missing_services(faults: Sequence[Fault]) -> tuple[tuple[str, int], ...]:
    """The services the run is told to wait for, so that it does so in vain."""
    return tuple((fault.values["name"], 1) for fault in faults if fault.what == "no-service")


def _check(fault: Fault, stage: Stage) -> None:
    where, what = f"--fault {fault.text!r}", fault.what
    if what in _MULTI_NODE and not stage.topology.multi_node:
        raise UserError(f"{where}: {what} needs a multi-node launch, whose replicas wait")
    if what in _RL and stage.topology.kind == "sft":
        raise UserError(f"{where}: {what} needs an RL launch")
    if fault.rank >= stage.replicas:
        count = stage.replicas
        there = "1 replica, rank 0" if count == 1 else f"{count} replicas, ranks 0 to {count - 1}"
        raise UserError(f"{where}: rank = {fault.rank}: this launch has {there}")
    if fault.when == "step" and not fault.has_own_moment and int(fault.at) > stage.steps:
        raise UserError(f"{where}: step {fault.at} never comes: this rehearsal makes {stage.steps}", hint="see --steps")
    if "process" in fault.values:
        _check_process(fault, stage, where)
    if what in ("corrupt", "midsave"):
        _check_checkpoint(fault, stage, where)
    if what == "tool-outage" and fault.values["name"] not in stage.services:
        running = ", ".join(stage.services) or "none"
        raise UserError(
            f"{where}: name = {fault.values['name']!r}: tool services of this rehearsal: {running}",
            hint=did_you_mean(fault.values["name"], stage.services),
        )
    if what == "port-busy" and stage.ports is not None and int(fault.values["port"]) not in stage.ports:
        known = ", ".join(f"{port} ({use})" for port, use in sorted(stage.ports.items())) or "none that are fixed"
        raise UserError(f"{where}: port = {fault.values['port']}: ports of this launch: {known}")


def _check_process(fault: Fault, stage: Stage, where: str) -> None:
    names = processes_of(stage, fault.rank)
    if fault.what == "exit" and fault.process in ("role", "gateway") and stage.topology.multi_node:
        raise UserError(
            f"{where}: {fault.process} is the real program and takes no orders", hint=f"kill:process={fault.process}"
        )
    if fault.process in names:
        return
    elsewhere = [rank for rank in range(stage.replicas) if fault.process in processes_of(stage, rank)]
    near = f"replica {elsewhere[0]} has it: rank={elsewhere[0]}" if elsewhere else did_you_mean(fault.process, names)
    raise UserError(
        f"{where}: replica {fault.rank} has no process {fault.process!r}; it has {', '.join(_shortened(names))}",
        hint=near,
    )


def _shortened(names: Sequence[str]) -> list[str]:
    """The names with runs of numbered ones written ``engine0 to engine3``."""
    shown: list[str] = []
    for kind in dict.fromkeys(name.rstrip("0123456789") for name in names):
        own = [name for name in names if name.rstrip("0123456789") == kind]
        shown += own if len(own) < 3 else [f"{own[0]} to {own[-1]}"]
    return shown


def _check_checkpoint(fault: Fault, stage: Stage, where: str) -> None:
    step = int(fault.values["step"])
    if "ckpt" not in stage.values:
        raise UserError(f"{where}: this launch writes no checkpoints", hint="its TOML has no [ckpt]")
    if step > stage.steps:
        raise UserError(f"{where}: step = {step}: this rehearsal makes {stage.steps}", hint="see --steps")
    if fault.what != "corrupt":
        return
    if fault.when == "step" and not fault.has_own_moment and step > int(fault.at):
        raise UserError(f"{where}: step = {step}: it is not written yet at step {fault.at}")
    file = fault.values["file"]
    if stage.topology.kind == "sft" and file in ("progress", "policy"):
        raise UserError(f"{where}: file = {file}: fine-tuning writes none", hint="shard or metadata")
    if file == "policy" and lookup(stage.values, "weight_broadcast.type") != "filesystem":
        raise UserError(
            f"{where}: file = policy: this launch sends its policies without files",
            hint='it takes weight_broadcast.type = "filesystem"',
        )
