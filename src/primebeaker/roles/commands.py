"""The command line, environment and log of every process a role starts: pure functions of the runtime plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.layout import Layout
from primebeaker.roles.inputs import RoleInputs
from primebeaker.roles.plan import RuntimePlan
from primebeaker.roles.topology import Engine, bracketed, visible

__all__ = ["ProcessSpec", "engine", "gateway", "orchestrator", "rl_trainer", "router", "sft_trainer"]

_GATEWAY_TIMEOUT = "800"


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start.

    Attributes:
        name: ``trainer``, ``orchestrator``, ``router``, ``gateway``, ``engine0``…
        argv: The command line; never holds a credential.
        env: The whole environment.
        log: File its output is appended to.
        directories: Created before it starts.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    log: Path
    directories: tuple[Path, ...] = ()


def router(plan: RuntimePlan, layout: Layout, contract: Contract, env: Mapping[str, str]) -> ProcessSpec:
    """The one router in front of all engines."""
    port = plan.router_port
    return ProcessSpec(
        name="router",
        argv=(
            contract.programs.router,
            *("--policy", plan.router_policy),
            *("--host", "0.0.0.0"),  # noqa: S104  peers reach it
            *("--port", str(port)),
            *("--request-id-headers", contract.session_header),
            *("--prometheus-port", str(contract.router_metrics_port(port))),
            *("--worker-startup-timeout-secs", str(contract.router_startup_timeout)),
            *("--worker-urls", *(engine.url for engine in plan.engines)),
        ),
        env={**env, **plan.env["orchestrator"]},
        log=layout.router_log,
    )


def engine(
    inputs: RoleInputs, plan: RuntimePlan, layout: Layout, contract: Contract, env: Mapping[str, str], which: Engine
) -> ProcessSpec:
    """One inference engine with GPUs, port and cache directories of its own."""
    own = Path(env.get("TMPDIR", str(inputs.tmpdir))) / "inference" / f"node_{which.rank}_rank{which.replica}"
    directories = {
        "VLLM_RPC_BASE_PATH": own / "rpc",
        "VLLM_CACHE_ROOT": own / "vllm",
        "TORCHINDUCTOR_CACHE_DIR": own / "inductor",
    }
    return ProcessSpec(
        name=f"engine{which.replica}",
        argv=(
            contract.programs.inference,
            *("@", plan.configs["inference"].path),
            *("--server.host", "0.0.0.0"),  # noqa: S104  the router and the orchestrator reach it
            *("--server.port", str(which.port)),
            *("--parallel.dp", "1"),
            *("--data-parallel-size-local", "1"),
            *("--api-server-count", "1"),
        ),
        env={
            **env,
            **plan.env["inference"],
            "CUDA_VISIBLE_DEVICES": visible(which.gpus, env),
            **{name: str(path) for name, path in directories.items()},
        },
        log=layout.engine_log(which.rank, which.replica),
        directories=tuple(directories.values()),
    )


def gateway(inputs: RoleInputs, layout: Layout, env: Mapping[str, str]) -> ProcessSpec:
    """The tool gateway; the registry travels by environment, since it may hold a password."""
    return ProcessSpec(
        name="gateway",
        argv=(
            sys.executable,
            *("-m", "primebeaker.gateway"),
            *("--port", str(inputs.gateway_port)),
            *("--workers", str(inputs.gateway_workers)),
            *("--timeout", _GATEWAY_TIMEOUT),
            *("--judge-timeout", _GATEWAY_TIMEOUT),
        ),
        env={**env, "REGISTRY_PATH": inputs.registry},
        log=layout.gateway_log,
    )


def rl_trainer(
    inputs: RoleInputs, plan: RuntimePlan, layout: Layout, contract: Contract, env: Mapping[str, str]
) -> ProcessSpec:
    """The RL trainer: torchrun over the first GPUs of rank 0."""
    transport = ("--rollout_transport.host", plan.master_addr) if plan.transport == "zmq" else ()
    return ProcessSpec(
        name="trainer",
        argv=(
            contract.programs.torchrun,
            "--role=trainer",
            "--standalone",
            "--nnodes=1",
            f"--nproc-per-node={inputs.trainer_gpus}",
            "--node-rank=0",
            *_torchrun_logging(plan, layout),
            *("-m", contract.programs.rl_trainer_module),
            *("@", plan.configs["trainer"].path),
            *transport,
        ),
        env={
            **env,
            **plan.env["trainer"],
            "CUDA_VISIBLE_DEVICES": visible(range(inputs.trainer_gpus), env),
            contract.wandb_shared_label: "trainer",
            "MASTER_ADDR": plan.master_addr,
        },
        log=layout.trainer_log(0),
    )


def orchestrator(plan: RuntimePlan, layout: Layout, contract: Contract, env: Mapping[str, str]) -> ProcessSpec:
    """The orchestrator: rollouts through the router, weight updates straight to every engine."""
    hosts: list[str] = []
    if plan.broadcast == "nccl":
        hosts += ["--weight_broadcast.host", plan.master_addr]
    if plan.transport == "zmq":
        hosts += ["--rollout_transport.host", plan.master_addr]
    return ProcessSpec(
        name="orchestrator",
        argv=(
            contract.programs.orchestrator,
            *("@", plan.configs["orchestrator"].path),
            *("--model.client.base-url", plan.router_url),
            *("--model.client.admin-base-url", *plan.admin_urls),
            *hosts,
        ),
        env={
            **env,
            **plan.env["orchestrator"],
            contract.wandb_shared_label: "orchestrator",
            **({"CUDA_VISIBLE_DEVICES": env["CUDA_VISIBLE_DEVICES"]} if "CUDA_VISIBLE_DEVICES" in env else {}),
        },
        log=layout.orchestrator_log,
    )


def sft_trainer(
    inputs: RoleInputs, plan: RuntimePlan, layout: Layout, contract: Contract, env: Mapping[str, str]
) -> ProcessSpec:
    """One replica's torchrun of an SFT run.

    The rendezvous id holds the epoch, so that a torchrun of an earlier start can never join this one.
    """
    return ProcessSpec(
        name="trainer",
        argv=(
            contract.programs.torchrun,
            "--role=trainer",
            f"--nnodes={inputs.nodes}",
            f"--nproc-per-node={inputs.gpus_per_node}",
            f"--node-rank={inputs.rank}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={bracketed(plan.master_addr)}:{plan.master_port}",
            f"--rdzv-id=primebeaker_{inputs.launch_id}_{plan.epoch}",
            *_torchrun_logging(plan, layout),
            *("-m", contract.programs.sft_trainer_module),
            *("@", plan.configs["sft"].path),
        ),
        env={**env, **plan.env["trainer"], "MASTER_ADDR": plan.master_addr},
        log=layout.trainer_log(inputs.rank),
    )


def _torchrun_logging(plan: RuntimePlan, layout: Layout) -> Sequence[str]:
    return (
        f"--log-dir={layout.torchrun_logs}",
        "--tee=3",
        "--redirects=3",
        f"--local-ranks-filter={plan.ranks_filter}",
    )
