"""The command line and podman-terminal: what it shows, and real rollouts in real containers."""

import json
import subprocess
import sys

import pytest

from primebeaker.environments._shared.podman.control import command_line, script_text

from .conftest import DONE

SCRIPTS = ("prelude", "place", "write", "sweep", "startup", "grade", "runner")


def primebeaker(*words):
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_env_show_lists_arguments_tools_and_rewards():
    shown = json.loads(primebeaker("env", "show", "podman-terminal"))
    assert [tool["name"] for tool in shown["tool_definitions"]] == ["bash", "submit"]
    weights = {reward["name"]: reward["weight"] for reward in shown["rewards"]}
    assert weights["task_reward_file"] == weights["podman_failed_reward"] == 1.0
    assert weights["episode_terminated"] == weights["fake_tool_penalty"] == 0.1
    defaults = {argument["name"]: argument["default"] for argument in shown["arguments"]}
    assert (defaults["test_timeout"], defaults["max_tool_calls"], defaults["terminal_truncation"]) == (600, 64, 16000)
    assert 'podman_gateway_url = "http://127.0.0.1:1212"' in shown["toml"]


def test_env_try_solves_a_task_in_a_real_container(containers, model_server, tool_call, rows_file):
    def answer(messages):
        command = DONE if messages[-1]["role"] == "tool" else "echo hello > /home/user/greeting"
        return {"content": None, "tool_calls": [tool_call("bash", {"command": command})]}

    path = rows_file({"prompt": "greet", "image": "ubuntu:24.04"})
    tests = "grep -qx hello greeting && echo 1 > /logs/verifier/reward.txt"
    arguments = [f"dataset={path}", f"podman_gateway_url={containers.url}", f"test_command={tests}"]
    words = [word for argument in arguments for word in ("--args", argument)]
    with model_server(answer) as url:
        said = primebeaker("env", "try", "podman-terminal", *words, "--model", "m", "--base-url", url, "--rollouts", 2)
    summary = json.loads(said)
    assert (summary["scored"], summary["infrastructure_errors"]) == (2, 0)
    assert summary["figures"]["reward"]["mean"] == 1.1
    assert containers.containers == []


def test_every_script_is_valid_and_fits_into_one_command(tmp_path):
    for name in SCRIPTS:
        script = tmp_path / name
        script.write_text(script_text(name))
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0, name


def test_the_longest_arguments_fit_into_one_command_of_the_service(rows_file, load):
    from primebeaker.environments.podman_terminal_env import _LONGEST_PATHS

    numbers = ("4097", "1048576", "86399.5", "50", "262144")
    arguments = ("start", "." + "x" * 45, "sweep", *numbers, "/" * _LONGEST_PATHS, script_text("runner"))
    staged = ("/tmp/" + "x" * 52, "f" * 64)
    assert len(command_line(("place", "sweep", "startup", "grade"), (*arguments, *staged))) <= 16_384
    with pytest.raises(RuntimeError, match="to have 6000 characters together at most"):
        load("http://127.0.0.1:9", podman_workdir="/" + "x" * 3000, test_file_path="/" + "y" * 3000)
