"""The RL role: trainer, orchestrator, router and gateway on rank 0, engines wherever a replica has GPUs for them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from primebeaker.prime_rl.checkpoint_rules import CompletenessRule, rl_rule_of
from primebeaker.prime_rl.layout import Layout
from primebeaker.roles import commands
from primebeaker.roles.causes import Cause, ExitCode
from primebeaker.roles.commands import ProcessSpec
from primebeaker.roles.moves import Move, move_aside
from primebeaker.roles.process_role import DONE
from primebeaker.roles.readiness import EngineWatch
from primebeaker.roles.rendezvous import named_ranks
from primebeaker.roles.stall import StallWatch
from primebeaker.roles.topology import Engine, engines_of
from primebeaker.roles.topology_role import TopologyRole
from primebeaker.roles.watch import Watch

__all__ = ["RLRole", "wait_for_tools"]

# Trainer and orchestrator are ended first: what they talk to goes after them.
_WAVE_FIRST, _WAVE_LATER = 0, 1


class RLRole(TopologyRole):
    """One replica of a multi-node RL run."""

    kind = "rl"
    _engines_said = -1

    async def script(self) -> Cause:
        """The phases of the role."""
        await self.arrive()
        async with self.phase("start"):
            await self._start_all()
        async with self.phase("run"):
            await self.finished.wait()
        if self.inputs.leads:
            await self.complete()
        return DONE

    def used_configs(self) -> tuple[str, ...]:
        """The sub-configs this rank's processes read."""
        own = ("inference",) if self.me.slice.count else ()
        return ("trainer", "orchestrator", *own) if self.inputs.leads else own

    async def _start_all(self) -> None:
        moves = asyncio.ensure_future(self._move_aside())
        try:
            self._start_engines()
            if not self.inputs.leads:
                return
            self._launch(commands.router(self.plan, self.layout, self.contract, self.env), _WAVE_LATER)
            await wait_for_tools(self, self.layout)
            await moves
        finally:
            moves.cancel()
        self._launch(commands.rl_trainer(self.inputs, self.plan, self.layout, self.contract, self.env), _WAVE_FIRST)
        self._launch(commands.orchestrator(self.plan, self.layout, self.contract, self.env), _WAVE_FIRST)
        self.link(self.layout.logs / "trainer.log", self.layout.trainer_log(0))
        if self.inputs.tunables.stall:
            children = [child for child in self.supervisor.children if child.name in self.policy.finishing]
            watch = StallWatch(self.inputs.tunables.stall, self.layout, children)
            self.background(watch.run(self.end, self.events.say, self.env))

    def _start_engines(self) -> None:
        own = [engine for engine in engines_of(self.members, self.plan.tp) if engine.rank == self.rank]
        if not own:
            return
        if self.held is not None:
            self.held.release()
        for engine in own:
            spec = commands.engine(self.inputs, self.plan, self.layout, self.contract, self.env, engine)
            self._launch(spec, _WAVE_LATER)
        first = self.plan.engines[0]
        if self.rank == first.rank:
            self.link(self.layout.logs / "inference.log", self.layout.engine_log(first.rank, first.replica))
        self.background(self._until_engines_ready(own))

    def _launch(self, spec: ProcessSpec, wave: int) -> None:
        self.start(spec, wave=wave, epoch=self.epoch.epoch)

    async def _move_aside(self) -> None:
        if not self.inputs.leads:
            return
        moves = [Move(*move) for move in self.prepared["moves"]]
        if moves:
            await self.files.run(lambda: move_aside(moves))
            self.events.say(f"moved {len(moves)} entries of an abandoned branch aside")
            self.events.event("moved_aside", moves=len(moves))

    async def _until_engines_ready(self, own: list[Engine]) -> None:
        def changed(count: int) -> None:
            self.me.engines_ready = count
            self.publish_soon()
            if not self.inputs.leads:
                self.events.say(f"engines of this replica ready: {count}/{len(own)}")

        def log_of(engine: Engine) -> Path:
            return self.layout.engine_log(engine.rank, engine.replica)

        watch = EngineWatch(own, self.plan.model, log_of, changed)
        try:
            async with asyncio.timeout(self.inputs.tunables.inference_ready_timeout):
                await watch.until_ready()
        except TimeoutError:
            unready = watch.unready()
            self.end(
                Cause(
                    code=ExitCode.NOT_READY,
                    cause="not-ready",
                    process=f"engine{own[0].replica}" if len(own) == 1 else "engines",
                    message=f"{len(unready)} of {len(own)} engines on rank {self.rank} are not ready within "
                    f"{self.inputs.tunables.inference_ready_timeout:g} s: {unready[0] if unready else ''}",
                    detail=tuple(unready[1:]),
                )
            )
            return
        self.events.event("ready", engines=len(own))

    def peers_seen(self, watch: Watch) -> None:
        """The leader tells how many engines are ready, and refuses that an engine replica ends too early."""
        if not self.inputs.leads or not hasattr(self, "plan"):
            return
        early = [rank for rank in watch.statuses if not self.policy.complete]
        if early:
            self.end(
                Cause(
                    code=ExitCode.ENDED_UNEXPECTEDLY,
                    cause="unexpected-end",
                    message=f"{named_ranks(early)} ended with 0 before the run was complete",
                )
            )
        counts = [int(value.get("engines_ready", 0)) for rank, value in watch.peers.items() if rank != 0]
        ready = self.me.engines_ready + sum(counts)
        if ready != self._engines_said:
            self._engines_said = ready
            self.events.say(f"engines ready {ready}/{len(self.plan.engines)}")

    def completeness(self, values: Mapping[str, Any]) -> CompletenessRule:
        """What a checkpoint of an RL run must have."""
        return rl_rule_of(values, generation=self.contract.generation)


async def wait_for_tools(role: Any, layout: Layout) -> None:
    """Registry, required services, gateway, in this order; each wait is bounded.

    Args:
        role: A role with ``inputs``, ``env`` and the ways to start and wait.
        layout: Where the gateway's log lies.

    Raises:
        RoleFault: Something is not ready in time (94).
    """
    inputs = role.inputs
    coordination = (sys.executable, "-m", "primebeaker.coordination")
    timeout = f"{inputs.rendezvous_timeout:g}"
    env = {**role.env, "REGISTRY": inputs.registry}
    await _timed(
        role, "registry", role.require_helper("registry", (*coordination, "wait-redis", "--timeout", timeout), env)
    )
    if inputs.required_services:
        needed = json.dumps(dict(inputs.required_services))
        argv = (*coordination, "wait-services", "--requirements-json", needed, "--timeout", timeout)
        await _timed(role, "services", role.require_helper("services", argv, env))
    role._launch(commands.gateway(inputs, layout, role.env), _WAVE_LATER)
    probe = (
        *(*coordination, "probe-gateway", "--url", f"http://127.0.0.1:{inputs.gateway_port}"),
        *("--model-paths-json", json.dumps(list(inputs.search_paths))),
        *("--required-path", "/judge"),
        *("--retry", timeout),
        *("--wait-health", "1"),
    )
    await _timed(role, "gateway", role.require_helper("gateway probe", probe, env))


async def _timed(role: Any, name: str, work: Coroutine[Any, Any, None]) -> None:
    started = asyncio.get_running_loop().time()
    role.events.say(f"waiting for {name}")
    await work
    seconds = round(asyncio.get_running_loop().time() - started, 3)
    role.events.say(f"{name} ready after {seconds:.1f} s")
    role.events.event("ready", barrier=name, seconds=seconds)
