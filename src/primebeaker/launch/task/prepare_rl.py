"""Prepare a single-node RL task: ``python3 -m primebeaker.launch.task.prepare_rl``, inside the task.

Chooses the config, sets incomplete checkpoints aside, and writes the config that ``rl`` gets: the user's own, with
environment ids made complete and "the latest step" replaced by the latest one that trainer and orchestrator share.
Each of them would take the newest of its own, and they may disagree.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primebeaker.config import RLTrainingToml, TomlDocument
from primebeaker.errors import PrimeBeakerError, UserError
from primebeaker.launch.task.prepare_sft import choose_config, notice, set_aside, stop
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule, find_layout, rl_rule_of
from primebeaker.prime_rl.checkpoints import newest_complete, read_step, summary_of_missing
from primebeaker.prime_rl.layout import Layout, parse_step

__all__ = ["RUNTIME_CONFIG", "main", "prepare"]

#: Below ``TMPDIR``, which belongs to one launch: two runs on one machine must not share it.
RUNTIME_CONFIG = "primebeaker-runtime.toml"


def prepare(environment: Mapping[str, str]) -> Path:
    """Prepare the task and return the config for ``rl``.

    Args:
        environment: The task's variables; relative paths of the config are taken from the current directory.

    Raises:
        UserError: The config is unreadable or not one for RL, or a checkpoint directory cannot be read.
    """
    path, data = choose_config(environment)
    toml = RLTrainingToml(TomlDocument.from_bytes(data, path=path)).with_environment_namespace()
    values = toml.values
    checkpoint_dir = _text(values, "ckpt", "output_dir")
    layout = find_layout(
        Path(environment["OUTPUT_DIR"]),
        generation=toml.generation,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
    )
    rule = rl_rule_of(values, generation=toml.generation)
    job = environment.get("BEAKER_JOB_ID") or "manual"
    set_aside(layout.trainer_checkpoints, lambda step: _missing(layout, rule, step), job)
    key = _asks_for_latest(values, toml.generation)
    if key is not None:
        chosen = newest_complete(layout, rule).chosen
        if chosen is not None:
            notice(f"continuing from step {chosen.step}")
            toml = toml.with_value(key, chosen.step)
        elif layout.orchestrator_checkpoints != layout.trainer_checkpoints:
            # The trainer starts afresh, so the orchestrator must not continue from steps of its own.
            set_aside(layout.orchestrator_checkpoints, lambda step: "the trainer has no checkpoint to match it", job)
    return toml.write(Path(environment["TMPDIR"]) / RUNTIME_CONFIG)


def main() -> None:
    """Prepare the task this process runs in and print the config's path."""
    try:
        path = prepare(os.environ)
    except UserError as error:
        stop(str(error))
    except PrimeBeakerError as error:
        sys.stderr.write(f"primebeaker: error: {error}\n")
        raise SystemExit(error.exit_code) from error
    except OSError as error:
        stop(f"{error.filename}: {error.strerror}")
    sys.stdout.write(f"{path}\n")


def _missing(layout: Layout, rule: CompletenessRule, step_dir: Path) -> str | None:
    step = parse_step(step_dir.name)
    state = None if step is None else read_step(layout, rule, step)
    return None if state is None or state.complete else summary_of_missing(state.missing)


def _asks_for_latest(values: Mapping[str, Any], generation: str) -> str | None:
    """The key to pin when the config asks for the latest step, else None."""
    if generation == "0.7":
        return "ckpt.resume_step" if _at(values, "ckpt", "resume_step") == -1 else None
    resume = values.get("resume")
    if not isinstance(resume, Mapping) or resume.get("dir") not in (None, "None"):
        return None
    return "resume.step" if resume.get("step") in (None, "None", -1) else None


def _text(values: Mapping[str, Any], *path: str) -> str | None:
    found = _at(values, *path)
    return found if isinstance(found, str) and found != "None" else None


def _at(values: Mapping[str, Any], *path: str) -> Any:
    found: Any = values
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


if __name__ == "__main__":
    main()
