"""When the engines of a replica are ready, and when the leader's gateway is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from primebeaker.roles.http import fetch, fetch_json
from primebeaker.roles.topology import Engine

__all__ = ["EngineWatch", "engine_state"]

_CONNECT_SECONDS = 2.0
_READ_SECONDS = 10.0
_PAUSE_SECONDS = 1.0


async def engine_state(url: str, model: str) -> str:
    """``ready``, or what an engine still lacks.

    Ready means that ``/health`` answers 200 and ``/v1/models`` lists the model; either alone is not enough.
    """
    health = await fetch(f"{url}/health", connect=_CONNECT_SECONDS, total=_READ_SECONDS)
    if health.status != 200:
        return f"/health: {health.reason}"
    answer, models = await fetch_json(f"{url}/v1/models", connect=_CONNECT_SECONDS, total=_READ_SECONDS)
    if answer.status != 200:
        return f"/v1/models: {answer.reason}"
    listed = [entry.get("id") for entry in models.get("data", [])] if isinstance(models, Mapping) else []
    return "ready" if model in listed else f"/v1/models lists {', '.join(map(str, listed)) or 'nothing'}, not {model}"


@dataclass
class EngineWatch:
    """Polls the engines of one replica until all are ready.

    Attributes:
        engines: The engines of this replica.
        model: The name they must serve.
        log_of: Engine -> log file, for messages.
        changed: Called with the number of ready engines whenever it changes.
    """

    engines: Sequence[Engine]
    model: str
    log_of: Callable[[Engine], Path]
    changed: Callable[[int], None]
    states: dict[int, str] = field(default_factory=dict)

    async def until_ready(self) -> None:
        """Return when every engine is ready; the caller bounds the time."""
        ready: set[int] = set()
        while len(ready) < len(self.engines):
            waiting = [engine for engine in self.engines if engine.replica not in ready]
            states = await asyncio.gather(*(engine_state(engine.url, self.model) for engine in waiting))
            for engine, state in zip(waiting, states, strict=True):
                self.states[engine.replica] = state
            now = {engine.replica for engine, state in zip(waiting, states, strict=True) if state == "ready"}
            if now:
                ready |= now
                self.changed(len(ready))
            if len(ready) < len(self.engines):
                await asyncio.sleep(_PAUSE_SECONDS)

    def unready(self) -> list[str]:
        """Every engine that is not ready: name, URL, last state, log file."""
        return [
            f"engine{engine.replica} of rank {engine.rank} ({engine.url}): "
            f"{self.states.get(engine.replica, 'never asked')}; log {self.log_of(engine)}"
            for engine in self.engines
            if self.states.get(engine.replica) != "ready"
        ]
