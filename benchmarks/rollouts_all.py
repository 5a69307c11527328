"""Rollouts a second of all sixteen environments at concurrency 1, 64 and 512, with a scripted model.

Services are fakes on this machine that answer at once, so their own work is part of the figure; each environment plays
the shortest rollout that earns its best reward. Value: the lowest rate of any of them at concurrency 512.
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
from tests.environments.conftest import FakeGateway, ScriptedClient
from tests.environments.test_all import BEST, ROW
from tests.podman_service.answers import obedient
from tests.podman_service.service import AnsweringBackend, PodmanService

from primebeaker.bundled import CANONICAL, ENVIRONMENT_NAMESPACE

COUNTS = {1: 40, 64: 256, 512: 512}


async def rate(env, replies, concurrency):
    row = dict(env.get_dataset()[0])
    client = ScriptedClient(replies)
    slots = asyncio.Semaphore(concurrency)

    async def one():
        async with slots:
            output = await env.run_rollout(row, client, "m", {})
            assert output["error"] is None
            return output["reward"]

    started = time.perf_counter()
    rewards = await asyncio.gather(*(one() for _ in range(COUNTS[concurrency])))
    assert len(set(rewards)) == 1
    seconds = time.perf_counter() - started
    await env._teardown()
    return COUNTS[concurrency] / seconds


def main() -> None:
    logging.disable(logging.CRITICAL)
    gateway = FakeGateway()
    gateway.answers["classify"] = lambda body: {"data": [{"probs": [0.25, 0.75]}]}
    gateway.answers["judge"] = lambda body: {"judgments": [{"rubric_index": 0, "label": "pass", "feedback": "f"}]}
    figures = {}
    with (
        gateway.server,
        PodmanService(AnsweringBackend(obedient("1"))) as podman,
        tempfile.TemporaryDirectory() as home,
    ):
        podman.keeps_requests = False
        for name, module in CANONICAL.items():
            arguments = {"podman_gateway_url": podman.url} if name == "podman-terminal" else {}
            if name == "reward-model":
                arguments = {"reward_model_path": "m", "reward_server_url": f"{gateway.url}/classify"}
            if name.endswith("-judge"):
                arguments = {"judge_model_path": "j", "judge_server_url": f"{gateway.url}/judge"}
            path = Path(home) / f"{name}.jsonl"
            path.write_text(json.dumps({**ROW, "answer": "B"} if name == "multiple-choice-accuracy" else ROW))
            env = vf.load_environment(f"{ENVIRONMENT_NAMESPACE}.{module}", dataset=str(path), **arguments)
            figures[name] = {n: round(asyncio.run(rate(env, BEST[name][0], n)), 1) for n in COUNTS}
    report(
        "rollouts a second of the slowest environment at 512",
        min(found[512] for found in figures.values()),
        "1/s",
        per_second=figures,
        peak_mebibytes=round(own_memory()),
    )


main()
