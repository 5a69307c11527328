"""`terminal-tool-label`: routes, limit, warning, rewards, state."""

import json

import pytest
import verifiers as vf

MODULE = "primebeaker.environments.jtc_terminal_tool_label_env"
STRICT = '{"feedback":"f","label":"pass"}'


@pytest.fixture
def load(rows_file, gateway):
    path = rows_file({"prompt": "Judge.", "output": "out", "answer": "pass"})

    def make(**arguments):
        return vf.load_environment(
            MODULE, **{"dataset": path, "terminal_server_url": f"{gateway.url}/terminal", **arguments}
        )

    return make


def call(command, name="terminal", id="c1"):
    arguments = json.dumps({"command": command})
    return {"content": "", "tool_calls": [{"id": id, "name": name, "arguments": arguments}]}


TEXT_CALL = "<tool_call><function=terminal><parameter=command>\ncat\n</parameter></function></tool_call>"
TWO = {"content": "", "tool_calls": [*call("a")["tool_calls"], *call("b", id="c2")["tool_calls"]]}


@pytest.mark.parametrize("tool_role", [True, False])
@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([STRICT], 4.0),
        ([call("cat"), STRICT], 4.0),
        ([TEXT_CALL, STRICT], 4.0),
        ([f"```json\n{STRICT}\n```"], 3.0),
        (['{"feedback":"f","label":"no"}'], 3.0),
        (["nothing"], -4.0),
        ([TWO], -4.0),
        ([call("cat", name="python")], -4.0),
        ([call(" ")], -4.0),
        ([{"content": None, "reasoning_content": STRICT}], -1.0),
        ([call("a"), call("b"), call("c")], -1.0),
    ],
)
def test_rewards(load, play, gateway, replies, reward, tool_role):
    played = play(load(tool_role=tool_role, max_terminal_calls=2), replies)
    assert played.reward == pytest.approx(reward)
    assert played.output["stop_condition"] == "stop_after_final_or_invalid"
    assert len(gateway.bodies("terminal")) == 3 * played.state["jtc_terminal_call_count"]


def test_the_last_answer_carries_the_warning(load, play):
    played = play(load(max_terminal_calls=1), [call("cat"), STRICT])
    content = played.prompts[1][-1]["content"]
    result, _, warning = content.partition("\n\n")
    assert json.loads(result)["stdout"] == "S:cat"
    assert "last terminal call" in warning and '"feedback"' in warning
    assert played.state["jtc_terminal_final_warning_sent"] is True
    assert played.state["jtc_terminal_command"] == "cat"
    assert list(played.state["jtc_terminal_result"]) == [
        "execution_time",
        "exit_code",
        "stderr",
        "stdout",
        "success",
        "truncated",
        "truncated_characters",
    ]


def test_a_call_without_an_id_is_answered_under_terminal(load, play):
    assert play(load(), [TEXT_CALL, STRICT]).prompts[1][-1]["tool_call_id"] == "terminal"


def test_a_template_that_holds_the_content_replaces_it(load, play, tmp_path):
    path = tmp_path / "warn.json"
    template = {
        "name": "w",
        "input_variables": ["tool_content", "code", "success"],
        "chat_template": [{"role": "user", "content": "[{tool_content}] after {code}: {success}"}],
    }
    path.write_text(json.dumps(template))
    played = play(load(max_terminal_calls=1, final_warning_template_path=str(path)), [call("cat"), STRICT])
    content = played.prompts[1][-1]["content"]
    assert content.startswith('[{"execution_time"') and content.endswith("] after cat: True")


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{toolcontent}", "placeholder {toolcontent}"), ("{", "message 1, character 1"), ("{a.b}", "character 1")],
)
def test_a_broken_template_fails_the_load(load, tmp_path, content, problem):
    path = tmp_path / "warn.json"
    template = {
        "name": "w",
        "input_variables": ["toolcontent"],
        "chat_template": [{"role": "user", "content": content}],
    }
    path.write_text(json.dumps(template))
    with pytest.raises(RuntimeError) as caught:
        load(final_warning_template_path=str(path))
    assert problem in str(caught.value) and "warn.json" in str(caught.value)


def test_an_outage_is_an_infrastructure_error(load, play, gateway):
    gateway.answers["terminal"] = lambda body: (500, {})
    played = play(load(max_consecutive_infrastructure_errors=1), [call("cat"), STRICT])
    assert (played.output["error"]["error"], played.reward) == ("InfraError", 0.0)
