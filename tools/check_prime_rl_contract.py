"""Check our sub-configs against Prime-RL's own config classes.

Run with a Python that has Prime-RL's config package (``packages/prime-rl-configs`` of its repository, no GPU needed)
and this package's sources on the path::

    PYTHONPATH=src /path/to/venv/bin/python tools/check_prime_rl_contract.py examples/rl/multinode.toml …

For each TOML: what the built-in resolver writes must validate as the sub-config it claims to be, and every key it
writes must have the value Prime-RL's own resolution gives it.  A TOML is checked as one of the generation that its keys
vote for, or of the one named before the files (``0.7`` or ``0.8``).
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_rl.configs.inference import InferenceConfig
from prime_rl.configs.orchestrator import OrchestratorConfig
from prime_rl.configs.sft import SFTConfig
from prime_rl.configs.trainer import TrainerConfig

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import CONTRACTS, Contract
from primebeaker.prime_rl.resolve import (
    RLWiring,
    Validation,
    pin_resume_step,
    refuse_rl,
    resolve_rl,
    resolve_sft,
    wire_rl,
)
from primebeaker.prime_rl.subconfigs import write_subconfigs
from primebeaker.prime_rl.tables import is_null, lookup
from primebeaker.roles.config_choice import contract_of

CLASSES = {
    "trainer": TrainerConfig,
    "orchestrator": OrchestratorConfig,
    "inference": InferenceConfig,
    "sft": SFTConfig,
}


def main() -> int:
    """Check every TOML named on the command line; print one JSON object."""
    words = sys.argv[1:]
    contract = CONTRACTS[words.pop(0)] if words and words[0] in CONTRACTS else None
    outcomes = {path: check(Path(path), contract) for path in words}
    json.dump(outcomes, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(not outcome["faults"] for outcome in outcomes.values()) else 1


def check(path: Path, contract: Contract | None) -> dict[str, Any]:
    """The version one TOML was checked against, and the differences found."""
    values = tomllib.loads(path.read_text())
    contract = contract or contract_of(values)
    values = pin_resume_step(values, 20, contract)
    try:
        faults = compare(values, contract)
    except UserError as error:
        faults = str(error).splitlines()
    return {"version": contract.version, "faults": faults}


def compare(values: Mapping[str, Any], contract: Contract) -> list[str]:
    """What is wrong with the sub-configs of either resolver."""
    own, real = (tables(values, contract, validation) for validation in ("never", "required"))
    faults: list[str] = []
    for source, content in (("built-in", own), ("Prime-RL", real)):
        with tempfile.TemporaryDirectory() as directory:
            names = {getattr(contract.files, component): component for component in content}
            files = {name: content[component] for name, component in names.items()}
            for name, written in write_subconfigs(Path(directory), files, contract, stamp="check").items():
                text = Path(written.path).read_text()
                loaded = tomllib.loads(text) if contract.files.suffix == ".toml" else json.loads(text)
                try:
                    CLASSES[names[name]].model_validate(loaded)
                except ValueError as error:
                    faults.append(f"{name} by the {source} resolver: {error}")
    for component, table in own.items():
        faults.extend(f"{component}: {line}" for line in differences(table, real[component]))
    return faults


def tables(values: Mapping[str, Any], contract: Contract, validation: Validation) -> dict[str, dict[str, Any]]:
    """The sub-configs one resolver gives, wired for the smallest topology."""
    if "orchestrator" not in values:
        return {"sft": resolve_sft(values, contract=contract, validation=validation).config}
    refuse_rl(values, contract)
    resolved = resolve_rl(values, contract=contract, validation=validation)
    wiring = RLWiring(
        infer_ranks=int(lookup(values, contract.keys.data_parallel, 1)),
        trainer_gpus=int(lookup(values, "trainer.model.cp", 1)) * int(lookup(values, "trainer.model.dp_replicate", 1)),
        router_port=resolved.router_port,
        nccl_port=resolved.nccl_port,
        zmq_port=resolved.zmq_port,
    )
    wired = wire_rl(resolved, wiring)
    return {"trainer": wired.trainer, "orchestrator": wired.orchestrator, "inference": wired.inference}


def differences(own: Any, real: Any, path: str = "") -> list[str]:
    """Keys of ``own`` whose value in ``real`` is another."""
    if isinstance(own, dict) and isinstance(real, dict):
        return [
            line for key, value in own.items() for line in differences(value, real.get(key), f"{path}.{key}".strip("."))
        ]
    if isinstance(own, list) and isinstance(real, list) and len(own) == len(real):
        return [
            line
            for index, pair in enumerate(zip(own, real, strict=True))
            for line in differences(*pair, f"{path}[{index}]")
        ]
    return (
        []
        if own == real or own == {} or (is_null(own) and is_null(real))
        else [f"{path}: {own!r} here, {real!r} by Prime-RL"]
    )


if __name__ == "__main__":
    sys.exit(main())
