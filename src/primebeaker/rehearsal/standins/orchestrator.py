"""Stand-in for ``orchestrator``: real rollouts through the router, batches to the trainer, policies to inference.

Batch N is made with the newest policy there will be for it, shipped, and checkpointed at the interval; whatever way the
process ends, the last shipped step is checkpointed once more, so its steps run ahead of the trainer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.errors import ExternalError, UserError
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.layout import Layout
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.candidates import KINDS
from primebeaker.rehearsal.policy import Sample
from primebeaker.rehearsal.settings import load_settings
from primebeaker.rehearsal.standins import disk
from primebeaker.rehearsal.standins.admin import InferencePool
from primebeaker.rehearsal.standins.channel import Channel, connect
from primebeaker.rehearsal.standins.checkpoint import Retention, read_progress, remove_old, write_progress
from primebeaker.rehearsal.standins.collectors import Environments, Invented
from primebeaker.rehearsal.standins.metrics import append_metrics, append_records
from primebeaker.rehearsal.standins.orders import holding
from primebeaker.rehearsal.standins.outcome import Collector, Rollout, Split
from primebeaker.rehearsal.standins.program import FlagKind, load_config, log, parse, run
from primebeaker.rehearsal.standins.weights import WeightGroup

OVERRIDES = (
    "--model.client.base-url",
    "--model.client.admin-base-url",
    "--weight_broadcast.host",
    "--rollout_transport.host",
)
FLAGS: Mapping[str, FlagKind] = {**dict.fromkeys(OVERRIDES, "value"), "--model.client.admin-base-url": "list"}
_POLL_SECONDS = 0.05
_TRAINER_SECONDS = 600.0


class Orchestrator:
    """The loop over steps."""

    def __init__(self, config: Table, pool: InferencePool, collector: Collector) -> None:
        self.config = config
        self.pool = pool
        self.collector = collector
        self.nested = Path(str(config["output_dir"]))
        self.layout = GEN_0_7.layout(self.nested.parent if self.nested.name == "run_default" else self.nested)
        self.max_steps: int | None = lookup(config, "max_steps")
        self.broadcast = str(lookup(config, "weight_broadcast.type", "nccl"))
        self.transport = Shipping(config, self.layout)
        self.shipped = 0
        self.totals = {"total_samples": 0, "total_tool_calls": 0}

    async def run(self) -> None:
        """Run to the last step.

        Raises:
            UserError: The checkpoint to resume from is not there.
            ExternalError: Inference or trainer did not come, or went away.
        """
        await self._wait_for_inference()
        resumed = self._resume()
        self.shipped = resumed or 0
        if self.broadcast == "nccl":
            await self._take_policy(self.shipped)
        elif resumed is not None:
            if not (self.layout.broadcast(resumed) / "STABLE").exists():
                raise UserError(f"No weight directory found for checkpoint step {resumed}", file=self.layout.broadcasts)
            await self._take_policy(resumed)
        first = self.shipped + 1
        step = first
        try:
            while self.max_steps is None or step <= self.max_steps:
                if step > first and self._is_sent(step - 1):
                    await self._take_policy(step - 1)
                await self._step(step)
                step += 1
        finally:
            if self.config.get("ckpt") is not None and self.shipped:
                self._save(self.shipped)

    async def _wait_for_inference(self) -> None:
        model = str(lookup(self.config, "model.name", GEN_0_7.default_model))
        log(f"Waiting for inference at {self.pool.base_url}")
        await self.pool.wait_ready(model, float(lookup(self.config, "model.client.wait_for_ready_timeout", 1800)))
        if self.broadcast == "nccl":
            values = self.config["weight_broadcast"]
            await self.pool.join_weight_group(
                WeightGroup(
                    str(values.get("host", "localhost")),
                    int(values.get("port", GEN_0_7.ports.nccl)),
                    int(values.get("inference_world_size", 1)),
                    float(values.get("timeout", 1200)),
                )
            )

    def _resume(self) -> int | None:
        step = lookup(self.config, "ckpt.resume_step")
        if step == -1:
            names = self.layout.orchestrator_checkpoints.glob("step_*")
            step = max((int(name.name.rpartition("_")[2]) for name in names), default=None)
        if step is None:
            return None
        saved = read_progress(self.layout.orchestrator_progress(step))
        self.totals.update({key: saved.get(key, 0) for key in self.totals})
        log(f"Resuming orchestrator from checkpoint step {step}")
        return int(step)

    def _is_sent(self, version: int) -> bool:
        """Whether the trainer sends this policy: in memory it leaves out those that nobody would use."""
        return self.broadcast != "nccl" or self.max_steps is None or version < self.max_steps - 1

    async def _take_policy(self, version: int) -> None:
        directory = self.layout.broadcast(version)
        await _until_exists(directory / "STABLE", f"the trainer's policy {version}")
        await self.pool.update(directory, in_memory=self.broadcast == "nccl")

    async def _step(self, step: int) -> None:
        started = time.monotonic()
        rollouts = await self.collector.collect("train", step)
        self._record("train", step, rollouts)
        samples = [rollout.sample for rollout in rollouts if rollout.sample is not None]
        await asyncio.to_thread(self.transport.ship, step, samples)
        self.shipped = step
        self.totals["total_samples"] += len(rollouts)
        self.totals["total_tool_calls"] += sum(rollout.tool_calls for rollout in rollouts)
        interval = lookup(self.config, "ckpt.interval")
        if interval and step % interval == 0 and step != self.max_steps:
            self._save(step)
        self._log(step, rollouts, len(samples), time.monotonic() - started)
        for seconds in holding(step):
            await asyncio.sleep(seconds)
        eval_interval = lookup(self.config, "eval.interval")
        if eval_interval and step % eval_interval == 0:
            evaluated = await self.collector.collect("eval", step)
            self._record("eval", step, evaluated)
            if evaluated:
                mean = sum(rollout.reward for rollout in evaluated) / len(evaluated)
                log(f"Evaluated step {step} | Reward {mean:.4f} | {len(evaluated)} rollouts")

    def _record(self, split: Split, step: int, rollouts: Sequence[Rollout]) -> None:
        if rollouts:
            append_records(self.layout.trace_file(step, split, "all"), [rollout.record for rollout in rollouts])
            clean = [rollout.record for rollout in rollouts if rollout.error is None]
            append_records(self.layout.trace_file(step, split, "effective"), clean)

    def _log(self, step: int, rollouts: Sequence[Rollout], learnt: int, seconds: float) -> None:
        rewards = [rollout.reward for rollout in rollouts]
        errors = sum(rollout.error is not None for rollout in rollouts)
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        log(f"Step {step} | {seconds:.2f}s | Reward {mean:.4f} | {len(rollouts)} rollouts, {errors} errors")
        for error in sorted({rollout.error for rollout in rollouts if rollout.error}):
            log(f"Step {step} | rollout error: {error}")
        metrics: dict[str, Any] = {
            "train/agg/all/reward/mean": mean,
            "train/agg/all/reward/max": max(rewards, default=0.0),
            "train/agg/all/reward/min": min(rewards, default=0.0),
            "train/agg/all/has_error/mean": errors / len(rollouts) if rollouts else 0.0,
            "progress/rollouts": len(rollouts),
            "progress/total_rollouts": self.totals["total_samples"],
            "rehearsal/errors": errors,
            "rehearsal/learnt_from": learnt,
            "rehearsal/tool_calls": sum(rollout.tool_calls for rollout in rollouts),
            "rehearsal/kinds": _by_kind(rollouts),
            "rehearsal/tool_failures": sum(rollout.tool_failures for rollout in rollouts),
            "time/step": seconds,
        }
        for name in sorted({rollout.source for rollout in rollouts}):
            own = [rollout.reward for rollout in rollouts if rollout.source == name]
            metrics[f"train/{name}/all/reward/mean"] = sum(own) / len(own)
            metrics[f"batch/{name}"] = len(own) / len(rollouts)
        append_metrics(self.layout.orchestrator_metrics, step, metrics)

    def _save(self, step: int) -> None:
        write_progress(self.layout.orchestrator_progress(step), {"step": step, **self.totals})
        retention = Retention(lookup(self.config, "ckpt.keep_last"), lookup(self.config, "ckpt.keep_interval"))
        remove_old(self.layout.orchestrator_checkpoints, retention, newest=step)


class Shipping:
    """Sends batches to the trainer: over its port, or as files."""

    def __init__(self, config: Table, layout: Layout) -> None:
        self._layout = layout
        self._channel: Channel | None = None
        self._address: tuple[str, int] | None = None
        if lookup(config, "rollout_transport.type", "zmq") == "zmq":
            host = str(lookup(config, "rollout_transport.host", "localhost"))
            self._address = (host, int(lookup(config, "rollout_transport.port", GEN_0_7.ports.zmq)))

    def ship(self, step: int, samples: Sequence[Sample]) -> None:
        """Send batch ``step``.

        Raises:
            ExternalError: The trainer does not listen, or went away.
        """
        message = {"step": step, "samples": samples}
        if self._address is None:
            path = self._layout.orchestrator_dir / "rollouts" / f"step_{step}" / "train_rollouts.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(path, json.dumps(message))
            return
        if self._channel is None:
            self._channel = connect(*self._address, _TRAINER_SECONDS)
        self._channel.send(message)


def _by_kind(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """What each kind of reply earned: rollouts and the sum of their rewards."""
    earned: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.sample is not None:
            entry = earned.setdefault(KINDS[rollout.sample.kind], [0, 0.0])
            entry[0] += 1
            entry[1] += rollout.reward
    return earned


async def _until_exists(path: Path, what: str) -> None:
    started, told = time.monotonic(), False
    while not await asyncio.to_thread(path.exists):
        if not told and time.monotonic() - started > 10:
            log(f"Waiting for {what}: {path}")
            told = True
        await asyncio.sleep(_POLL_SECONDS)


def main(words: list[str]) -> int:
    """Run the orchestrator."""
    arguments = parse(words, FLAGS)
    config = load_config(arguments, OVERRIDES)
    settings = load_settings()
    if "output_dir" not in config:
        raise UserError("output_dir is missing", file=arguments.config)
    base_url = _first(lookup(config, "model.client.base_url", f"http://localhost:{GEN_0_7.ports.router}/v1"))
    admin = lookup(config, "model.client.admin_base_url", base_url)
    pool_urls = [admin] if isinstance(admin, str) else list(admin)
    collector = Environments(config, settings, base_url) if settings.rollouts else Invented(config, settings)
    return asyncio.run(_run(config, base_url, pool_urls, collector))


async def _run(config: Table, base_url: str, admin_urls: list[str], collector: Collector) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(Orchestrator(config, InferencePool(base_url, admin_urls), collector).run())
    stopped: list[int] = []

    def stop() -> None:
        stopped.append(128 + signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return stopped[0] if stopped else 0


def _first(value: Any) -> str:
    if isinstance(value, list) and value:
        return str(value[0])
    if isinstance(value, str):
        return value
    raise ExternalError("model.client.base_url names no URL")


if __name__ == "__main__":
    run("orchestrator", main)
