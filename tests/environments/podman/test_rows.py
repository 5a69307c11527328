"""Rows, images, arguments, the completion command, reward files and failure texts: rules that need no container."""

import json
import time

import pytest

from primebeaker.environments._shared.podman.completion import is_completion_command, shows_completion
from primebeaker.environments._shared.podman.failures import is_out_of_memory, record_failure, safe_text
from primebeaker.environments._shared.podman.reward_file import score_reward_file
from primebeaker.environments._shared.podman.rows import image_of, image_reference, private_tests
from primebeaker.runtime.templates import load_prompt_template, render_chat_template

from .conftest import bash, calls

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("ubuntu", "docker.io/library/ubuntu"),
        (" ubuntu:24.04\n", "docker.io/library/ubuntu:24.04"),
        ("owner/t:1", "docker.io/owner/t:1"),
        ("ghcr.io/a/b", "ghcr.io/a/b"),
        ("localhost/x", "localhost/x"),
        ("localhost:5000/x", "localhost:5000/x"),
        ("host:5000/x", "host:5000/x"),
    ],
)
def test_image_references(given, sent):
    assert image_reference(given) == sent


@pytest.mark.parametrize("given", ["a b", "a\tb", "a\x7fb", "x" * 500])
def test_images_that_the_service_cannot_take(given):
    with pytest.raises(ValueError, match="image"):
        image_reference(given)


@pytest.mark.parametrize(
    ("row", "image", "tests"),
    [
        ({"original_image": "a", "image": "b"}, "a", None),
        ({"original_image": " ", "image": "b"}, "b", None),
        ({"image": None, "container_image": "c"}, "c", None),
        ({"published_container_image": "d", "unit_tests": "t"}, "d", "t"),
        ({"resolved_container_image": "e", "unit_tests": "t", "test_final_state": "f"}, "e", "f"),
        ({"info": {"image": "a"}, "source": {"image": "b"}}, "a", None),
        ({"source": {"image": "b"}, "misc": {"image": "c", "unit_tests": "t"}}, "b", "t"),
        ({"raw": {"image": "d"}, "info": {"misc": {"image": "e"}}}, "d", None),
        ({"info": {"raw": {"original_image": "e"}}}, "e", None),
        ({"image": 3, "source": "text", "raw": {"raw": {"image": "f", "unit_tests": "t"}}}, "f", "t"),
    ],
)
def test_where_image_and_tests_are_looked_for(row, image, tests):
    assert image_of(row) == f"docker.io/library/{image}"
    assert private_tests(row) == tests


def test_nothing_else_is_searched(load):
    row = {"prompt": "p", "tmax_trace": {"image": "a", "unit_tests": "t"}, "info": {"info": {"image": "a"}}}
    with pytest.raises(ValueError, match="names no image; accepted keys are original_image, image, container_image"):
        image_of(row)
    with pytest.raises(RuntimeError) as caught:
        load(URL, {"prompt": "p", "image": "u"}, *[row] * 7)
    assert "rows.jsonl:2: image: the row names no image" in str(caught.value)
    assert str(caught.value).count("names no image") == 5
    assert str(caught.value).endswith("and 2 more")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"podman_workdir": "work"}, "podman_workdir='work': expected an absolute path"),
        ({"podman_workdir": "/" + "x" * 4096}, "expected an absolute path of at most 4096 characters"),
        ({"command_timeout": 61}, "command_timeout=61: expected a finite number that is at least 0.1 and at most 60"),
        ({"command_timeout": 0.05}, "command_timeout=0.05"),
        ({"command_timeout": True}, "command_timeout=True"),
        ({"request_timeout": 69}, "request_timeout=69: expected at least command_timeout + 10, which is 70"),
        ({"handshake_timeout": float("nan")}, "handshake_timeout=nan"),
        ({"handshake_timeout": 0}, "handshake_timeout=0"),
        ({"max_retries": 0}, "max_retries=0"),
        ({"client_id_prefix": "x" * 224}, "expected at most 223 characters"),
        ({"completion_marker": "A B"}, "completion_marker='A B': expected letters"),
        ({"completion_marker": "A;rm"}, "completion_marker='A;rm'"),
        ({"reward_file_path": "/"}, "reward_file_path='/': expected the absolute path of a file"),
        ({"reward_file_path": "r.txt"}, "reward_file_path='r.txt'"),
        ({"test_file_path": "/logs//verifier/reward.txt"}, "expected another path than reward_file_path"),
        ({"test_command": " "}, "test_command=' ': expected text that is not blank"),
        ({"test_command": "x" * 1_048_577}, "expected at most 1048576 characters"),
        ({"test_timeout": 86401}, "test_timeout=86401"),
        ({"reward_file_weight": -1}, "reward_file_weight=-1"),
        ({"verifier_reward_weight": 2, "reward_file_weight": 3}, "is the old name of reward_file_weight"),
        ({"termination_reward_weight": float("inf")}, "termination_reward_weight=inf"),
        ({"max_tool_calls": 0}, "max_tool_calls=0"),
        ({"terminal_truncation": 0}, "terminal_truncation=0"),
        ({"podman_failure_policy": "drop"}, "expected 'penalty' or 'error'"),
        ({"max_concurrent_sessions": 0}, "max_concurrent_sessions=0"),
        ({"podman_client_factory": "x"}, "expected something that can be called"),
        ({"podman_gateway_url": "http://u:p@h"}, "podman_gateway_url="),
        ({"podman_workdirr": "/"}, "did you mean 'podman_workdir'"),
    ],
)
def test_wrong_arguments_are_told_before_the_rows_are_read(arguments, says):
    import verifiers as vf

    given = {"dataset": "no-such-file.jsonl", **arguments}
    with pytest.raises(RuntimeError) as caught:
        vf.load_environment("primebeaker.environments.podman_terminal_env", **given)
    assert "podman-terminal: " in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_of_the_base_tools_are_ignored_with_one_warning(load, caplog):
    env = load(URL, invalid_trace_penalty=-4.0, tool_use_reward_coef=0.1, max_turns="None", terminal_truncation="2000")
    assert (env.max_turns, env.terminal_truncation) == (65, 2000)
    for name in ("invalid_trace_penalty", "tool_use_reward_coef"):
        assert sum(f"argument {name} is not used" in record.message for record in caplog.records) == 1


def test_two_tools_in_order_and_what_they_say(load):
    env = load(URL, completion_marker="ALL-DONE")
    first, second = env.tool_defs
    assert (first.name, second.name) == ("bash", "submit")
    assert "live container" in first.description and "echo ALL-DONE" in first.description
    assert first.parameters["required"] == ["command"] and set(first.parameters["properties"]) == {"command"}
    assert second.parameters["additionalProperties"] is False
    assert second.parameters["required"] == ["rubric_id", "feedback", "label"]


@pytest.mark.parametrize(
    ("command", "completes"),
    [
        ("echo DONE", True),
        ("\t echo \t DONE\n", True),
        ("echo" + " " * 5000 + "DONE", True),
        ("'echo' \"DONE\"", True),
        ("echo DO\\NE", True),
        ("echo DONE;", False),
        ("echo DONE && true", False),
        ("echo DONE > f", False),
        ("echo DONE # x", False),
        ("echo -n DONE", False),
        ("echo 'DONE", False),
        ("echo done", False),
        ("echo DONE DONE", False),
        ("/bin/echo DONE", False),
        ("echo\nDONE", False),
        ("", False),
    ],
)
def test_the_completion_command(command, completes):
    assert is_completion_command(command, "DONE") is completes


def test_a_huge_command_is_judged_at_once():
    began = time.process_time()
    for text in ("x" * 1_000_000, "echo " + "'" * 1_000_000, "echo DONE " + "a " * 500_000):
        assert is_completion_command(text, "DONE") is False
    assert time.process_time() - began < 5, "reading it by the shell's rules takes ten times as long"


@pytest.mark.parametrize(
    ("reply", "shows"),
    [
        ({"success": True, "stdout": "DONE\n"}, True),
        ({"success": True, "stdout": "motd\nDONE\n"}, True),
        ({"success": True, "stdout": "xDONE\n"}, False),
        ({"success": True, "stdout": ""}, False),
        ({"success": False, "stdout": "DONE\n"}, False),
        ({"success": True, "timed_out": True, "stdout": "DONE\n"}, False),
        ({"stdout": "DONE\n"}, False),
    ],
)
def test_what_the_reply_must_show(reply, shows):
    assert shows_completion(reply, "DONE") is shows


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("absent", b"", (0.0, False, None)),
        ("irregular", b"", (0.0, True, "reward file is not a regular file")),
        ("regular", b"x" * 4097, (0.0, True, "reward file is larger than 4096 bytes")),
        ("regular", b"+1.", (1.0, True, None)),
        ("regular", b"-0", (0.0, True, None)),
        ("regular", b"1e400", (0.0, True, "invalid reward file value: '1e400'")),
        ("regular", b"1e", (0.0, True, "invalid reward file value: '1e'")),
        ("regular", b".", (0.0, True, "invalid reward file value: '.'")),
        ("regular", b"1\x00", (0.0, True, "invalid reward file value: '1\\x00'")),
        ("regular", b"9" * 4096, (0.0, True, "invalid reward file value: '" + "9" * 99)),
    ],
)
def test_reward_files(kind, content, expected):
    found = score_reward_file(kind, content)
    assert tuple(found) == expected
    assert str(found.score) != "-0.0"


@pytest.mark.parametrize(
    "text",
    [
        "Out Of Memory",
        "x out-of-memory",
        "OOMError",
        "cannot allocate memory",
        "oom",
        "was OOMKilled",
        "oom-killed",
        "oom_kill",
        "(oom)",
        "oom_killed by kernel",
    ],
)
def test_texts_of_exhausted_memory(text):
    assert is_out_of_memory(text)


@pytest.mark.parametrize("text", ["zoom", "room full", "oomph", "boom", "oom1", "memory"])
def test_other_texts(text):
    assert not is_out_of_memory(text)


def test_failure_texts_hold_no_paths_credentials_or_classes():
    text = "failed with HTTP 503 at http://user:secret@10.0.0.1:1212/affinity/podman?x=1: Authorization: Bearer abc.def"
    assert safe_text(text) == "failed with HTTP 503 at http://10.0.0.1:1212: Authorization ***"
    assert safe_text("at 'https://h/x' (http://h:1/y), token=abc") == "at 'https://h' (http://h:1), token ***"
    state = {}
    record_failure(state, "setup", RuntimeError("x" * 5000))
    record_failure(state, "test", ValueError("later"))
    assert (state["podman_failure_phase"], state["podman_failure_type"]) == ("setup", "RuntimeError")
    assert len(state["podman_failure_message"]) == 2000
    plain = {}
    record_failure(plain, "execute", "lost")
    assert (plain["podman_failure_type"], plain["podman_failure_message"]) == ("PodmanError", "lost")


def test_submissions_are_notes_only(service, load, solve):
    row = {"prompt": "p", "image": "u", "rubric_ids": ["a"]}
    env = load(service(), row)
    note = ("submit", {"rubric_id": "a", "feedback": "f", "label": "fail"})
    wrong = ("submit", {"rubric_id": "z", "feedback": "f", "label": "fail"})
    rollout = solve(env, calls(note, wrong), bash("echo TERMINAL_COMPLETE"))
    assert rollout["reward"] == pytest.approx(1.1)
    assert json.loads(rollout.answers[0])["data"]["accepted_rubric_id"] == "a"
    assert list(rollout["jtc_submit_submissions"]) == ["a"]
    without = solve(load(service()), calls(note), bash("echo TERMINAL_COMPLETE"))
    assert "this task has no rubrics" in without.answers[0] and "echo TERMINAL_COMPLETE" in without.answers[0]
    assert without["reward"] == pytest.approx(1.1)


def test_the_budget_and_its_notice(service, load, solve):
    env = load(service(), max_tool_calls=3)
    rollout = solve(env, bash("a"), calls(("bash", {"command": "b"}), ("fly", {})), "never asked")
    assert rollout["stop_condition"] == "tool_budget_exhausted"
    assert (rollout["jtc_tool_call_count"], rollout["metrics"]["fake_tool_count_metric"]) == (3, 1.0)
    assert "unknown tool; offered: bash, submit" in rollout.answers[2]
    assert len(rollout.prompts) == 2
    warned = solve(load(service(), max_tool_calls=3), bash("a", "b"), bash("c", "d", "echo TERMINAL_COMPLETE"))
    notice = "One tool call of your budget remains. If the task is finished, run exactly: echo TERMINAL_COMPLETE"
    assert warned.answers[1].endswith(notice) and not warned.answers[0].endswith(notice)
    assert all("the budget of 3 tool calls is spent" in answer for answer in warned.answers[3:])
    assert "JSON" not in str(warned.answers)
    last = solve(load(service(), max_tool_calls=1), bash("echo TERMINAL_COMPLETE"))
    assert last["stop_condition"] == "terminal_complete", "completion goes before the budget"


def test_the_template_says_what_the_environment_does():
    template = load_prompt_template("templates/podman-terminal-submit-gptoss.json")
    system, user = render_chat_template(template, inputs="the task", indexed_rubrics="[1] works")
    assert '{"command":"echo TERMINAL_COMPLETE"}' in system["content"]
    assert [tool["name"] for tool in template["tools"]] == ["bash", "submit"]
    assert "the task" in user["content"] and "[1] works" in user["content"]
