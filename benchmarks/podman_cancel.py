"""From the cancellation of 512 rollouts with live containers to the last container gone, and a stress run with faults.

The service is LiteRegistry's own server and gateway in this process, over a stand-in that answers at once, so its work
is part of the figures. Value: seconds from cancel to the last container gone.
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import verifiers as vf
from measure import own_memory, report
from tests.environments.conftest import ScriptedClient
from tests.environments.podman.conftest import bash
from tests.podman_service.answers import obedient
from tests.podman_service.service import HANGING, NO_FAULT, AnsweringBackend, PodmanService
from tests.podman_service.stress import one_in_ten, stress

ROLLOUTS = 512


def cancelled(load) -> float:
    backend = AnsweringBackend(obedient())
    with PodmanService(backend, lambda route, body: HANGING if body.get("command") == "hang" else NO_FAULT) as service:
        service.keeps_requests = False
        env = load(service.url)

        async def run():
            row = dict(env.get_dataset()[0])
            client = ScriptedClient([bash("hang")])
            rollouts = [asyncio.create_task(env.run_rollout(row, client, "m", {})) for _ in range(ROLLOUTS)]
            while len(env.containers.live) < ROLLOUTS:  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            for rollout in rollouts:
                rollout.cancel()
            await asyncio.gather(*rollouts, return_exceptions=True)
            return time.perf_counter() - began

        seconds = asyncio.run(run())
        assert not backend.running and not env.containers.live
        return seconds


def stressed(load) -> dict[str, float]:
    faults, injected = one_in_ten(seed=7)
    backend = AnsweringBackend(obedient("1"), session_idle_timeout=5.0, janitor_interval=0.5)
    with PodmanService(backend, faults) as service:
        env = load(service.url, podman_failure_policy="error")
        result = stress(env, service, ROLLOUTS, request_timeout=8.0)
        reaped = time.monotonic()
        while (backend.running or service.connections) and time.monotonic() - reaped < 60:
            time.sleep(0.1)
        return {
            "rollouts": ROLLOUTS,
            "seconds": round(result.seconds, 1),
            **{f"injected: {name}": count for name, count in sorted(injected.items())},
            "scored": len(result.scored),
            "wrong rewards": sum(abs(output["reward"] - 1.1) > 1e-9 for output in result.scored),
            "masked as infrastructure errors": len(result.masked),
            "lost handshakes": result.lost_handshakes,
            "requests in flight, most": result.most_in_flight,
            "containers left": len(backend.running),
            "tasks left": result.tasks_left,
            "connections left": service.connections,
            "memory growth, MiB": round(result.memory_growth),
        }


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text(json.dumps({"prompt": "p", "image": "u"}))

        def load(url, **arguments):
            module = "primebeaker.environments.podman_terminal_env"
            return vf.load_environment(module, dataset=str(path), podman_gateway_url=url, **arguments)

        seconds = cancelled(load)
        table = stressed(load)
    report(
        f"from cancel to the last of {ROLLOUTS} containers gone",
        seconds,
        "s",
        stress=table,
        peak_mebibytes=round(own_memory()),
    )


main()
