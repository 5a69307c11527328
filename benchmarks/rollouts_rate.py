"""Rollouts a second of tool-label with a scripted model, against a bare Verifiers environment with the same turns.

Value: the smallest ratio over concurrency 1, 64 and 512; it should be at least 0.8.
"""

import asyncio
import json
import logging
import tempfile
import time
from pathlib import Path

import verifiers as vf
from datasets import Dataset
from measure import report
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, Usage

VERDICT = json.dumps({"feedback": "because", "label": "pass"})
CALL = {"id": "c1", "name": "terminal", "arguments": json.dumps({"command": "rg -n words | head"})}
RESULT = {"stdout": "12: some words\n" * 20, "stderr": "", "success": True, "exit_code": 0, "execution_time": 0.01}
TURNS = 4


class Scripted(Client):
    """Calls the terminal three times, then answers."""

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, *arguments, **keywords):
        return None

    async def raise_from_native_response(self, response):
        return None

    async def from_native_response(self, response):
        return response

    async def close(self):
        return None

    async def get_response(self, prompt, model, sampling_args, tools=None, **keywords):
        await asyncio.sleep(0)
        done = len(keywords["state"]["trajectory"]) == TURNS - 1
        content, calls = (VERDICT, None) if done else ("I look.", [CALL])
        message = ResponseMessage(content=content, tool_calls=calls, finish_reason="stop", is_truncated=False)
        usage = Usage(prompt_tokens=1, reasoning_tokens=0, completion_tokens=1, total_tokens=2)
        return Response(id="r", created=1, model=model, usage=usage, message=message)


class LocalTerminal:
    """A terminal client without a service."""

    async def execute(self, *, command, contents):
        await asyncio.sleep(0)
        return RESULT


class Bare(vf.MultiTurnEnv):
    """The same turns with nothing but Verifiers."""

    async def env_response(self, messages, state, **keywords):
        await asyncio.sleep(0)
        return [{"role": "tool", "tool_call_id": "c1", "content": json.dumps(RESULT)}]


def answered(completion, answer):
    return float(json.loads(completion[-1].content)["label"] == answer)


async def rate(env, concurrency, rollouts):
    row = dict(env.get_dataset()[0])
    client = Scripted(object())
    slots = asyncio.Semaphore(concurrency)

    async def one():
        async with slots:
            output = await env.run_rollout(row, client, "m", {})
            assert output["error"] is None and output["reward"] >= 1

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(rollouts)))
    return rollouts / (time.perf_counter() - started)


def main() -> None:
    logging.disable(logging.WARNING)
    row = {"prompt": [{"role": "user", "content": "Judge. " * 200}], "answer": "pass", "output": "some words " * 500}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text(json.dumps(row))
        ours = vf.load_environment("primebeaker.environments.jtc_tool_label_env", dataset=str(path))
    ours.tool_clients = {"terminal": LocalTerminal()}
    bare = Bare(dataset=Dataset.from_list([row]), rubric=vf.Rubric(funcs=[answered]), max_turns=TURNS)
    figures = {}
    for concurrency, rollouts in ((1, 100), (64, 600), (512, 1024)):
        best = {"ours": 0.0, "bare": 0.0}
        for _ in range(3):
            for name, env in (("ours", ours), ("bare", bare)):
                best[name] = max(best[name], asyncio.run(rate(env, concurrency, rollouts)))
        figures[concurrency] = {name: round(value, 1) for name, value in best.items()}
    ratios = {concurrency: round(found["ours"] / found["bare"], 2) for concurrency, found in figures.items()}
    report(
        "rollouts a second over bare Verifiers",
        min(ratios.values()),
        "ratio",
        least=0.8,
        per_second=figures,
        ratios=ratios,
    )


main()
