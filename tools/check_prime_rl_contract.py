"""Check our sub-configs against Prime-RL's own config classes.

Run with a Python that has Prime-RL's config package (``packages/prime-rl-configs`` of its repository, no GPU needed)
and this package's sources on the path::

    PYTHONPATH=src /path/to/venv/bin/python tools/check_prime_rl_contract.py examples/rl/multinode.toml …

For each TOML: what the built-in resolver writes must validate as the sub-config it claims to be, and every key it
writes must have the value Prime-RL's own resolution gives it.
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

from primebeaker.prime_rl.contract import DEFAULT
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
from primebeaker.prime_rl.tables import lookup

CLASSES = {
    "trainer.toml": TrainerConfig,
    "orchestrator.toml": OrchestratorConfig,
    "inference.toml": InferenceConfig,
    "sft.toml": SFTConfig,
}


def main() -> int:
    """Check every TOML named on the command line; print one JSON object."""
    outcomes = {path: check(Path(path)) for path in sys.argv[1:]}
    json.dump({"version": DEFAULT.version, "tomls": outcomes}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if all(not faults for faults in outcomes.values()) else 1


def check(path: Path) -> list[str]:
    """The differences found for one TOML."""
    values = pin_resume_step(tomllib.loads(path.read_text()), 20)
    own, real = tables(values, "never"), tables(values, "required")
    faults: list[str] = []
    for source, content in (("built-in", own), ("Prime-RL", real)):
        with tempfile.TemporaryDirectory() as directory:
            for name, written in write_subconfigs(Path(directory), content, DEFAULT, stamp="check").items():
                loaded = tomllib.loads(Path(written.path).read_text())
                try:
                    CLASSES[name].model_validate(loaded)
                except ValueError as error:
                    faults.append(f"{name} by the {source} resolver: {error}")
    for name, table in own.items():
        faults.extend(f"{name}: {line}" for line in differences(table, real[name]))
    return faults


def tables(values: Mapping[str, Any], validation: Validation) -> dict[str, dict[str, Any]]:
    """The sub-configs one resolver gives, wired for the smallest topology."""
    if "orchestrator" not in values:
        return {"sft.toml": resolve_sft(values, validation=validation).config}
    refuse_rl(values)
    resolved = resolve_rl(values, validation=validation)
    ranks = int(lookup(values, "inference.parallel.dp", 1))
    wiring = RLWiring(
        infer_ranks=ranks,
        trainer_gpus=int(lookup(values, "trainer.model.cp", 1)) * int(lookup(values, "trainer.model.dp_replicate", 1)),
        router_port=resolved.router_port,
        nccl_port=resolved.nccl_port,
        zmq_port=resolved.zmq_port,
    )
    wired = wire_rl(resolved, wiring)
    return {
        "trainer.toml": wired.trainer,
        "orchestrator.toml": wired.orchestrator,
        "inference.toml": wired.inference,
    }


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
    return [] if own == real or own == {} else [f"{path}: {own!r} here, {real!r} by Prime-RL"]


if __name__ == "__main__":
    sys.exit(main())
