"""What Prime-RL expects and writes, one object a supported version.

The only place that spells Prime-RL's program names, module names, default environment, default ports and config file
names.  The values of :data:`GEN_0_7` were read from, or produced by running, ``v0.7.1.dev83`` (the version inside the
catalogued images); those of :data:`GEN_0_8` from ``v0.8.1.dev67``.  Paths are in :mod:`primebeaker.prime_rl.layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from primebeaker.errors import UserError
from primebeaker.prime_rl.layout import Layout

__all__ = [
    "COMPONENTS",
    "CONTRACTS",
    "DEFAULT",
    "GEN_0_7",
    "GEN_0_8",
    "Component",
    "ConfigFiles",
    "ConfigKeys",
    "Contract",
    "Ports",
    "Programs",
    "contract_for",
]

Component = Literal["trainer", "orchestrator", "inference"]
COMPONENTS: tuple[Component, ...] = ("trainer", "orchestrator", "inference")


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Executables on ``PATH``, and the modules torchrun starts."""

    torchrun: str = "torchrun"
    inference: str = "inference"
    orchestrator: str = "orchestrator"
    router: str = "vllm-router"
    rl: str = "rl"
    sft: str = "sft"
    rl_trainer_module: str = "prime_rl.trainer.rl.train"
    sft_trainer_module: str = "prime_rl.trainer.sft.train"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Default ports and the fixed distances between them."""

    router: int = 8000
    #: engines listen at ``router + backend_offset`` and upwards, one a data-parallel rank
    backend_offset: int = 100
    router_metrics_offset: int = 21000
    nccl: int = 29501
    #: rollouts take this port and the next one
    zmq: int = 5555
    torchrun: int = 29500

    @property
    def highest_router(self) -> int:
        """The largest router port whose metrics port still exists."""
        return 65535 - self.router_metrics_offset


@dataclass(frozen=True, kw_only=True)
class ConfigFiles:
    """Names of the resolved sub-configs under ``configs/``, and the launcher-only fields each of them leaves out."""

    suffix: str
    trainer: str
    orchestrator: str
    inference: str
    sft: str
    inference_excludes: frozenset[str] = frozenset({"deployment", "slurm", "output_dir", "dry_run"})
    sft_excludes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class ConfigKeys:
    """Dotted keys of the training TOML whose spelling depends on the version."""

    tensor_parallel: str
    data_parallel: str
    clean: str
    wandb: str
    resume_step: str
    sft_nodes: str
    inference_model: str
    chat_template: str
    #: the local metrics file of trainer and orchestrator
    file_monitor: str
    backend_port: str = "inference.backend_port"
    router_port: str = "inference.server.port"


_COMMON_ENV = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
_COMPONENT_ENV: Mapping[Component, Mapping[str, str]] = {
    "trainer": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "orchestrator": {},
    "inference": {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
        "VLLM_ENGINE_READY_TIMEOUT_S": "4200",
        "UCX_TLS": "all",
    },
}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One supported Prime-RL version.

    Attributes:
        version: The tag the facts were read from.
        generation: ``0.7`` or ``0.8``: what the TOML's keys vote for.
        programs: Executables and modules.
        ports: Defaults and distances.
        files: Names of the resolved sub-configs.
        keys: Version-dependent TOML keys.
        router_policy: Default of ``inference.router.policy``.
        router_startup_timeout: Seconds the router waits for its workers.
        worker_session: torchrun starts each worker in a session of its own, so ending its group is not enough.
    """

    version: str
    generation: Literal["0.7", "0.8"]
    programs: Programs = field(default_factory=Programs)
    ports: Ports = field(default_factory=Ports)
    files: ConfigFiles
    keys: ConfigKeys
    router_type: str = "vllm-router"
    router_policy: str = "consistent_hash"
    router_startup_timeout: int = 4200
    session_header: str = "x-session-id"
    default_broadcast: str = "nccl"
    default_transport: str = "zmq"
    default_model: str = "Qwen/Qwen3-0.6B"
    default_ranks_filter: tuple[int, ...] = (0,)
    worker_session: bool = True
    #: a topology over several nodes without this (even empty) table is refused by the config classes
    multi_node_guard: str = "slurm"
    wandb_shared_mode: Mapping[str, str] = MappingProxyType({"WANDB_SHARED_MODE": "1"})
    wandb_shared_run_id: str = "WANDB_SHARED_RUN_ID"
    wandb_shared_label: str = "WANDB_SHARED_LABEL"
    wandb_run_id: str = "WANDB_RUN_ID"
    #: variables that carry the run's identity to every process (empty where the version has none)
    run_identity: Mapping[str, str] = MappingProxyType({})

    def default_env(self, component: Component) -> dict[str, str]:
        """The environment Prime-RL's launchers give a component before the TOML's ``env_vars``."""
        return {**_COMMON_ENV, **_COMPONENT_ENV[component]}

    def layout(self, output_dir: Path, *, ckpt_output_dir: Path | None = None) -> Layout:
        """The paths below an artifact directory.

        Args:
            output_dir: ``OUTPUT_DIR`` of the launch; for generation 0.8 that is the run directory.
            ckpt_output_dir: ``ckpt.output_dir`` when the TOML sets it.
        """
        return Layout(output_dir=output_dir, ckpt_output_dir=ckpt_output_dir, generation=self.generation)

    def router_metrics_port(self, router_port: int) -> int:
        """The port of the router's metrics, which Prime-RL derives from its own port."""
        return router_port + self.ports.router_metrics_offset


GEN_0_7 = Contract(
    version="v0.7.1.dev83",
    generation="0.7",
    files=ConfigFiles(
        suffix=".toml",
        trainer="trainer.toml",
        orchestrator="orchestrator.toml",
        inference="inference.toml",
        sft="sft.toml",
        sft_excludes=frozenset({"deployment", "slurm", "dry_run", "clean_output_dir"}),
    ),
    keys=ConfigKeys(
        tensor_parallel="inference.parallel.tp",
        data_parallel="inference.parallel.dp",
        clean="clean_output_dir",
        wandb="wandb",
        resume_step="ckpt.resume_step",
        sft_nodes="deployment.num_nodes",
        inference_model="inference.model.name",
        chat_template="inference.model.chat_template",
        file_monitor="file_monitor.filename",
    ),
)

GEN_0_8 = Contract(
    version="v0.8.1.dev67",
    generation="0.8",
    files=ConfigFiles(
        suffix=".json",
        trainer="trainer.json",
        orchestrator="orchestrator.json",
        inference="inference.json",
        sft="sft.json",
        sft_excludes=frozenset({"deployment", "slurm", "dry_run", "clean"}),
    ),
    keys=ConfigKeys(
        tensor_parallel="inference.vllm.tensor_parallel_size",
        data_parallel="inference.vllm.data_parallel_size",
        clean="clean",
        wandb="monitors.wandb",
        resume_step="resume.step",
        sft_nodes="deployment.num_train_nodes",
        inference_model="inference.vllm.model",
        chat_template="inference.vllm.chat_template",
        file_monitor="monitors.file.path",
    ),
    run_identity=MappingProxyType({"id": "PRL_RUN_ID", "name": "PRL_RUN_NAME"}),
)

#: Generation -> contract; the default is what the catalogued images hold.
CONTRACTS: Mapping[str, Contract] = MappingProxyType({"0.7": GEN_0_7, "0.8": GEN_0_8})
DEFAULT = GEN_0_7


def contract_for(generation: str) -> Contract:
    """The contract of a generation (``0.7`` or ``0.8``).

    Raises:
        UserError: No such generation is supported.
    """
    try:
        return CONTRACTS[generation]
    except KeyError:
        raise UserError(f"Prime-RL generation {generation!r}: expected {' or '.join(CONTRACTS)}") from None
