"""The experiment spec of a launch: a pure function of facts, settings and paths that have all been checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from primebeaker.beaker.spec import EnvVar, ExperimentSpec, TaskSpec, WekaMount
from primebeaker.launch.images import spec_image
from primebeaker.launch.paths import RESULT_PATH
from primebeaker.launch.script import multi_node_command, single_node_command
from primebeaker.launch.settings import LaunchSettings
from primebeaker.launch.topology import Topology

__all__ = [
    "DEFAULT_GATEWAY_PORT",
    "DEFAULT_GATEWAY_WORKERS",
    "DEFAULT_RENDEZVOUS_TIMEOUT",
    "LaunchPaths",
    "SpecInput",
    "build_spec",
]

DEFAULT_GATEWAY_PORT = 1212
DEFAULT_GATEWAY_WORKERS = 8
DEFAULT_RENDEZVOUS_TIMEOUT = 1800


@dataclass(frozen=True, kw_only=True)
class LaunchPaths:
    """Absolute paths as the task sees them."""

    mount: str
    config: str
    output_dir: str
    ckpt_output_dir: str | None = None
    working_dir: str
    scratch: str
    home: str
    #: Parent of every launch's rendezvous directory.
    rendezvous: str
    snapshot: str
    spec: str


@dataclass(frozen=True, kw_only=True)
class SpecInput:
    """Everything the spec is made of."""

    topology: Topology
    settings: LaunchSettings
    paths: LaunchPaths
    experiment_name: str
    #: As in the TOML, not made legal.
    run_name: str
    image: str
    entity: str | None
    config_sha256: str
    #: The user's variables.
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    local_search_model_paths: list[str]
    gateway: bool
    version: str
    #: Replaces the default description.
    description: str | None = None


def build_spec(source: SpecInput) -> ExperimentSpec:
    """The spec that ``beaker experiment create`` gets."""
    settings, topology = source.settings, source.topology
    multi_node = topology.multi_node
    kind = topology.kind
    return ExperimentSpec(
        description=source.description or f"PrimeBeaker {_kind_words(topology)} {source.experiment_name}",
        budget=settings.budget,
        tasks=(
            TaskSpec(
                name=f"prime-{kind}-multinode" if multi_node else kind,
                image=spec_image(source.image),
                command=multi_node_command(kind) if multi_node else single_node_command(kind),
                env_vars=_env_vars(source),
                datasets=(WekaMount(source.paths.mount, settings.dataset),),
                result_path=RESULT_PATH,
                clusters=settings.clusters,
                priority=settings.priority,
                min_runtime_hours=settings.min_runtime_hours,
                # A lone replica that restarted would sit in a barrier while the others train.
                auto_resume=not multi_node,
                gpu_count=topology.gpus_per_node,
                cpu_count=_whole(settings.cpu_count),
                memory=settings.memory,
                shared_memory=settings.shared_memory,
                timeout=None if settings.timeout_hours is None else _hours(settings.timeout_hours),
                replicas=topology.nodes if multi_node else None,
                synchronized_start_timeout="4h" if multi_node else None,
            ),
        ),
    )


def _kind_words(topology: Topology) -> str:
    return f"{'multi-node ' if topology.multi_node else ''}{topology.kind.upper()}"


def _env_vars(source: SpecInput) -> tuple[EnvVar, ...]:
    """Plain values sorted by name, then secrets sorted by name."""
    values = {**source.environment, **launch_variables(source)}
    return (
        *(EnvVar(name, value=values[name]) for name in sorted(values)),
        *(EnvVar(name, secret=source.secrets[name]) for name in sorted(source.secrets)),
    )


def launch_variables(source: SpecInput) -> dict[str, str]:
    """The variables the launch itself sets, by which the task finds its paths, its run and its place."""
    settings, topology, paths = source.settings, source.topology, source.paths
    run_id = str(settings.wandb_run_id)
    values: dict[str, str | None] = {
        "HOME": paths.home,
        "CONFIG_PATH": paths.config,
        "OUTPUT_DIR": paths.output_dir,
        "EXPERIMENT_NAME": source.run_name,
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "WANDB_ENTITY": source.entity,
        "WORKING_DIR": paths.working_dir,
        "SCRATCH": paths.scratch,
        "LAUNCH_ID": settings.launch_id,
        "PRIMEBEAKER_SETUP_COMMAND": settings.setup_command or None,
        "PRIMEBEAKER_CONFIG_SHA256": source.config_sha256,
        "PRIMEBEAKER_CONFIG_SNAPSHOT": None if settings.live_config else paths.snapshot,
        "PRIMEBEAKER_VERSION": source.version,
    }
    if topology.multi_node:
        values |= {
            "WANDB_SHARED_RUN_ID": run_id,
            "RENDEZVOUS_DIR": f"{paths.rendezvous}/{source.experiment_name}-{settings.launch_id}",
            "RENDEZVOUS_TIMEOUT_SECONDS": str(settings.rendezvous_timeout_seconds or DEFAULT_RENDEZVOUS_TIMEOUT),
            "TOTAL_NODES": str(topology.nodes),
            "GPUS_PER_NODE": str(topology.gpus_per_node),
        }
    else:
        values["NUM_GPUS"] = str(topology.total_gpus)
    if topology.kind == "rl":
        values |= {"WANDB_SHARED_RUN_ID": run_id, "REGISTRY": settings.registry}
    if topology.kind == "rl" and topology.multi_node:
        values |= {
            # Without it trainer and orchestrator open the same run unshared and overwrite each other's history.
            "WANDB_SHARED_MODE": "1",
            "TOTAL_INFER_RANKS": str(topology.inference_ranks),
            "TRAINER_GPU_COUNT": str(topology.trainer_gpus),
            "MIXED_INFER_GPU_COUNT": str(topology.mixed_infer_gpus),
        }
    if source.gateway:
        values |= {
            "GATEWAY_PORT": str(settings.gateway_port or DEFAULT_GATEWAY_PORT),
            "GATEWAY_WORKERS": str(settings.gateway_workers or DEFAULT_GATEWAY_WORKERS),
            "REQUIRED_LITEREGISTRY_SERVICES": _compact(dict(sorted(settings.required_services))),
            "LOCAL_SEARCH_MODEL_PATHS_JSON": _compact(source.local_search_model_paths),
        }
    return {name: value for name, value in values.items() if value is not None}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _hours(hours: float) -> str:
    """Hours as Beaker reads a duration, which knows no exponents."""
    return f"{hours:f}".rstrip("0").rstrip(".") + "h"


def _whole(number: float | None) -> float | None:
    """``4`` rather than ``4.0`` where the number is whole."""
    return int(number) if number is not None and number == int(number) else number
