"""Whatever calls a model makes: the budget holds, every id is answered once and in order, the warning comes once."""

import asyncio
import json

import pytest
import verifiers as vf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MODULE = "primebeaker.environments.jtc_tool_label_env"
STRICT = '{"feedback":"f","label":"pass"}'

turns = st.lists(st.lists(st.sampled_from(["terminal", "unknown"]), min_size=0, max_size=5), max_size=6)


class LocalTerminal:
    """A client without a service."""

    async def execute(self, *, command, contents):
        return {"stdout": command, "stderr": "", "success": True, "exit_code": 0}


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "p", "output": "o", "answer": "pass"}))
    loaded = vf.load_environment(MODULE, dataset=str(path))
    loaded.tool_clients = {"terminal": LocalTerminal()}
    loaded.final_warning = "THE WARNING"
    return loaded


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns, st.integers(1, 8), st.integers(2, 6))
def test_budget(env, scripted_client, turns, budget, max_turns):
    env.max_tool_calls, env.max_turns = budget, max_turns
    replies = []
    for number, names in enumerate(turns):
        calls = [
            {"id": f"{number}-{index}", "name": name, "arguments": '{"command":"cat"}'}
            for index, name in enumerate(names)
        ]
        replies.append({"content": "", "tool_calls": calls} if calls else STRICT)
    replies.append(STRICT)
    client = scripted_client(lambda state: replies[min(len(state["trajectory"]), len(replies) - 1)])
    columns = ["jtc_tool_call_count", "jtc_tool_executed_count", "jtc_tool_history"]
    output = asyncio.run(env.run_rollout(dict(env.get_dataset()[0]), client, "m", {}, state_columns=columns))
    assert output["error"] is None
    assert output["jtc_tool_executed_count"] <= output["jtc_tool_call_count"] <= budget
    messages = output["completion"]
    answers = [message for message in messages if message["role"] == "tool"]
    position = 0
    for index, message in enumerate(messages):
        ids = [_id(call) for call in message.get("tool_calls") or []]
        following = [
            other["tool_call_id"] for other in messages[index + 1 : index + 1 + len(ids)] if other["role"] == "tool"
        ]
        if ids and following:
            assert following == ids
            position += len(ids)
    assert position == len(answers) == len(output["jtc_tool_history"])
    assert sum(answer["content"].count("THE WARNING") for answer in answers) <= 1
    for earlier, later in zip(client.prompts, client.prompts[1:], strict=False):
        assert later[: len(earlier)] == earlier


def _id(call):
    return (json.loads(call) if isinstance(call, str) else call)["id"]
