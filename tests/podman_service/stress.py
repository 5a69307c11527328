"""Many rollouts of podman-terminal against a service where one request in ten fails; used by a test and a benchmark."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ..environments.conftest import ScriptedClient
from ..environments.podman.conftest import DONE, bash
from .service import (
    DROPPED_AFTER,
    DROPPED_BEFORE,
    HANGING,
    HANGING_AFTER,
    NO_FAULT,
    Fault,
    PodmanService,
    http_error,
)

FAULTS = (http_error(503), http_error(503), DROPPED_BEFORE, DROPPED_AFTER, HANGING, HANGING_AFTER)
COLUMNS = ["jtc_tool_history", "podman_failure_phase", "podman_cleanup_error", "podman_container_id"]


def one_in_ten(seed: int) -> tuple[Callable[[str, dict[str, Any]], Fault], Counter[str]]:
    """Faults for a tenth of all requests, and how many there were of each kind."""
    chance, injected = random.Random(seed), Counter[str]()

    def faults(route: str, body: dict[str, Any]) -> Fault:
        if chance.random() >= 0.1:
            return NO_FAULT
        fault = chance.choice(FAULTS)
        injected["503" if fault.status else "timeout" if fault.hangs else "dropped connection"] += 1
        return fault

    return faults, injected


class Stressed(NamedTuple):
    """What came of a run."""

    outputs: list[dict[str, Any]]
    seconds: float
    tasks_left: int
    lost_handshakes: int
    undeleted: int
    most_in_flight: int
    memory_growth: float

    @property
    def masked(self) -> list[dict[str, Any]]:
        """The rollouts that ended in an infrastructure error."""
        return [output for output in self.outputs if output["error"] is not None]

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The others."""
        return [output for output in self.outputs if output["error"] is None]


def resident_mebibytes() -> float:
    """Resident memory of this process now."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096 / 2**20


def stress(env: Any, service: PodmanService, rollouts: int, request_timeout: float = 2.0) -> Stressed:
    """Run rollouts at once: three commands each that name the rollout, then completion."""
    env.request_timeout = request_timeout
    service.keeps_requests = False

    async def run() -> Stressed:
        row = dict(env.get_dataset()[0])
        before, began = resident_mebibytes(), time.perf_counter()
        clients = [
            ScriptedClient([bash(f"a {number}"), bash(f"b {number}", f"c {number}"), bash(DONE)])
            for number in range(rollouts)
        ]
        outputs = await asyncio.gather(
            *(env.run_rollout(row, client, "m", {}, state_columns=COLUMNS) for client in clients)
        )
        seconds = time.perf_counter() - began
        await env._teardown()
        book = env.containers
        return Stressed(
            list(outputs),
            seconds,
            len(asyncio.all_tasks()) - 1,
            len(book.lost_handshakes),
            len(book.undeleted),
            service.most_in_flight,
            resident_mebibytes() - before,
        )

    return asyncio.run(run())
