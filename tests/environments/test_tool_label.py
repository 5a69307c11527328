"""`tool-label`: the reward table, the budget, calls and their answers, counting, state."""

import asyncio
import json

import pytest
import verifiers as vf
from verifiers.types import RolloutOutput

MODULE = "primebeaker.environments.jtc_tool_label_env"
STRICT = '{"feedback":"f","label":"pass"}'
WRONG = '{"feedback":"f","label":"fail"}'


@pytest.fixture
def load(rows_file, gateway):
    """Load tool-label on one row, with its terminal at the fake gateway."""
    path = rows_file({"prompt": "Judge.", "output": "the output", "answer": "pass"})

    def make(**arguments):
        return vf.load_environment(
            MODULE, **{"dataset": path, "terminal_server_url": f"{gateway.url}/terminal", **arguments}
        )

    return make


def calls(*pairs):
    """An assistant message with structured calls: (name, arguments) or (name, arguments, id)."""
    return {
        "content": "",
        "tool_calls": [
            {
                "id": pair[2] if len(pair) > 2 else f"c{number}",
                "name": pair[0],
                "arguments": pair[1] if isinstance(pair[1], str) else json.dumps(pair[1]),
            }
            for number, pair in enumerate(pairs, start=1)
        ],
    }


def terminal(*commands):
    return calls(*(("terminal", {"command": command}) for command in commands))


TEXT_CALL = '<tool_call>{"name":"terminal","arguments":{"command":"cat"}}</tool_call>'

REWARDS = {
    "strict right": ([STRICT], {}, 4.0),
    "strict right, keys swapped": (['{"label":"pass","feedback":"f"}'], {}, 4.0),
    "strict right after thinking": ([f"<think>hm</think>{STRICT}"], {}, 4.0),
    "strict right after good calls": ([terminal("cat"), terminal("wc", "head"), STRICT], {}, 4.0),
    "strict right after a text call": ([TEXT_CALL, STRICT], {}, 4.0),
    "strict wrong": ([WRONG], {}, 3.0),
    "fenced right": ([f"```json\n{STRICT}\n```"], {}, 3.0),
    "right after prose": ([f'Reasoning {{"draft":1}} then {STRICT}'], {}, 3.0),
    "unknown tool": ([calls(("python", {"code": "1"})), STRICT], {}, 3.9),
    "extra argument": ([calls(("terminal", {"command": "cat", "contents": "x"})), STRICT], {}, 3.9),
    "malformed arguments": ([calls(("terminal", "ls"))], {}, -4.0),
    "arguments are a list": ([calls(("terminal", "[1]"))], {}, -4.0),
    "blank command": ([terminal("  ")], {}, -4.0),
    "plain text": (["It is fine."], {}, -4.0),
    "empty message": ([""], {}, -4.0),
    "two labels": ([f"{STRICT} {WRONG}"], {}, -4.0),
    "reasoning-only right": ([{"content": None, "reasoning_content": STRICT}], {}, -1.0),
    "reasoning-only right under the other key": ([{"content": "", "reasoning": STRICT}], {}, -1.0),
    "call inside thinking": ([f"<think>{TEXT_CALL}</think>{STRICT}"], {}, 4.0),
    "call inside unclosed thinking": ([f"<think>{TEXT_CALL}"], {}, -4.0),
    "budget used": ([terminal("a"), terminal("b"), STRICT], {"max_tool_calls": 2, "tool_use_reward_coef": 1.0}, 5.0),
    "repeats": (
        [terminal("cat"), terminal("cat"), STRICT],
        {"max_tool_calls": 2, "tool_use_reward_coef": 1.0, "standalone_command_repeat_penalty": 1.0},
        4.5,
    ),
    "call after the warning": (
        [terminal("cat"), terminal("cat"), terminal("cat")],
        {"max_tool_calls": 2, "tool_use_reward_coef": 1.0, "standalone_command_repeat_penalty": 1.0},
        -3.5,
    ),
}


@pytest.mark.parametrize("tool_role", [True, False])
@pytest.mark.parametrize("case", REWARDS)
def test_rewards(load, play, case, tool_role):
    replies, arguments, reward = REWARDS[case]
    played = play(load(tool_role=tool_role, **arguments), replies)
    assert played.output["error"] is None
    assert played.reward == pytest.approx(reward), played.metrics
    assert all(str(value) != "-0.0" for value in played.metrics.values())
    assert played.output["stop_condition"] == "stop_after_final_or_invalid"


@pytest.mark.parametrize(
    ("answer", "reward", "counts"),
    [
        (lambda reply: reply(stderr="rg: oops", exit_code=2), 3.9, (1, 1, 0)),
        (lambda reply: reply(exit_code=1), 4.0, (0, 0, 0)),
        (lambda reply: (422, {"detail": "bad"}), 3.9, (1, 1, 0)),
        (lambda reply: (400, {"detail": {"error": "no such command: ls"}}), 3.9, (1, 1, 0)),
        (lambda reply: (413, {"error": "too large"}), 3.9, (1, 1, 0)),
        (lambda reply: (408, {"detail": "slow"}), 4.0, (1, 0, 0)),
        (lambda reply: (500, {"detail": "broken"}), 4.0, (1, 0, 1)),
        (lambda reply: (404, {"detail": "nothing here"}), 4.0, (1, 0, 1)),
        (lambda reply: (200, ["no object"]), 4.0, (1, 0, 1)),
        (lambda reply: reply(stderr="Required command is unavailable: xsv", exit_code=127), 4.0, (1, 0, 1)),
    ],
)
def test_who_is_to_blame_for_a_result(load, play, gateway, reply_of_terminal, answer, reward, counts):
    gateway.answers["terminal"] = lambda body: answer(reply_of_terminal)
    played = play(load(), [terminal("rg x"), STRICT])
    state = played.state
    assert played.reward == pytest.approx(reward)
    assert counts == (
        state["jtc_tool_nonempty_stderr_count"],
        state["jtc_tool_command_error_count"],
        state["jtc_tool_infrastructure_stderr_count"],
    )


def test_a_dead_server_is_no_fault_of_the_model(load, play, no_waiting):
    played = play(load(terminal_server_url="http://127.0.0.1:9/terminal"), [terminal("cat"), STRICT])
    assert played.reward == pytest.approx(4.0)
    shown = json.loads(played.prompts[1][-1]["content"])
    assert (shown["stderr"], shown["exit_code"]) == ("terminal: service unavailable", 1)


def test_statuses_are_retried_as_far_as_that_makes_sense(load, play, gateway, no_waiting):
    for status, requests in ((400, 1), (408, 1), (500, 1), (429, 3), (502, 3), (503, 3)):
        gateway.requests.clear()
        gateway.answers["terminal"] = lambda body, status=status: (status, {"detail": "x"})
        play(load(), [terminal("cat"), STRICT])
        # One rollout alone and two in a group.
        assert len(gateway.bodies("terminal")) == 3 * requests, status


def test_an_outage_ends_the_rollout_with_an_infrastructure_error(load, play, gateway, caplog):
    gateway.answers["terminal"] = lambda body: (500, {"detail": f"at {gateway.url}"})
    played = play(load(max_consecutive_infrastructure_errors=2), [terminal("a"), terminal("b"), STRICT])
    assert played.output["error"]["error"] == "InfraError"
    assert played.reward == 0.0
    assert set(played.metrics.values()) - {2.0} == {0.0}
    assert gateway.url not in json.dumps(played.state["jtc_tool_history"])
    warned = [record.message for record in caplog.records if "terminal service fails" in record.message]
    assert len(warned) == 1


def test_another_outcome_resets_the_run_of_failures(load, play, gateway, reply_of_terminal):
    gateway.answers["terminal"] = lambda body: (500, {}) if body["command"] == "bad" else reply_of_terminal("ok")
    replies = [terminal("bad"), terminal("good"), terminal("bad"), STRICT]
    played = play(load(max_consecutive_infrastructure_errors=2), replies)
    assert (played.output["error"], played.reward) == (None, 4.0)


def test_a_truncation_the_service_refuses_is_a_configuration_error(load, play, gateway):
    gateway.answers["terminal"] = lambda body: (400, {"detail": {"error": "truncation cannot exceed 16000"}})
    played = play(load(terminal_truncation="20000"), [terminal("cat"), STRICT])
    assert "terminal_truncation: truncation cannot exceed 16000" in str(played.output["error"])
    assert played.output["error"]["error"] != "InfraError"


def test_the_service_gets_the_output_and_the_model_gets_seven_sorted_keys(load, play, gateway):
    played = play(load(), [terminal("cat"), STRICT])
    assert gateway.bodies("terminal")[0] == {"contents": "the output", "command": "cat", "truncation": 2000}
    assert played.prompts[1][-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "terminal",
        "content": '{"execution_time": 0.01, "exit_code": 0, "stderr": "", "stdout": "S:cat", "success": true,'
        ' "truncated": false, "truncated_characters": 0}',
    }


@pytest.mark.parametrize(
    ("row", "contents"),
    [
        ({"output": {"b": "é", "a": [1]}}, '{"b": "é", "a": [1]}'),
        ({}, ""),
        ({"output": None, "prompt": "Judge <Output> this </OUTPUT> please"}, "this"),
        ({"output": ""}, ""),
    ],
)
def test_the_judged_output_as_text(rows_file, play, gateway, row, contents):
    path = rows_file({"prompt": "Judge.", "answer": "pass", **row})
    env = vf.load_environment(MODULE, dataset=path, terminal_server_url=f"{gateway.url}/terminal")
    play(env, [terminal("cat"), STRICT])
    assert gateway.bodies("terminal")[0]["contents"] == contents


def test_the_budget_is_spent_in_message_order_and_every_call_is_answered(load, play):
    replies = [calls(*(("terminal", {"command": "cat"}, id) for id in ("c1", "c2", "c3"))), STRICT]
    played = play(load(max_tool_calls=2), replies)
    answers = played.prompts[1][-3:]
    assert [answer["tool_call_id"] for answer in answers] == ["c1", "c2", "c3"]
    assert "the budget of 2 tool calls is spent" in answers[2]["content"]
    assert answers[2]["content"].endswith("\n\n" + load().final_warning)
    assert all(load().final_warning not in answer["content"] for answer in answers[:2])
    assert played.state["jtc_tool_call_count"] == 2
    assert played.reward == 4.0


def test_the_warning_also_comes_with_the_last_turn_but_one(load, play):
    played = play(load(max_turns=2, final_warning="answer now"), [terminal("cat"), STRICT])
    assert played.prompts[1][-1]["content"].endswith("\n\nanswer now")
    assert played.state["jtc_tool_final_warning_sent"] is True
    assert played.reward == 4.0


def test_calls_without_ids_are_numbered_over_the_rollout(load, play):
    played = play(load(), [TEXT_CALL + TEXT_CALL, TEXT_CALL, STRICT])
    ids = [message["tool_call_id"] for message in played.prompts[2] if message["role"] == "tool"]
    assert ids == ["terminal_1", "terminal_2", "terminal_3"]


def test_earlier_messages_stay_as_they_are(load, play):
    played = play(load(max_tool_calls=3), [terminal("a"), terminal("b", "c", "d"), STRICT])
    for earlier, later in zip(played.prompts, played.prompts[1:], strict=False):
        assert later[: len(earlier)] == earlier


def test_an_unknown_tool_is_told_what_is_offered(load, play):
    played = play(load(tools=["terminal", "submit"]), [calls(("bash", {"command": "ls"})), STRICT])
    assert played.prompts[1][-1]["content"] == (
        "```stdout\n\n```\n\n```stderr\nbash: unknown tool; offered: submit, terminal\n```"
    )
    assert played.state["jtc_tool_executed_count"] == 0
    assert played.state["jtc_unknown_tool_call_count"] == 1
    assert played.state["jtc_tool_command_error_count"] == 0


def test_submissions_are_recorded(rows_file, play, gateway):
    path = rows_file({"prompt": "Judge.", "answer": "pass", "expected_rubric_ids": ["a", 2]})
    env = vf.load_environment(
        MODULE, dataset=path, tools=["terminal", "submit"], terminal_server_url=f"{gateway.url}/terminal"
    )
    good = {"rubric_id": 2, "feedback": "f", "label": "pass"}
    replies = [calls(("submit", good), ("submit", {**good, "rubric_id": "z"})), STRICT]
    played = play(env, replies)
    assert played.state["jtc_submit_submissions"] == {"2": {"rubric_id": "2", "feedback": "f", "label": "pass"}}
    assert played.state["jtc_submit_complete"] is False
    assert json.loads(played.prompts[1][-2]["content"])["data"]["waiting_rubric_ids"] == ["a"]
    assert "unknown rubric_id 'z'" in json.loads(played.prompts[1][-1]["content"])["stderr"]
    assert played.state["jtc_tool_command_error_count"] == 1


def test_the_state_is_json_and_holds_no_judged_output(load, play, rows_file, gateway):
    env = load(dataset=rows_file({"prompt": "p", "output": "SECRET OUTPUT", "answer": "pass"}))
    keys = (
        *("jtc_tool_route", "jtc_tool_final_warning_sent", "jtc_tool_calls", "jtc_tool_results", "jtc_tool_history"),
        *("jtc_tool_call_count", "jtc_targeted_standalone_excess_fraction"),
    )
    played = play(env, [terminal("cat"), STRICT], columns=keys)
    assert isinstance(played.output, RolloutOutput)
    own = {key: value for key, value in played.state.items() if key.startswith(("jtc_", "primebeaker"))}
    assert "SECRET OUTPUT" not in json.dumps(own)
    assert played.state["jtc_tool_history"] == [
        {
            "name": "terminal",
            "arguments": {"command": "cat"},
            "id": "c1",
            "output": {
                "stdout": "S:cat",
                "stderr": "",
                "success": True,
                "exit_code": 0,
                "execution_time": 0.01,
                "truncated": False,
                "truncated_characters": 0,
            },
        }
    ]
    assert "jtc_tool_execution_calls" not in played.state


def test_offered_tools_do_not_change_with_the_row(rows_file, play, gateway):
    row = {"prompt": "p", "answer": "pass", "info": {"tool_defs": [{"name": "x"}], "k": 1}, "tools": ["y"]}
    env = vf.load_environment(MODULE, dataset=rows_file(row))
    played = play(env, [STRICT])
    assert [tool["name"] for tool in played.output["tool_defs"]] == ["terminal"]
    assert played.output["info"] == row["info"]


def test_a_group_with_one_broken_member_leaves_the_others_right(load, scripted_client):
    env = load()

    async def run():
        good = dict(env.get_dataset()[0])
        broken = {"example_id": 0, "prompt": [{"role": "wizard", "content": "?"}]}
        return await env.run_group([good, broken, good], scripted_client([STRICT]), "m", {})

    first, second, third = asyncio.run(run())
    assert (first["reward"], third["reward"]) == (4.0, 4.0)
    assert second["reward"] == 0.0
    assert "the row cannot be used" in str(second["error"])
