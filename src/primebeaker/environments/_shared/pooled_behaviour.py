"""What all behaviours with services have in common: they hold the connections for the time of a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import Behaviour, Reward, State
from primebeaker.environments._shared.live import drop_live, live_of, output_of
from primebeaker.environments._shared.services import OutageLog, ServicePool

__all__ = ["PooledBehaviour"]


class PooledBehaviour(Behaviour):
    """A behaviour that asks services during a rollout.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        pool: Connections and request slots.
    """

    def __init__(self, environment: str, *, rewards: Sequence[Reward], pool: ServicePool) -> None:
        self.environment = environment
        self.rewards = rewards
        self.pool = pool
        self.outages = OutageLog(environment)

    async def setup(self, env: Any, state: State) -> None:
        """Hold the connections, and find the judged output."""
        live = live_of(state)
        self.pool.acquire()
        live.holds_pool = True
        live.output = output_of(state)

    async def cleanup(self, env: Any, state: State) -> None:
        """Drop what the rollout held, and give the connections up."""
        live = live_of(state)
        drop_live(state)
        if live.holds_pool:
            await self.pool.release()

    async def teardown(self, env: Any) -> None:
        """Close the connections."""
        await self.pool.close()
