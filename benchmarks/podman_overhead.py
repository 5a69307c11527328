"""What a turn of podman-terminal costs over the same turn of the bare Verifiers loop, in milliseconds.

The container's client answers at once in this process, so the figure is the environment's own work: finding and
checking calls, counting, cutting and storing results. Value: the greatest of concurrency 1, 64 and 512.
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
from datasets import Dataset
from measure import report
from tests.environments.conftest import ScriptedClient
from tests.podman_service.answers import obedient

TURNS = 20
ANSWER = obedient("1", say=lambda container, command: "12: some words\n" * 20)


def call(command):
    arguments = json.dumps({"command": command})
    return {"content": "I look.", "tool_calls": [{"id": "c1", "name": "bash", "arguments": arguments}]}


REPLIES = [*[call("ls -la")] * (TURNS - 1), call("echo TERMINAL_COMPLETE")]


class AtOnce:
    """A container without a service."""

    started = False
    container_id = affinity_id = "c"

    async def start(self):
        self.started = True

    async def execute(self, *, command, stdin, timeout, workdir):  # noqa: ASYNC109  # as the tool client has it
        await asyncio.sleep(0)
        stdout, code = ANSWER("c", command, stdin)
        return {"stdout": stdout, "stderr": "", "success": code == 0, "exit_code": code, "execution_time": 0.01}

    async def close(self):
        return {"removed": True}


class Bare(vf.MultiTurnEnv):
    """The same turns with nothing but Verifiers."""

    async def env_response(self, messages, state, **keywords):
        await asyncio.sleep(0)
        answer = {"role": "tool", "tool_call_id": "c1", "content": "12: some words\n" * 20}
        if len(state["trajectory"]) == TURNS:
            state["final_env_response"] = [answer]
        return [answer]


def paid(completion, answer):
    return 1.0


async def per_turn(env, concurrency, rollouts):
    row = dict(env.get_dataset()[0])
    client = ScriptedClient(REPLIES)
    slots = asyncio.Semaphore(concurrency)

    async def one():
        async with slots:
            output = await env.run_rollout(row, client, "m", {})
            assert output["error"] is None and output["reward"] >= 1

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(rollouts)))
    return 1000 * (time.perf_counter() - started) / rollouts / TURNS


def main() -> None:
    logging.disable(logging.CRITICAL)
    row = {"prompt": [{"role": "user", "content": "Solve. " * 200}], "image": "u", "answer": ""}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text(json.dumps(row))
        module = "primebeaker.environments.podman_terminal_env"
        ours = vf.load_environment(module, dataset=str(path), podman_client_factory=AtOnce)
    bare = Bare(dataset=Dataset.from_list([row]), rubric=vf.Rubric(funcs=[paid]), max_turns=-1)
    figures = {}
    for concurrency, rollouts in ((1, 20), (64, 64), (512, 512)):
        best = {"ours": 1e9, "bare": 1e9}
        for _ in range(3):
            for name, env in (("ours", ours), ("bare", bare)):
                best[name] = min(best[name], asyncio.run(per_turn(env, concurrency, rollouts)))
        figures[concurrency] = {name: round(value, 3) for name, value in best.items()}
    overhead = {concurrency: round(found["ours"] - found["bare"], 3) for concurrency, found in figures.items()}
    report("podman-terminal: a turn over bare Verifiers", max(overhead.values()), "ms", overhead=overhead, turn=figures)


main()
