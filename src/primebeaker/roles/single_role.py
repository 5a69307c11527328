"""A single-node RL task with a tool gateway, or with services to stop at its end, beside ``rl``."""

from __future__ import annotations

import os
from pathlib import Path

from primebeaker.errors import Mistakes, UserError
from primebeaker.prime_rl.contract import Contract
from primebeaker.roles.causes import Cause
from primebeaker.roles.commands import ProcessSpec
from primebeaker.roles.config_choice import contract_of, load_values
from primebeaker.roles.inputs import GatewayInputs, read_gateway_inputs, read_tunables
from primebeaker.roles.process_role import DONE, ProcessRole
from primebeaker.roles.rl_role import wait_for_tools
from primebeaker.roles.stall import StallWatch
from primebeaker.supervision import Child

__all__ = ["SingleRole"]


class SingleRole(ProcessRole):
    """``rl @ FILE`` as a child, the gateway beside it."""

    config: Path
    contract: Contract
    _stall = 0.0

    async def script(self) -> Cause:
        """Registry, services, gateway, then ``rl``; its code is the task's."""
        async with self.phase("check"):
            gateway = self._check()
        layout = self.contract.layout(Path(self.env["OUTPUT_DIR"]))
        self.layout = layout
        self.events.open(layout.logs / "primebeaker" / "rank_0.jsonl")
        if gateway is not None:
            self.inputs = gateway
            async with self.phase("start"):
                await wait_for_tools(self, layout)
        program = self.contract.programs.rl
        child = self._launch(
            ProcessSpec(name="rl", argv=(program, "@", str(self.config)), env=self.env, log=layout.logs / "rl.log"), 0
        )
        if self._stall:
            # What ``rl`` itself prints is the orchestrator's log alone.
            watch = StallWatch(self._stall, layout, [child], layout.single_node_logs)
            self.background(watch.run(self.end, self.events.say, self.env))
        async with self.phase("run"):
            await self.finished.wait()
        return DONE

    def _check(self) -> GatewayInputs | None:
        mistakes = Mistakes()
        output_dir = self.env.get("OUTPUT_DIR", "")
        if not Path(output_dir).is_absolute():
            mistakes.add(UserError(f"OUTPUT_DIR = {output_dir!r}: expected an absolute path"))
        if not os.access(self.config, os.R_OK):
            mistakes.add(UserError("cannot be read", file=self.config))
        with mistakes.collect():
            tunables = read_tunables(self.env)
            self.grace, self._stall = tunables.grace, tunables.stall
        gateway = None
        with mistakes.collect():
            gateway = read_gateway_inputs(self.env) if "GATEWAY_PORT" in self.env else None
        mistakes.raise_if_any()
        self.contract = contract_of(load_values(self.config))
        return gateway

    def _launch(self, spec: ProcessSpec, wave: int) -> Child:
        return self.start(spec, wave=wave)
