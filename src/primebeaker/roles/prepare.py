"""What the leader decides once an epoch: the resume step, the sub-configs, the ports, ``runtime.json``.

Runs in a process of its own, since validating with Prime-RL's classes takes seconds and memory, and so that a stop can
end it at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.prime_rl.checkpoint_rules import rl_rule_of, sft_rule
from primebeaker.prime_rl.contract import COMPONENTS, Contract
from primebeaker.prime_rl.layout import Layout
from primebeaker.prime_rl.resolve import (
    ResolvedRL,
    RLWiring,
    Validation,
    pin_resume_step,
    refuse_rl,
    resolve_rl,
    resolve_sft,
    wire_rl,
)
from primebeaker.prime_rl.subconfigs import digest, write_subconfigs
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.roles import ports
from primebeaker.roles.clock import utc_now
from primebeaker.roles.config_choice import contract_of, load_values
from primebeaker.roles.moves import Move
from primebeaker.roles.plan import RuntimePlan
from primebeaker.roles.stale import Decision, LaunchRecord, clean, decide, plan_moves, refuse_odd_names
from primebeaker.roles.topology import Member, bracketed, engines_of

__all__ = ["Prepared", "Request", "prepare_rl", "prepare_sft", "read_members"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a preparation needs to know.

    Attributes:
        config: The training TOML.
        config_dir: Where the sub-configs go (``OUTPUT_DIR/configs``).
        runtime_dir: The epoch directory; its name is the epoch.
        output_dir: ``OUTPUT_DIR``.
        launch_id: ``LAUNCH_ID``.
        members: The started topology.
        trainer_gpus: RL: GPUs of the trainer.
        gateway_port: RL: never moved, since the TOML's environments name it.
        validation: How strictly Prime-RL must validate.
        sft_name: Another file name for the SFT sub-config.
    """

    config: Path
    config_dir: Path
    runtime_dir: Path
    output_dir: Path
    launch_id: str
    members: tuple[Member, ...]
    trainer_gpus: int = 0
    gateway_port: int | None = None
    validation: Validation = "auto"
    sft_name: str | None = None


@dataclass(frozen=True)
class Prepared:
    """The outcome.

    Attributes:
        plan: What was written to ``runtime.json``.
        moves: What must be moved aside before the trainer starts.
        notices: Lines for the log.
    """

    plan: RuntimePlan
    moves: tuple[Move, ...]
    notices: tuple[str, ...] = field(default=())


class _Started(NamedTuple):
    values: Table
    contract: Contract
    layout: Layout
    decision: Decision


def read_members(runtime_dir: Path) -> tuple[Member, ...]:
    """The members in ``start.json`` of an epoch directory.

    Raises:
        UserError: It is there but cannot be read.
    """
    path = runtime_dir / "start.json"
    try:
        return tuple(Member.from_json(member) for member in json.loads(path.read_text(encoding="utf-8"))["members"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot be read: {error}", file=path) from None


def prepare_rl(request: Request) -> Prepared:
    """Prepare an RL epoch.

    Raises:
        UserErrors: The TOML is refused, a step is incomplete, or ports collide. Nothing was changed then.
    """
    started = _start(request, "rl")
    refuse_rl(started.values, started.contract)
    resolved = resolve_rl(
        pin_resume_step(started.values, started.decision.step, started.contract),
        contract=started.contract,
        validation=request.validation,
    )
    leader = request.members[0]
    chosen = _choose_ports(resolved, request, leader)
    engines = engines_of(request.members, resolved.tp)
    wired = wire_rl(
        resolved,
        RLWiring(
            infer_ranks=len(engines),
            trainer_gpus=request.trainer_gpus,
            router_port=chosen.router,
            nccl_port=chosen.nccl,
            zmq_port=chosen.zmq,
        ),
    )
    files = started.contract.files
    plan = RuntimePlan(
        epoch=request.runtime_dir.name,
        kind="rl",
        generation=started.contract.generation,
        config_sha256=digest(request.config.read_bytes()),
        resume_step=started.decision.step,
        master_addr=leader.ip,
        configs={},
        env={component: wired.env(component) for component in COMPONENTS},
        ranks_filter=wired.ranks_filter,
        model=wired.model_name,
        router_port=chosen.router,
        router_policy=resolved.router_policy,
        router_url=f"http://{bracketed(leader.ip)}:{chosen.router}/v1",
        engines=engines,
        tp=wired.tp,
        broadcast=wired.broadcast,
        transport=wired.transport,
        nccl_port=chosen.nccl,
        zmq_ports=(chosen.zmq, chosen.zmq + 1) if chosen.zmq is not None else (),
    )
    tables = {
        "trainer": (files.trainer, wired.trainer),
        "orchestrator": (files.orchestrator, wired.orchestrator),
        "inference": (files.inference, wired.inference),
    }
    return _finish(request, started, plan, tables, wired.broadcast, (*wired.notices, *chosen.notices))


def prepare_sft(request: Request) -> Prepared:
    """Prepare an SFT epoch; faults as :func:`prepare_rl`."""
    started = _start(request, "sft")
    resolved = resolve_sft(
        pin_resume_step(started.values, started.decision.step, started.contract),
        contract=started.contract,
        validation=request.validation,
    )
    leader = request.members[0]
    port = ports.next_free(started.contract.ports.torchrun)
    plan = RuntimePlan(
        epoch=request.runtime_dir.name,
        kind="sft",
        generation=started.contract.generation,
        config_sha256=digest(request.config.read_bytes()),
        resume_step=started.decision.step,
        master_addr=leader.ip,
        master_port=port,
        configs={},
        env={"trainer": resolved.env},
        ranks_filter=resolved.ranks_filter,
    )
    name = request.sft_name or started.contract.files.sft
    notices = (*resolved.notices, *_moved("torchrun rendezvous", started.contract.ports.torchrun, port))
    return _finish(request, started, plan, {"sft": (name, resolved.config)}, None, notices)


def _start(request: Request, kind: str) -> _Started:
    values = load_values(request.config)
    contract = contract_of(values)
    if contract.generation == "0.7":
        # The launch computed the absolute one; a relative path would depend on the working directory.
        values["output_dir"] = str(request.output_dir)
    checkpoint_dir = lookup(values, "ckpt.output_dir") or lookup(values, "trainer.ckpt.output_dir")
    layout = contract.layout(request.output_dir, ckpt_output_dir=Path(checkpoint_dir) if checkpoint_dir else None)
    rule = rl_rule_of(values, generation=contract.generation) if kind == "rl" else sft_rule()
    decision = decide(values, contract=contract, layout=layout, rule=rule, launch_id=request.launch_id)
    if not decision.clean:
        refuse_odd_names(layout)
    return _Started(values, contract, layout, decision)


def _finish(
    request: Request,
    started: _Started,
    plan: RuntimePlan,
    tables: Mapping[str, tuple[str, Table]],
    broadcast: str | None,
    notices: Sequence[str],
) -> Prepared:
    """Everything is decided; write it, ``runtime.json`` last."""
    told = [*started.decision.notices, *notices]
    if started.decision.clean:
        moved = clean(started.layout, request.launch_id)
        if moved:
            told.append(f"{started.contract.keys.clean}: moved {len(moved)} entries to {Path(moved[0].target).parent}")
    _record_launch(request, plan)
    written = write_subconfigs(
        request.config_dir, dict(tables.values()), started.contract, stamp=request.runtime_dir.name
    )
    plan = RuntimePlan(
        **{**plan.__dict__, "configs": {component: written[name] for component, (name, _) in tables.items()}}
    )
    moves = plan_moves(started.layout, step=plan.resume_step, epoch=plan.epoch, broadcast=broadcast)
    atomic_write_json(request.runtime_dir / "runtime.json", plan.as_json(), mode=0o600)
    step = plan.resume_step
    told.append("starts fresh" if step is None else f"continues from step {step}")
    return Prepared(plan, tuple(moves), tuple(told))


def _record_launch(request: Request, plan: RuntimePlan) -> None:
    record = LaunchRecord.read(request.output_dir)
    known = record.epochs if record is not None and record.launch_id == request.launch_id else ()
    epoch = {
        "epoch": plan.epoch,
        "started_at": utc_now(),
        "resume_step": plan.resume_step,
        "job_ids": [member.job_id for member in request.members if member.job_id],
    }
    LaunchRecord(request.launch_id, (*known, epoch)).write(request.output_dir)


class _Ports(NamedTuple):
    router: int
    nccl: int | None
    zmq: int | None
    notices: tuple[str, ...]


def _choose_ports(resolved: ResolvedRL, request: Request, leader: Member) -> _Ports:
    """The leader's ports: the configured ones, or the next free ones when they are busy."""
    contract = resolved.contract
    engines = leader.slice.count // resolved.tp
    offset = contract.ports.router_metrics_offset
    blocks = {
        contract.keys.router_port: range(resolved.router_port, resolved.router_port + 1),
        "the router's metrics": range(resolved.router_port + offset, resolved.router_port + offset + 1),
        contract.keys.backend_port: range(leader.backend_port, leader.backend_port + engines),
    }
    if request.gateway_port is not None:
        blocks["GATEWAY_PORT"] = range(request.gateway_port, request.gateway_port + 1)
    if resolved.nccl_port is not None:
        blocks["weight_broadcast.port"] = range(resolved.nccl_port, resolved.nccl_port + 1)
    if resolved.zmq_port is not None:
        blocks["rollout_transport.port"] = range(resolved.zmq_port, resolved.zmq_port + 2)
    ports.refuse_equal_ports(blocks)
    if request.gateway_port is not None and not ports.is_free(request.gateway_port):
        raise UserError(
            f"GATEWAY_PORT = {request.gateway_port}: the port is busy, and the TOML's environments name it",
            hint="free it, or choose another with --gateway-port",
        )
    taken = {
        port for name, block in blocks.items() if name in (contract.keys.backend_port, "GATEWAY_PORT") for port in block
    }

    def metrics_too(port: int) -> bool:
        return ports.is_free(port) and port + offset not in taken and ports.is_free(port + offset)

    router = ports.next_free(resolved.router_port, highest=contract.ports.highest_router, taken=taken, free=metrics_too)
    taken |= {router, router + offset}
    nccl = zmq = None
    notices = [*_moved("router", resolved.router_port, router)]
    if resolved.nccl_port is not None:
        nccl = ports.next_free(resolved.nccl_port, taken=taken)
        taken.add(nccl)
        notices += _moved("weight broadcast", resolved.nccl_port, nccl)
    if resolved.zmq_port is not None:
        zmq = ports.next_free(resolved.zmq_port, width=2, taken=taken)
        notices += _moved("rollout transport", resolved.zmq_port, zmq)
    return _Ports(router, nccl, zmq, tuple(notices))


def _moved(what: str, wanted: int, got: int) -> Sequence[str]:
    return () if wanted == got else (f"{what}: port {wanted} is busy, {got} is used",)
