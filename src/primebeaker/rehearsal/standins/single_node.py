"""Stand-ins for the single-node launchers ``rl`` and ``sft``: the same pieces in one process tree.

They resolve the TOML into sub-configs, give inference the first GPUs and the trainer the next, start the pieces from
``PATH``, show the orchestrator's and the trainer's lines, and end together.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import GEN_0_7, Component
from primebeaker.prime_rl.layout import Layout
from primebeaker.prime_rl.resolve import ResolvedRL, resolve_rl, resolve_sft
from primebeaker.prime_rl.subconfigs import write_subconfigs
from primebeaker.prime_rl.tables import Table, fill, lookup, put
from primebeaker.rehearsal.standins.channel import free_port
from primebeaker.rehearsal.standins.program import load_config, log, parse
from primebeaker.supervision import Child, ChildSpec, Console, LogOptions, StopSignals, Supervisor

__all__ = ["rl", "sft"]

_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Gpus:
    """Which GPUs a single node's pieces get."""

    inference: list[str]
    trainer: list[str]


def rl(words: list[str]) -> int:
    """``rl @ FILE``."""
    config = load_config(parse(words, {}))
    resolved = resolve_rl(config)
    for notice in resolved.notices:
        log(notice)
    gpus = _divide(config)
    if resolved.broadcast == "nccl":
        for table in (resolved.trainer, resolved.orchestrator):
            put(table, "weight_broadcast.inference_world_size", len(gpus.inference))
    if gpus.inference:
        _point_to_inference(resolved)
    layout = GEN_0_7.layout(_output_dir(config))
    files = GEN_0_7.files
    tables: dict[str, Table] = {files.trainer: resolved.trainer, files.orchestrator: resolved.orchestrator}
    if gpus.inference:
        tables[files.inference] = resolved.inference
    write_subconfigs(layout.configs, tables, GEN_0_7, stamp=secrets.token_hex(4))
    return asyncio.run(_run(_rl_children(resolved, gpus, layout), ends=("trainer", "orchestrator")))


def _point_to_inference(resolved: ResolvedRL) -> None:
    """Send rollouts to the router's port, and admin calls past the router to the engine.

    Raises:
        UserError: The TOML sends rollouts to another port than inference listens on.
    """
    key, port = "model.client.base_url", resolved.router_port
    fill(resolved.orchestrator, key, [f"http://localhost:{GEN_0_7.ports.router}/v1"])
    urls = lookup(resolved.orchestrator, key)
    url = urls[0] if isinstance(urls, list) else str(urls)
    if urlsplit(url).port != port:
        raise UserError(
            f"orchestrator.{key} = {url!r}: its port is not inference.server.port = {port}",
            hint=f"write http://localhost:{port}/v1",
        )
    if isinstance(resolved.inference.get("router"), dict):
        engine = lookup(resolved.inference, "backend_port")
        fill(resolved.orchestrator, "model.client.admin_base_url", [f"http://localhost:{engine}/v1"])


def sft(words: list[str]) -> int:
    """``sft @ FILE``."""
    config = load_config(parse(words, {}))
    resolved = resolve_sft(config)
    for notice in resolved.notices:
        log(notice)
    layout = GEN_0_7.layout(_output_dir(config))
    write_subconfigs(layout.configs, {GEN_0_7.files.sft: resolved.config}, GEN_0_7, stamp=secrets.token_hex(4))
    gpus = _available(int(lookup(config, "deployment.num_gpus", 1)))
    environment = {**os.environ, **resolved.env, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    words = [GEN_0_7.programs.sft_trainer_module, "@", str(layout.configs / GEN_0_7.files.sft)]
    child = _torchrun(words, len(gpus), resolved.ranks_filter, layout, environment)
    return asyncio.run(_run([child], ends=("trainer",)))


def _rl_children(resolved: ResolvedRL, gpus: Gpus, layout: Layout) -> list[ChildSpec]:
    shared = {
        **os.environ,
        "WANDB_SHARED_MODE": "1",
        "WANDB_SHARED_RUN_ID": os.environ.get("WANDB_SHARED_RUN_ID") or uuid.uuid4().hex,
    }

    def environment(component: Component) -> dict[str, str]:
        return {**shared, **resolved.env(component), "WANDB_SHARED_LABEL": component}

    files, programs = GEN_0_7.files, GEN_0_7.programs
    children = []
    if gpus.inference:
        children.append(
            ChildSpec(
                name="inference",
                argv=[programs.inference, "@", str(layout.configs / files.inference)],
                env={**environment("inference"), "CUDA_VISIBLE_DEVICES": ",".join(gpus.inference)},
                cwd=Path.cwd(),
                log=LogOptions(layout.logs / "inference.log"),
                wave=1,
            )
        )
    children.append(
        ChildSpec(
            name="orchestrator",
            argv=[programs.orchestrator, "@", str(layout.configs / files.orchestrator)],
            env=environment("orchestrator"),
            cwd=Path.cwd(),
            log=LogOptions(layout.logs / "orchestrator.log"),
            console_prefix="[orchestrator] ",
        )
    )
    trainer = {**environment("trainer"), "CUDA_VISIBLE_DEVICES": ",".join(gpus.trainer)}
    words = [programs.rl_trainer_module, "@", str(layout.configs / files.trainer)]
    children.append(_torchrun(words, len(gpus.trainer), resolved.ranks_filter, layout, trainer))
    return children


def _torchrun(
    words: list[str], count: int, ranks_filter: str, layout: Layout, environment: Mapping[str, str]
) -> ChildSpec:
    return ChildSpec(
        name="trainer",
        argv=[
            GEN_0_7.programs.torchrun,
            "--role=trainer",
            f"--rdzv-endpoint=localhost:{free_port()}",
            f"--rdzv-id={uuid.uuid4().hex}",
            f"--log-dir={layout.torchrun_logs}",
            f"--local-ranks-filter={ranks_filter}",
            "--redirect=3",
            "--tee=3",
            f"--nproc-per-node={count}",
            "-m",
            *words,
        ],
        env=environment,
        cwd=Path.cwd(),
        log=LogOptions(layout.logs / "trainer.log"),
        console_prefix="[trainer] ",
        strip_torchrun_prefix=True,
    )


async def _run(specs: list[ChildSpec], *, ends: tuple[str, ...]) -> int:
    """Run until the children named by ``ends`` have ended well, or one ends otherwise."""
    changed = asyncio.Event()
    console = Console()
    async with Supervisor(console=console, on_exit=lambda child: changed.set()) as supervisor:
        with StopSignals(supervisor.hurry) as signals:
            children = [supervisor.start(spec) for spec in specs]
            stop = asyncio.ensure_future(signals.wait())
            while not stop.done() and not _failed(children, ends) and _left(children, ends):
                changed.clear()
                change = asyncio.ensure_future(changed.wait())
                await asyncio.wait((stop, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            failed = _failed(children, ends)
            await supervisor.shut_down(_GRACE_SECONDS)
            await asyncio.to_thread(console.close)
            if stop.done():
                return signals.exit_code
            stop.cancel()
    if failed is not None:
        assert failed.exit is not None, "it failed by ending"
        log(f"{failed.name} ended with {failed.exit.code}; its last lines:")
        for line in failed.last_lines():
            log(f"  {line}")
        return 1
    return 0


def _failed(children: list[Child], ends: tuple[str, ...]) -> Child | None:
    for child in children:
        if child.exit is not None and child.ended_by_itself and (child.exit.code or child.name not in ends):
            return child
    return None


def _left(children: list[Child], ends: tuple[str, ...]) -> bool:
    return any(child.exit is None for child in children if child.name in ends)


def _divide(config: Table) -> Gpus:
    count = int(lookup(config, "deployment.num_infer_gpus", 1)) if "inference" in config else 0
    trainers = int(lookup(config, "deployment.num_train_gpus", 1))
    gpus = _available(count + trainers)
    return Gpus(gpus[:count], gpus[count:])


def _available(wanted: int) -> list[str]:
    """The first ``wanted`` GPUs of this node; a rehearsal's are numbers only.

    Raises:
        UserError: The node was given fewer.
    """
    named = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    count = os.environ.get("BEAKER_ASSIGNED_GPU_COUNT", "")
    gpus = named or [str(number) for number in range(int(count) if count.isdigit() else wanted)]
    if wanted > len(gpus):
        raise UserError(f"requested {wanted} GPUs by deployment settings, but only {len(gpus)} are available")
    return gpus[:wanted]


def _output_dir(config: Table) -> Path:
    value = config.get("output_dir", "outputs")
    if not isinstance(value, str):
        raise UserError(f"output_dir = {value!r}: expected a path")
    return Path(value)
