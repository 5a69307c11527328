"""What a launch takes from the training TOML: where the run writes, what it is called, and where W&B shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from primebeaker.launch.keys import Keys
from primebeaker.launch.topology import Generation, Kind

__all__ = ["TrainingFacts", "local_search_model_paths", "read_facts"]

DEFAULT_PROJECT = "prime-rl"


@dataclass(frozen=True)
class TrainingFacts:
    """Facts read from one TOML; None where the TOML does not say or said something wrong."""

    kind: Kind
    generation: Generation
    #: The directory that gets checkpoints and logs, as the TOML spells it (relative to the task's working directory).
    artifact_dir: str | None
    run_name: str | None
    #: The key the run's name comes from, for messages.
    run_name_key: str
    project: str
    entity: str | None
    offline: bool
    ckpt_output_dir: str | None
    clean: bool
    #: Whether the TOML says what to do with checkpoints that are already there.
    resumes: bool

    @property
    def wandb_table(self) -> str:
        """The table that holds the W&B settings in this generation."""
        return "monitors.wandb" if self.generation == "0.8" else "wandb"

    @property
    def clean_key(self) -> str:
        """The key that empties the output directory at every start in this generation."""
        return "clean" if self.generation == "0.8" else "clean_output_dir"


def read_facts(kind: Kind, keys: Keys, generation: Generation, *, name_given: bool) -> TrainingFacts:
    """Read the facts; what is missing or of a wrong type is added to ``keys.mistakes``.

    Args:
        kind: ``sft`` or ``rl``.
        keys: The TOML.
        generation: Its Prime-RL config generation.
        name_given: Whether ``--name`` names the experiment, so that the TOML need not name the run.
    """
    new = generation == "0.8"
    wandb = "monitors.wandb" if new else "wandb"
    run_name, run_name_key = keys.text(f"{wandb}.name"), f"{wandb}.name"
    if run_name is None and new:
        run_name, run_name_key = keys.text("run.name"), "run.name"
    # A missing table or run.name is told about by itself.
    if run_name is None and not name_given and not new and keys.present(wandb) and not keys.present(run_name_key):
        keys.missing(run_name_key, "the run has no name", "set it, or pass --name")
    return TrainingFacts(
        kind=kind,
        generation=generation,
        artifact_dir=_artifact_dir(keys, new=new),
        run_name=run_name,
        run_name_key=run_name_key,
        project=keys.text(f"{wandb}.project") or DEFAULT_PROJECT,
        entity=keys.text(f"{wandb}.entity"),
        offline=keys.boolean(f"{wandb}.offline"),
        ckpt_output_dir=keys.text("ckpt.output_dir"),
        clean=keys.boolean("clean" if new else "clean_output_dir"),
        resumes=keys.present("resume") if new else keys.integer("ckpt.resume_step") is not None,
    )


def _artifact_dir(keys: Keys, *, new: bool) -> str | None:
    output_dir = keys.text("output_dir")
    if not keys.present("output_dir"):
        keys.missing("output_dir", "the key is missing", "set it to a directory under the mount")
    if not new:
        return output_dir
    name = keys.text("run.name")
    if not keys.present("run.name"):
        keys.missing(
            "run.name",
            "Prime-RL would invent a name at every start, and a restarted task would not find its checkpoints",
            "set run.name",
        )
    directory = keys.text("run.dir") or name
    return f"{output_dir.rstrip('/') or '/'}/{directory}" if output_dir and directory else None


def local_search_model_paths(keys: Keys) -> list[str]:
    """Every distinct local-search model path of the RL sources, sorted: the readiness probe asks for them."""
    paths: set[str] = set()
    for part in ("train", "eval"):
        sources = keys.value(f"orchestrator.{part}.source")
        for index, source in enumerate(sources if isinstance(sources, list) else ()):
            found = _nested(source, "legacy", "args")
            if not isinstance(found, Mapping) or "local_search_model_path" not in found:
                continue
            value = found["local_search_model_path"]
            if isinstance(value, str) and value:
                paths.add(value)
            else:
                keys.refuse(
                    f"orchestrator.{part}.source[{index}].legacy.args.local_search_model_path",
                    "expected a non-empty string",
                )
    return sorted(paths)


def _nested(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
