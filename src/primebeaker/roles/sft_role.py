"""The SFT role: one torchrun a replica, all in one torch rendezvous."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from primebeaker.prime_rl.checkpoint_rules import CompletenessRule, sft_rule
from primebeaker.prime_rl.tables import lookup
from primebeaker.roles import commands
from primebeaker.roles.causes import Cause, ExitCode
from primebeaker.roles.clock import utc_now
from primebeaker.roles.config_choice import load_values
from primebeaker.roles.moves import Move, move_aside
from primebeaker.roles.process_role import DONE
from primebeaker.roles.rendezvous import named_ranks
from primebeaker.roles.stall import StallWatch
from primebeaker.roles.topology import role_name
from primebeaker.roles.topology_role import TopologyRole
from primebeaker.roles.watch import Watch

__all__ = ["SFTRole"]


class SFTRole(TopologyRole):
    """One replica of a multi-node SFT run."""

    kind = "sft"

    async def script(self) -> Cause:
        """The phases of the role."""
        self._others_ended = asyncio.Event()
        await self.arrive()
        async with self.phase("start"):
            await self._start_trainer()
        async with self.phase("run"):
            await self.finished.wait()
        await self._until_all_ended()
        return DONE

    def used_configs(self) -> tuple[str, ...]:
        """The sub-configs this rank's processes read."""
        return ("sft",)

    async def _start_trainer(self) -> None:
        if self.inputs.leads:
            moves = [Move(*move) for move in self.prepared["moves"]]
            if moves:
                await self.files.run(lambda: move_aside(moves))
                self.events.say(f"moved {len(moves)} entries of an abandoned branch aside")
        env = {**self.env, **self._identity()}
        spec = commands.sft_trainer(self.inputs, self.plan, self.layout, self.contract, env)
        child = self.start(spec, wave=0, epoch=self.epoch.epoch)
        if self.inputs.leads:
            self.link(self.layout.logs / "trainer.log", self.layout.trainer_log(0))
        if self.inputs.tunables.stall:
            watch = StallWatch(self.inputs.tunables.stall, self.layout, [child])
            self.background(watch.run(self.end, self.events.say, self.env))

    def _identity(self) -> dict[str, str]:
        """The run's identity, where the Prime-RL version takes it from the environment."""
        names = self.contract.run_identity
        if not names:
            return {}
        values = load_values(self.inputs.config_path)
        run_id = self.env.get(self.contract.wandb_run_id) or self.inputs.launch_id
        return {names["id"]: run_id, names["name"]: str(lookup(values, "run.name", self.inputs.output_dir.name))}

    async def _until_all_ended(self) -> None:
        """A rank that ended well waits until all have."""
        self.policy.complete = True
        await self.files.write(
            self.paths.status(self.epoch.epoch, self.rank),
            DONE.as_json(rank=self.rank, role=role_name(self.inputs), ended_at=utc_now()),
        )
        self.finished.clear()
        try:
            async with asyncio.timeout(self.drain_timeout):
                if self.inputs.leads:
                    await self._others_ended.wait()
                    await self.complete()
                else:
                    await self.finished.wait()
        except TimeoutError:
            missing = [member.rank for member in self.members if member.rank not in self._ended_ranks()]
            self.end(
                Cause(
                    code=ExitCode.ENDED_UNEXPECTEDLY,
                    cause="drain",
                    process="trainer",
                    message=f"{named_ranks(missing)} did not end within {self.drain_timeout:g} s of rank {self.rank}",
                )
            )
            await asyncio.Event().wait()

    def _ended_ranks(self) -> set[int]:
        return {self.rank, *(self.watch.statuses if self.watch is not None else ())}

    def peers_seen(self, watch: Watch) -> None:
        """The leader notices when the last rank has ended."""
        if len(watch.statuses) == self.inputs.nodes - 1:
            self._others_ended.set()

    def completeness(self, values: Mapping[str, Any]) -> CompletenessRule:
        """What a checkpoint of an SFT run must have."""
        return sft_rule()
