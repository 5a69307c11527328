"""Arguments of `load_environment`: checked before anything is read, one line a load."""

import math
import threading

import pytest

from primebeaker.bundled import CANONICAL
from primebeaker.environments.registry import load_environment_module

TOOL = load_environment_module("tool-label").load_environment


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"max_tool_calls": -1}, ValueError, "max_tool_calls=-1: expected a whole number that is at least 0"),
        ({"max_tool_calls": True}, TypeError, "max_tool_calls=True: expected a whole number"),
        ({"max_tool_calls": 1.0}, TypeError, "max_tool_calls=1.0"),
        ({"timeout": 0}, ValueError, "timeout=0: expected a finite number that is above 0"),
        ({"timeout": math.nan}, ValueError, "timeout=nan"),
        ({"tool_stderr_penalty": math.inf}, ValueError, "tool_stderr_penalty=inf"),
        (
            {"invalid_trace_penalty": 1},
            ValueError,
            "invalid_trace_penalty=1: expected a finite number that is at most 0",
        ),
        ({"tool_role": 1}, TypeError, "tool_role=1: expected true or false"),
        ({"tools": "terminal"}, TypeError, "tools='terminal': expected a list, such as [\"terminal\"]"),
        ({"tools": "[terminal, submit]"}, TypeError, 'expected a list, such as ["terminal", "submit"]'),
        ({"tools": ["bash"]}, ValueError, "'bash' is not one of terminal, submit"),
        ({"tools": []}, ValueError, "tools=(): an empty list is for max_tool_calls = 0 only"),
        ({"terminal_server_url": "ftp://x"}, ValueError, "expected an http:// or https:// URL"),
        ({"terminal_server_url": "http://u:p@x"}, ValueError, "without user:password@"),
        ({"terminal_server_url": "http://"}, ValueError, "with a host"),
        ({"terminal_truncation": "2k"}, TypeError, "terminal_truncation='2k'"),
        ({"browser_aware_terminal": True, "tools": ["submit"]}, ValueError, "needs 'terminal' in tools"),
        ({"local_search_model_path": "m"}, ValueError, "needs local_search_server_url"),
        ({"max_tool_call": 3}, TypeError, "max_tool_call=3: unknown argument; did you mean 'max_tool_calls'"),
        ({"standalone_command_repeat_commands": ["a b"]}, ValueError, "expected command names"),
        ({"timeout_seconds": 0}, ValueError, "timeout_seconds=0"),
        ({"final_warning": "x" * 300 + "\n", "split": 1}, TypeError, "split=1: expected text"),
    ],
)
def test_wrong_arguments_are_one_line_before_the_dataset_is_read(arguments, kind, says):
    with pytest.raises(kind) as caught:
        TOOL(dataset="/nowhere/rows.jsonl", **arguments)
    text = str(caught.value)
    assert text.startswith("tool-label: ") and says in text
    assert "\n" not in text and len(text) < 400


def test_a_missing_dataset_and_a_dataset_by_position(rows_file):
    with pytest.raises(TypeError, match="tool-label: dataset is missing"):
        TOOL()
    path = rows_file({"prompt": "p", "answer": "a"})
    assert len(TOOL(path).get_dataset()) == 1


def test_null_texts_decimal_texts_and_trailing_slashes(rows_file):
    path = rows_file({"prompt": "p", "answer": "a"})
    env = TOOL(
        path,
        terminal_truncation="300",
        fetch_max_content_length="NULL",
        max_turns="none",
        max_consecutive_infrastructure_errors=None,
        terminal_server_url="http://h:1/terminal//",
        tool_stderr_penalty=1,
    )
    assert (env.terminal_truncation, env.fetch_max_content_length, env.max_turns) == (300, None, 65)
    assert env.terminal_server_url == "http://h:1/terminal"
    assert TOOL(path, max_turns=0, max_tool_calls=3).max_turns == 4


def test_an_argument_of_another_environment_is_ignored_and_reported_once(rows_file, caplog):
    path = rows_file({"prompt": "p", "answer": "a"})
    load_environment_module("label").load_environment(path, terminal_server_url="http://x", max_terminal_calls=2)
    warned = [record.message for record in caplog.records if "is ignored" in record.message]
    assert warned == [
        "label: argument terminal_server_url is not used by this environment and is ignored",
        "label: argument max_terminal_calls is not used by this environment and is ignored",
    ]


def test_verifiers_arguments_pass_through(rows_file):
    path = rows_file(
        {"question": "q", "answer": "a"}, {"prompt": [{"role": "system", "content": "own"}], "answer": "a"}
    )
    env = TOOL(
        path,
        system_prompt="be brief",
        few_shot=[{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}],
        timeout_seconds=5,
        max_seq_len=100,
        score_rollouts=False,
        pass_threshold=2,
    )
    assert (env.timeout_seconds, env.max_seq_len, env.score_rollouts, env.pass_threshold) == (5, 100, False, 2)
    assert [message["content"] for message in env.get_dataset()[0]["prompt"]] == ["be brief", "1", "2", "q"]
    assert [message["content"] for message in env.get_dataset()[1]["prompt"]] == ["own"]


def test_two_environments_do_not_influence_each_other(rows_file):
    path = rows_file({"prompt": "p", "answer": "a"})
    first, second = TOOL(path, max_tool_calls=1), TOOL(path, max_tool_calls=2, tools=["submit"])
    first.tool_defs[0].parameters["properties"]["command"]["description"] = "changed"
    assert "changed" not in str(TOOL(path).tool_defs)
    assert (first.max_tool_calls, second.max_tool_calls) == (1, 2)


@pytest.mark.parametrize("name", sorted(CANONICAL))
def test_every_environment_loads_outside_the_main_thread(rows_file, name):
    path = rows_file({"prompt": "p", "answer": "A", "original_image": "x", "rubrics": [{"text": "t", "weight": 1}]})
    given = {"reward-model": {"reward_model_path": "m"}}.get(name, {})
    given = given or ({"judge_model_path": "m"} if "judge" in name else {})
    loaded = []

    def load():
        loaded.append(load_environment_module(name).load_environment(path, **given))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(120)
    assert len(loaded[0].get_dataset()) == 1
