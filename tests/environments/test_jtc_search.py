"""JTC's search rollout workflow builds our environments from its own clients and reads what they leave."""

import asyncio
import json

import pytest
from jtc.common.workflows.search_agent_rollout_workflow import build_env
from verifiers.envs.environment import Environment

PROMPT = [{"role": "user", "content": "q"}]
ANSWER = '```json\n{"answer":"Paris"}\n```'


@pytest.fixture
def services(gateway, reply_of_terminal):
    gateway.answers["terminal"] = lambda body: reply_of_terminal(f"{body['command']}<{body['contents']}")

    def search(body):
        if body["mode"] == "url":
            return {"success": True, "data": {"title": "T", "content": "page"}}
        return {"success": True, "data": {"organic": [{"title": "A", "link": "http://x/a"}]}}

    gateway.answers["search"] = search
    gateway.answers["judge"] = lambda body: {"judgments": [{"label": "pass"}]}
    return gateway


def build(harness, gateway, **settings):
    given = {
        "tasks": [{"question": "q", "answer": "paris"}],
        "gateway_url": gateway.url,
        "local_search_model_path": "m",
        "harness": harness,
        "max_turns": 5,
        "timeout": 20,
        "max_retries": 1,
        "terminal_truncation": 2000,
        "visit_max_content_length": 64000,
        "max_tool_calls": 4,
        "judge_model_path": "j",
        "judge_max_retries": 1,
    }
    return build_env(**{**given, **settings})


def call(name, **arguments):
    return {"content": "", "tool_calls": [{"id": "c1", "name": name, "arguments": json.dumps(arguments)}]}


def rollout(env, client):
    env.timeout_seconds = 30.0
    given = {"question": "q", "answer": "paris", "example_id": 0, "prompt": PROMPT}
    return env.rollout(input=given, client=client, model="m", sampling_args={})


@pytest.mark.parametrize(
    ("harness", "page", "shown"),
    [
        ("webterminal", call("webterminal", command="browse http://x/a | rg a"), "rg a<page"),
        ("visit", call("visit", url="http://x/a"), "# T\n\npage"),
    ],
)
def test_exact_match_harnesses(services, scripted_client, harness, page, shown):
    env, judge = build(harness, services)
    assert judge is None and isinstance(env, Environment)
    env.set_max_total_completion_tokens(1000)
    state = asyncio.run(rollout(env, scripted_client([call("search", query="q"), page, ANSWER])))
    contents = [message.content for message in state["completion"] if message.role == "tool"]
    assert contents[0] == "**A**\nSource: http://x/a"
    assert shown in contents[1]
    assert (state["error"], state["stop_condition"]) == (None, "no_tools_called")


@pytest.mark.parametrize("harness", ["webterminal-judge", "visit-judge"])
def test_judged_harnesses(services, scripted_client, harness):
    env, judge = build(harness, services, max_tool_calls=1)

    async def run():
        state = await rollout(env, scripted_client([call("search", query="q"), "Paris, http://x/a"]))
        try:
            label = await judge.judge_answer(
                completion=state["completion"], answer="paris", prompt=PROMPT, question="q", state=state
            )
        finally:
            await judge.judge_client.close()
        return state, label

    state, label = asyncio.run(run())
    assert label == 1.0
    assert services.bodies("judge")[0]["rubrics"] == ["The final answer the model concluded is: paris"]
    assert state["info"]["judge"]["response"] == {"judgments": [{"label": "pass"}]}
    assert "without a JSON block" in state["completion"][1].content
    services.answers["judge"] = lambda body: (500, {})
    state, label = asyncio.run(run())
    assert (label, type(state["error"]).__name__) == (0.0, "InfraError")
    assert state["info"]["judge"]["error"]


def test_a_judged_environment_scores_by_itself_too(services, scripted_client):
    env, _ = build("webterminal-judge", services)
    row = {"question": "q", "answer": "paris", "example_id": 0, "prompt": PROMPT}
    output = asyncio.run(env.run_rollout(row, scripted_client(["Paris"]), "m", {}))
    assert output["reward"] == 1.0
