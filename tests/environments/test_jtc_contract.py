"""What JTC's workflow workers need, driven by JTC's own builders."""

import asyncio
import json
from contextvars import ContextVar

import pytest
from jtc.common.schema import JRow, SourceInfo
from jtc.common.workflows.verifier_tool_use_workflow import (
    VerifierRolloutMap,
    bind_advertised_tools,
    build_tool_clients,
    build_verifier_environment,
)
from literegistry_tool_client import ToolClient

from primebeaker.environments import jtc_tool_label_env

MODULE = "primebeaker.environments.jtc_tool_label_env"
STRICT = '{"feedback":"f","label":"pass"}'


def call(name, **arguments):
    return {"content": "", "tool_calls": [{"id": "c1", "name": name, "arguments": json.dumps(arguments)}]}


def build(clients, tools, **settings):
    given = {"max_tool_calls": 4, "max_turns": 5, "timeout_seconds": 60.0, "score_rollouts": False, "tool_defs": None}
    return build_verifier_environment(MODULE, tool_clients=clients, tools=tools, **{**given, **settings})


def run(verifier, client, *, output="the output", misc=None, **data):
    row = JRow(source=SourceInfo(name="s", misc=misc), rubric=None, output=output, id="r1", record_id="r1")
    rollouts = VerifierRolloutMap(verifier, client=client, model="m", sampling_args={}, inflight_batch=1)
    seeded = {"row": row, "row_index": 3, "messages": [{"role": "user", "content": "Judge."}], **data}
    return asyncio.run(rollouts._rollout(seeded))["__jtc_rollout"]


def test_a_workflow_builds_the_environment_and_reads_its_rollout(gateway, scripted_client):
    clients = build_tool_clients(tools=("terminal", "submit"), server_url=gateway.url)
    verifier = build(clients.tools, ("terminal", "submit"))
    verifier.set_max_total_completion_tokens(10_000)
    submission = {"rubric_id": "a", "feedback": "f", "label": "pass"}
    replies = [call("terminal", command="cat"), call("submit", **submission), STRICT]
    snapshot = run(verifier, scripted_client(replies), expected_rubric_ids=["a"])
    assert snapshot["error"] is None
    assert gateway.bodies("terminal")[0]["contents"] == "the output"
    assert [event["name"] for event in snapshot["tool_history"]] == ["terminal", "submit"]
    assert snapshot["tool_history"][0]["arguments"] == {"command": "cat"}
    assert snapshot["tool_history"][0]["output"]["stdout"] == "S:cat"
    assert snapshot["jtc_submit_submissions"] == {"a": submission}
    assert snapshot["jtc_submit_complete"] is True
    assert (snapshot["tool_route"], snapshot["num_turns"]) == ("final", 3)
    assert snapshot["stop_condition"] == "stop_after_final_or_invalid"
    assert snapshot["final_warning_sent"] is False and isinstance(verifier.final_warning, str)
    assert [message["role"] for message in snapshot["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]


def test_the_articulated_harness_takes_ids_and_gold_from_the_input(gateway, scripted_client):
    clients = build_tool_clients(tools=("terminal", "submit"), server_url=gateway.url)
    verifier = build_verifier_environment(
        "primebeaker.environments.articulated_harness_env",
        tool_clients=clients.tools,
        tools=("terminal", "submit"),
        tool_defs=None,
        max_tool_calls=4,
        max_turns=5,
        timeout_seconds=60.0,
        score_rollouts=True,
    )
    replies = [
        call("submit", rubric_id=1, feedback="f", label="pass"),
        call("submit", rubric_id="b", feedback="f", label="x"),
    ]
    snapshot = run(verifier, scripted_client(replies), expected_rubric_ids=[1, "b"])
    assert (snapshot["stop_condition"], snapshot["jtc_submit_complete"]) == ("all_rubrics_submitted", True)
    assert list(snapshot["jtc_submit_submissions"]) == ["1", "b"]
    assert isinstance(verifier.final_warning, str)


def test_settings_set_after_loading_hold(gateway, scripted_client):
    verifier = build(
        build_tool_clients(tools=("terminal",), server_url=gateway.url).tools, ("terminal",), max_tool_calls=1
    )
    snapshot = run(verifier, scripted_client([call("terminal", command="cat"), call("terminal", command="wc")]))
    assert len(snapshot["tool_history"]) == 1
    assert snapshot["final_warning_sent"] is True
    assert snapshot["tool_route"] == "invalid"


def test_a_browsing_client_under_the_name_terminal(gateway, scripted_client):
    clients = build_tool_clients(tools=("webterminal",), server_url=gateway.url, local_search_model_path="m")
    gateway.answers["search"] = lambda body: {"success": True, "data": {"content": f"page of {body['url']}"}}
    definition = {**jtc_tool_label_env.TOOL_SPECS["webterminal"], "name": "terminal"}
    names, bound = bind_advertised_tools(backend_tools=("webterminal",), tool_clients=clients, tool_defs=[definition])
    verifier = build(bound.tools, names, tool_defs=[definition])
    replies = [
        call("terminal", command="browse http://x/stored | head"),
        call("terminal", command="browse http://x/other"),
        call("terminal", command="cat -n"),
        STRICT,
    ]
    snapshot = run(verifier, scripted_client(replies), misc={"web_pages": {"http://x/stored": "stored page"}})
    sent = [(body["command"], body["contents"]) for body in gateway.bodies("terminal")]
    assert sent == [("head", "stored page"), ("cat", "page of http://x/other"), ("cat -n", "the output")]
    assert [body["url"] for body in gateway.bodies("search")] == ["http://x/other"]
    assert snapshot["error"] is None


class BoundClient(ToolClient):
    """A client whose trace is bound to the rollout by a context variable."""

    trace: ContextVar[str] = ContextVar("trace")

    def __init__(self):
        super().__init__("context://trace", timeout=1, max_retries=1)

    @property
    def request_name(self):
        return "trace"

    async def execute(self, *, command):
        await asyncio.sleep(0)
        return {"stdout": f"{self.trace.get()}: {command}", "success": True, "exit_code": 0}


def test_a_tool_that_jtc_adds_is_shown_as_jtc_shows_it(scripted_client):
    definition = {
        "name": "trace_inspection",
        "description": "d",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    }
    verifier = build({"trace_inspection": BoundClient()}, ("trace_inspection",), tool_defs=[definition])
    before = jtc_tool_label_env._tool_content
    jtc_tool_label_env.TOOL_SPECS["trace_inspection"] = definition
    jtc_tool_label_env._tool_content = lambda name, output: f"<{before(name, output)}>"
    replies = [
        {"content": "", "tool_calls": [call("trace_inspection", command=name)["tool_calls"][0] for name in ("a", "b")]},
        STRICT,
    ]
    try:

        async def rollout(trace):
            BoundClient.trace.set(trace)
            given = {"example_id": 0, "prompt": [{"role": "user", "content": "p"}]}
            return await verifier.rollout(input=given, client=scripted_client(replies), model="m", sampling_args={})

        async def both():
            return await asyncio.gather(rollout("one"), rollout("two"))

        states = asyncio.run(both())
    finally:
        jtc_tool_label_env._tool_content = before
        del jtc_tool_label_env.TOOL_SPECS["trace_inspection"]
    for state, trace in zip(states, ("one", "two"), strict=True):
        answers = [message.content for message in state["completion"] if message.role == "tool"]
        assert [json.loads(answer[1:-1])["stdout"] for answer in answers] == [f"{trace}: a", f"{trace}: b"]
    assert jtc_tool_label_env.terminal_output_to_tool_content({"stdout": "x"}).startswith('{"execution_time": null')


@pytest.mark.parametrize("tools", [("terminal",), ()])
def test_the_placeholder_load_leaves_the_environment_portable(gateway, scripted_client, tools):
    clients = build_tool_clients(tools=tools, server_url=gateway.url)
    verifier = build(clients.tools, tools, max_tool_calls=0 if not tools else 2, max_turns=1 if not tools else 3)
    assert verifier.tool_names == frozenset(tools)
    assert run(verifier, scripted_client([STRICT]))["tool_route"] == "final"
