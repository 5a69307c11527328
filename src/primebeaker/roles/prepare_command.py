"""The program around :mod:`primebeaker.roles.prepare`: from flags and environment to files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write
from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.resolve import Validation
from primebeaker.prime_rl.tables import lookup
from primebeaker.roles.config_choice import contract_of, engine_plan, load_values
from primebeaker.roles.prepare import Prepared, Request, prepare_rl, prepare_sft, read_members
from primebeaker.roles.topology import Member, Slice

__all__ = ["prepare"]

_EVERYTHING_HERE = "127.0.0.1"


def prepare(
    kind: str,
    *,
    config: Path,
    config_dir: Path,
    name: str | None,
    runtime_dir: Path,
    outcome: Path | None,
    validation: Validation,
    env: Mapping[str, str],
) -> int:
    """Write sub-configs and ``runtime.json``.

    Without a ``start.json`` in the runtime directory the topology is worked out from the TOML, all on this machine.

    Args:
        kind: ``rl`` or ``sft``.
        config: The training TOML.
        config_dir: Where the sub-configs go.
        name: Another file name for the SFT sub-config.
        runtime_dir: Where ``runtime.json`` goes.
        outcome: Where to leave notices and moves; by default they are printed.
        validation: How strictly Prime-RL must validate.
        env: Read for ``OUTPUT_DIR``, ``LAUNCH_ID``, ``TRAINER_GPU_COUNT``, ``GATEWAY_PORT``.

    Returns:
        The exit code 0.
    """
    values = load_values(config)
    contract = contract_of(values)
    runtime_dir.mkdir(parents=True, exist_ok=True)
    members = read_members(runtime_dir) or _one_machine(kind, values, contract)
    trainer_gpus = env.get("TRAINER_GPU_COUNT", "")
    gateway = env.get("GATEWAY_PORT", "")
    request = Request(
        config=config.absolute(),
        config_dir=config_dir.absolute(),
        runtime_dir=runtime_dir.absolute(),
        output_dir=Path(env.get("OUTPUT_DIR") or config_dir.absolute().parent),
        launch_id=env.get("LAUNCH_ID", "manual"),
        members=members,
        trainer_gpus=int(trainer_gpus) if trainer_gpus.isdigit() else _trainer_gpus(values),
        gateway_port=int(gateway) if gateway.isdigit() else None,
        validation=validation,
        sft_name=name,
    )
    prepared = prepare_rl(request) if kind == "rl" else prepare_sft(request)
    _tell(prepared, outcome)
    return 0


def _tell(prepared: Prepared, outcome: Path | None) -> None:
    value = {
        "resume_step": prepared.plan.resume_step,
        "moves": [list(move) for move in prepared.moves],
        "notices": list(prepared.notices),
    }
    text = json.dumps(value, indent=2) + "\n"
    if outcome is None:
        sys.stdout.write(text)
    else:
        atomic_write(outcome, text, mode=0o600)


def _trainer_gpus(values: Mapping[str, Any]) -> int:
    return int(lookup(values, "trainer.model.cp", 1)) * int(lookup(values, "trainer.model.dp_replicate", 1))


def _one_machine(kind: str, values: Mapping[str, Any], contract: Contract) -> tuple[Member, ...]:
    gpus = int(lookup(values, "deployment.gpus_per_node", 8))
    plain = Member(rank=0, instance="inspect", host="localhost", ip=_EVERYTHING_HERE, slice=Slice(0, 0), backend_port=0)
    if kind == "sft":
        nodes = int(lookup(values, contract.keys.sft_nodes, 2))
        return tuple(replace(plain, rank=rank) for rank in range(nodes))
    trainer = _trainer_gpus(values)
    nodes = int(lookup(values, "deployment.num_infer_nodes", 1))
    if trainer > gpus:
        raise UserError(f"trainer.model.cp x dp_replicate = {trainer}: expected at most {gpus} GPUs of one node")
    plan = engine_plan(values, contract)
    slices = [Slice(trainer, gpus - trainer) if trainer < gpus else Slice(0, 0)]
    slices += [Slice(0, gpus)] * (nodes - 1 if trainer < gpus else nodes)
    return tuple(
        replace(plain, rank=rank, slice=part, backend_port=plan.backend_port + 100 * rank)
        for rank, part in enumerate(slices)
    )
