"""`code-tool-label`: routes, turns, rewards, state."""

import pytest
import verifiers as vf

MODULE = "primebeaker.environments.jtc_code_tool_label_env"
RIGHT = "<feedback>f</feedback><label>pass</label>"


def code(source, language="python"):
    return f"<code>```{language}\n{source}\n```</code>"


@pytest.fixture
def load(rows_file, gateway):
    path = rows_file({"prompt": "Judge.", "output": {"k": "v"}, "answer": "pass"})
    gateway.answers["python"] = lambda body: {
        "stdout": f"ran {body['code']}",
        "stderr": "",
        "success": True,
        "exit_code": 0,
        "execution_time": 0.5,
        "locals": {"x": "big"},
    }

    def make(**arguments):
        return vf.load_environment(MODULE, **{"dataset": path, "code_server_url": f"{gateway.url}/python", **arguments})

    return make


@pytest.mark.parametrize("tool_role", [True, False])
@pytest.mark.parametrize(
    ("replies", "reward", "stop"),
    [
        ([RIGHT], 3.0, "first_turn_is_final_or_invalid"),
        ([code("print(1)"), RIGHT], 3.0, "max_turns_reached"),
        ([code("print(1)"), code("print(2)")], 1.0, "max_turns_reached"),
        (["no idea"], 0.0, "first_turn_is_final_or_invalid"),
        ([RIGHT.replace("pass", "fail")], 2.0, "first_turn_is_final_or_invalid"),
    ],
)
def test_rewards(load, play, replies, reward, stop, tool_role):
    played = play(load(tool_role=tool_role), replies)
    assert (played.reward, played.output["stop_condition"]) == (reward, stop)


@pytest.mark.parametrize(
    ("text", "route"),
    [
        (code("print(1)"), "code"),
        (code("print(1)", "PY"), "code"),
        (f"<think>x</think>{code('print(1)')}", "code"),
        ("<CODE>\n\n```python \nprint(1)\n```\n</Code>", "code"),
        (code('x = """\n```\nfence\n```\n"""'), "code"),
        (f"let me\n{code('print(1)')}", "invalid"),
        ("<code>print(1)</code>", "invalid"),
        ("```python\nprint(1)\n```", "invalid"),
        (code("print(1)") + code("print(2)"), "invalid"),
        (code("print(1)", "js"), "invalid"),
        (code("print(1)") + RIGHT, "invalid"),
        (code("   "), "invalid"),
        (f"<think>{code('print(1)')}", "invalid"),
        (RIGHT, "final"),
    ],
)
def test_routes(load, play, text, route):
    played = play(load(), [text, RIGHT])
    assert played.state["jtc_first_route"] == route


def test_the_code_of_each_message_runs_over_the_output(load, play, gateway):
    played = play(load(max_turns=3, max_runtime=2), [code("a = 1"), code("b = 2"), RIGHT])
    bodies = gateway.bodies("python")[:2]
    assert bodies == [
        {"code": source, "context_payload": {"k": "v"}, "max_runtime": 2, "model": "python"}
        for source in ("a = 1", "b = 2")
    ]
    assert type(bodies[0]["max_runtime"]) is int
    assert played.prompts[1][-1] == {
        "role": "tool",
        "tool_call_id": "python",
        "name": "python",
        "content": "```stdout\nran a = 1\n```\n\n```stderr\n\n```",
    }
    assert played.state["jtc_code"] == "b = 2"
    assert played.state["jtc_code_call_count"] == 2
    assert played.state["jtc_code_result"] == {
        "stdout": "ran b = 2",
        "stderr": "",
        "success": True,
        "exit_code": 0,
        "execution_time": 0.5,
    }
    assert played.reward == 3.0


def test_long_output_is_cut_to_the_limit_with_a_marker(load, play, gateway):
    gateway.answers["python"] = lambda body: {"stdout": "x" * 300, "stderr": "", "success": True}
    played = play(load(code_output_truncation="100"), [code("1"), RIGHT])
    marker = "\n[The rest of the output was truncated; 200 characters omitted]"
    shown = "x" * (100 - len(marker)) + marker
    assert played.prompts[1][-1]["content"] == f"```stdout\n{shown}\n```\n\n```stderr\n\n```"
    assert played.state["jtc_code_result"]["stdout"] == shown


def test_code_that_fails_is_a_normal_result(load, play, gateway):
    gateway.answers["python"] = lambda body: {"stdout": "", "stderr": "ZeroDivisionError", "success": False}
    assert play(load(), [code("1/0"), RIGHT]).reward == 3.0


def test_a_failing_service_ends_the_rollout_by_default_and_is_told_otherwise(load, play, gateway):
    gateway.answers["python"] = lambda body: (500, {})
    played = play(load(), [code("1"), RIGHT])
    assert (played.output["error"]["error"], played.reward) == ("InfraError", 0.0)
    played = play(load(max_consecutive_infrastructure_errors="none"), [code("1"), RIGHT])
    assert (played.output["error"], played.reward) == (None, 3.0)
    assert "python: service unavailable" in played.prompts[1][-1]["content"]
