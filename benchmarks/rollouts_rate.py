"""Rollouts a processor second of each environment with a scripted model and services that answer at once.

Each is compared with a bare Verifiers environment that does the same turns in the same run.
Value: the smallest ratio over environments and concurrency 1, 64 and 512; it should be at least 0.8.
"""

import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import verifiers as vf
from datasets import Dataset
from measure import report
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, Usage

from primebeaker.environments._shared.search_rollout import SearchServices

SPACE = "primebeaker.environments"
QUESTION = "Judge. " * 200
OUTPUT = "some words " * 500
VERDICT = json.dumps({"feedback": "because", "label": "pass"})
XML = "<feedback>because</feedback><label>pass</label>"
CODE = "<code>```python\nprint(len(context))\n```</code>"
RESULT = {"stdout": "12: some words\n" * 20, "stderr": "", "success": True, "exit_code": 0, "execution_time": 0.01}
PAGE = {"success": True, "data": {"title": "T", "content": "some words " * 500}}
HITS = {"success": True, "data": {"organic": [{"title": "A", "snippet": "s", "link": "http://x/a"}] * 5}}


def call(name, **arguments):
    return [{"id": "c1", "name": name, "arguments": json.dumps(arguments)}]


class AtOnce:
    """A client whose service answers at once."""

    def __init__(self, reply):
        self.reply = reply

    async def execute(self, **arguments):
        await asyncio.sleep(0)
        return self.reply


async def fetch(url):
    await asyncio.sleep(0)
    return PAGE


def with_tools(env, **clients):
    env.tool_clients = {**env.tool_clients, **clients}


def with_services(env, **services):
    env.behaviour.services = SearchServices(AtOnce(HITS), fetch, **services)


def with_judge(env):
    env.behaviour._judge = AtOnce({"judgments": [{"rubric_index": 0, "label": "pass"}]})


def with_classifier(env):
    env.behaviour.client = AtOnce({"data": [{"probs": [0.75]}]})


class Case(NamedTuple):
    """An environment and the turns of its rollouts: texts, or the calls a reply makes."""

    module: str
    turns: list[Any]
    prepare: Callable[[Any], None] = lambda env: None
    arguments: dict[str, Any] = {}  # noqa: RUF012  never changed
    row: dict[str, Any] = {}  # noqa: RUF012  never changed


TERMINAL = call("terminal", command="rg -n words | head")
SEARCH = call("search", query="some words", num_results=5)
VISIT = call("visit", url="http://x/a")
BROWSE = call("webterminal", command="browse http://x/a | head")
SUBMIT = call("submit", rubric_id="r", feedback="because", label="pass")
ANSWER = 'A report.\n```json\n{"answer": "pass"}\n```'
JUDGED = {"judge_model_path": "j"}
CASES = {
    "label": Case("jtc_label_env", [XML]),
    "multiple-choice-accuracy": Case("jtc_multiple_choice_accuracy_env", ["B"], row={"answer": "B"}),
    "code-tool-label": Case("jtc_code_tool_label_env", [CODE, XML], lambda env: with_tools(env, python=AtOnce(RESULT))),
    "terminal-tool-label": Case(
        "jtc_terminal_tool_label_env",
        [TERMINAL, TERMINAL, TERMINAL, VERDICT],
        lambda env: with_tools(env, terminal=AtOnce(RESULT)),
    ),
    "tool-label": Case(
        "jtc_tool_label_env",
        [TERMINAL, TERMINAL, TERMINAL, VERDICT],
        lambda env: with_tools(env, terminal=AtOnce(RESULT)),
    ),
    "articulated-harness": Case(
        "articulated_harness_env",
        [TERMINAL, TERMINAL, SUBMIT],
        lambda env: with_tools(env, terminal=AtOnce(RESULT)),
        row={"expected_rubric_ids": ["r"], "gold_submissions": [{"rubric_id": "r", "label": "pass"}]},
    ),
    "reward-model": Case("jtc_reward_model_env", [XML], with_classifier, {"reward_model_path": "m"}),
    "rubrichub-judge": Case(
        "jtc_rubrichub_judge_env", ["An answer."], with_judge, JUDGED, {"rubrics": [{"text": "t", "weight": 1}]}
    ),
    "search-agent-visit": Case("jtc_search_agent_visit_env", [SEARCH, VISIT, ANSWER], with_services),
    "search-agent-webterminal": Case(
        "jtc_search_agent_webterminal_env",
        [SEARCH, BROWSE, ANSWER],
        lambda env: with_services(env, webterminal=AtOnce(RESULT)),
    ),
}


class Scripted(Client):
    """Says one turn after the other."""

    def __init__(self, turns):
        super().__init__(object())
        self.turns = turns

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
        turn = self.turns[len(keywords["state"]["trajectory"])]
        content, calls = (turn, None) if isinstance(turn, str) else ("I look.", turn)
        message = ResponseMessage(content=content, tool_calls=calls, finish_reason="stop", is_truncated=False)
        usage = Usage(prompt_tokens=1, reasoning_tokens=0, completion_tokens=1, total_tokens=2)
        return Response(id="r", created=1, model=model, usage=usage, message=message)


class Bare(vf.MultiTurnEnv):
    """The same turns with nothing but Verifiers."""

    async def env_response(self, messages, state, **keywords):
        await asyncio.sleep(0)
        return [{"role": "tool", "tool_call_id": "c1", "content": json.dumps(RESULT)}]


def answered(completion, answer):
    return float(answer in completion[-1].content)


async def rate(env, turns, concurrency, rollouts):
    row = dict(env.get_dataset()[0])
    client = Scripted(turns)
    slots = asyncio.Semaphore(concurrency)

    async def one():
        async with slots:
            output = await env.run_rollout(row, client, "m", {})
            assert output["error"] is None and output["metrics"]["num_turns"] == len(turns), output["error"]

    # A full collection walks everything that was ever imported and falls on some runs only; it is nobody's turn.
    gc.collect()
    gc.freeze()
    # Nothing waits, so processor time is what counts, and other processes do not.
    started = time.process_time()
    await asyncio.gather(*(one() for _ in range(rollouts)))
    return rollouts / (time.process_time() - started)


def measured(case):
    """The rates of the environment and of the bare one by concurrency, each the best of some runs in turn."""
    row = {"prompt": [{"role": "user", "content": QUESTION}], "answer": "pass", "output": OUTPUT, **case.row}
    if "rubrics" in row:
        del row["answer"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text(json.dumps(row))
        ours = vf.load_environment(f"{SPACE}.{case.module}", dataset=str(path), **case.arguments)
    case.prepare(ours)
    plain = {"prompt": row["prompt"], "answer": "pass", "output": OUTPUT}
    rubric = vf.Rubric(funcs=[answered])
    bare = Bare(dataset=Dataset.from_list([plain]), rubric=rubric, max_turns=len(case.turns))
    figures = {}
    for concurrency, rollouts in ((1, 60), (64, 256), (512, 512)):
        best = {"ours": 0.0, "bare": 0.0}
        for _ in range(2):
            for name, env in (("ours", ours), ("bare", bare)):
                best[name] = max(best[name], asyncio.run(rate(env, case.turns, concurrency, rollouts)))
        figures[concurrency] = {name: round(value, 1) for name, value in best.items()}
    return figures


def main() -> None:
    logging.disable(logging.WARNING)
    chosen = sys.argv[1:] or list(CASES)
    figures = {name: measured(CASES[name]) for name in chosen}
    ratios = {
        name: {concurrency: round(found["ours"] / found["bare"], 2) for concurrency, found in rates.items()}
        for name, rates in figures.items()
    }
    report(
        "rollouts a processor second over bare Verifiers",
        min(ratio for found in ratios.values() for ratio in found.values()),
        "ratio",
        least=0.8,
        per_second=figures,
        ratios=ratios,
    )


main()
