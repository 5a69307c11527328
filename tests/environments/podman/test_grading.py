"""Grading in real containers: long tests, endless printers, what tests do to themselves, long commands, files."""

import asyncio

import pytest

from primebeaker.environments._shared.podman import grading
from primebeaker.environments._shared.podman.book import SessionBook
from primebeaker.environments._shared.podman.session import open_session
from primebeaker.environments._shared.services import ServicePool

from ..conftest import ScriptedClient
from .conftest import COLUMNS, DONE, bash

REWARD = "/logs/verifier/reward.txt"
PAY = f"echo 1 > {REWARD}"


@pytest.fixture
def impatient(monkeypatch):
    """Requests that wait for the tests give up after a second, so that several are needed."""
    monkeypatch.setattr(grading, "_PATIENCE_SECONDS", 1)


def test_tests_longer_than_one_request_run_once_and_are_waited_for_in_the_container(containers, load, solve, impatient):
    before = len(containers.requests)
    tests = f"echo begin >> /tmp/runs; sleep 3; cat /tmp/runs; echo oops >&2; {PAY}; exit 3"
    rollout = solve(load(containers, test_command=tests), bash(DONE))
    assert rollout["reward"] == pytest.approx(1.1), "the exit status of the tests does not change the score"
    output = rollout["podman_test_output"]
    assert (output["stdout"], output["stderr"], output["exit_code"]) == ("begin\n", "oops\n", 3)
    assert (output["success"], output["timed_out"]) == (False, False)
    assert output["execution_time"] >= 3
    sent = [body for route, body in containers.requests[before:] if route == "podman"]
    assert len(sent) >= 3
    assert all(body["timeout"] <= 60 and len(body["command"]) <= 16_384 for body in sent)


def test_a_start_up_file_cannot_write_the_reward_while_long_tests_run(containers, load, solve, impatient):
    edit = f"echo 'mkdir -p /logs/verifier; echo 1 > {REWARD}' | tee /root/.profile /root/.bash_profile > /etc/profile"
    # Between two requests the files are out of the way for a moment.
    found = "for i in $(seq 300); do ls -A /root /etc | grep -x .bash_profile && break; sleep 0.1; done"
    tests = f"echo 0 > {REWARD}; sleep 2.5; {found}; ls -A /root /etc"
    rollout = solve(load(containers, test_command=tests), bash(edit, "cat /root/.profile"), bash(DONE))
    assert rollout["podman_reward_file_score"] == 0.0
    assert rollout["reward"] == pytest.approx(0.1)
    seen = rollout["podman_test_output"]["stdout"].split()
    assert {".profile", ".bash_profile", "profile"} <= set(seen), "tests find the files in their places"


@pytest.mark.parametrize(
    "edit",
    [
        # A start-up file that runs the command as its child and goes on beside it.
        f"echo '[[ $BASH_EXECUTION_STRING == *norc* ]] && {{ (exec /bin/bash -c \"$BASH_EXECUTION_STRING\"; exit) & while kill -0 $!; do {PAY}; done 2>/dev/null; exit; }}' > /root/.bash_profile",
        # The same with the loop in the background.
        f"echo '(while :; do {PAY}; done) >/dev/null 2>&1 &' > /root/.bash_profile",
    ],
    ids=["beside", "background"],
)
def test_a_start_up_file_that_stays_is_swept(containers, load, solve, edit):
    rollout = solve(
        load(containers, test_command="sleep 0.5; rm -f " + REWARD),
        bash(f"mkdir -p /logs/verifier; {edit}"),
        bash(DONE),
    )
    assert rollout["podman_failure"] is False, rollout["podman_failure_message"]
    assert rollout["podman_reward_file_score"] == 0.0
    assert rollout["reward"] == pytest.approx(0.1)


def test_tests_out_of_time_are_killed_with_their_children_and_score_nothing(containers, load, solve):
    tests = f"{PAY}; echo before; (while :; do sleep 0.1; done) & sleep 600"
    rollout = solve(load(containers, test_command=tests, test_timeout=4), bash(DONE))
    assert rollout["podman_reward_file_error"] == "tests timed out after 4 s"
    assert (rollout["podman_reward_file_score"], rollout["podman_reward_file_present"]) == (0.0, True)
    output = rollout["podman_test_output"]
    assert (output["timed_out"], output["success"], output["stdout"]) == (True, False, "before\n")
    assert output["exit_code"] == 137
    assert rollout["reward"] == pytest.approx(0.1)


def test_an_endless_printer_fills_nothing_and_the_end_of_what_is_kept_is_shown(containers, load, solve):
    tests = (
        f"head -c 30000000 /dev/zero | tr '\\0' 'x'; echo; seq 20000 >&2; du -b /tmp/.primebeaker*/stdout >&2; {PAY}"
    )
    rollout = solve(load(containers, test_command=tests), bash(DONE))
    output = rollout["podman_test_output"]
    assert rollout["reward"] == pytest.approx(1.1), "the printer is not stopped, only its output is cut"
    assert len(output["stdout"]) == 65_536 and output["stdout_truncated"] is True
    assert len(output["stderr"]) == 65_536 and output["stderr_truncated"] is True
    size, _ = output["stderr"].splitlines()[-1].split("\t")
    assert int(size) <= 8 * 2**20


@pytest.mark.parametrize(
    "tests",
    [
        f"{PAY}; kill -9 $PPID; sleep 600",
        f"{PAY}; rm -rf /tmp/.primebeaker*",
        f"{PAY}; kill -9 -1",
    ],
    ids=["kill their runner", "remove its folder", "kill everything"],
)
def test_tests_that_end_their_own_runner_are_still_read(containers, load, solve, tests):
    rollout = solve(load(containers, test_command=tests), bash(DONE))
    assert rollout["podman_failure"] is False
    assert rollout["podman_reward_file_error"] != "tests timed out after 600 s"
    assert rollout["podman_terminal_complete"] is True


def test_tests_run_in_the_work_folder_with_a_clean_environment(containers, load, solve):
    tests = f"pwd; env | sort; cat; {PAY}"
    rollout = solve(load(containers, test_command=tests, podman_workdir="/home/user"), bash("export X=1", DONE))
    lines = rollout["podman_test_output"]["stdout"].splitlines()
    assert lines[0] == "/home/user"
    names = {line.partition("=")[0] for line in lines[1:]}
    assert names - {"_", "PWD", "OLDPWD", "SHLVL"} == {"HOME", "LANG", "PATH"}
    assert "HOME=/root" in lines and "LANG=C.UTF-8" in lines


def test_tests_run_in_the_root_folder_when_the_work_folder_is_gone(containers, load):
    async def run():
        pool = ServicePool()
        async with pool.held():
            book = SessionBook("test", 3)
            session = await open_session(load(containers), book, pool, "docker.io/library/ubuntu")
            plan = grading.GradingPlan(REWARD, "/tmp/t", None, f"pwd; {PAY}", 60, "/gone", False)
            state = grading.grading_defaults()
            await grading.grade(session, state, plan)
            await book.close(session.entry)
            return state

    state = asyncio.run(run())
    assert state["podman_test_output"]["stdout"] == "/\n"
    assert state["podman_reward_file_score"] == 1.0


@pytest.mark.parametrize("length", [16_384, 16_385, 1_000_000])
def test_a_long_command_runs_as_it_is(containers, load, solve, length):
    command = "echo 'héllo wörld' $0 $(pwd) >&2; exit 3 #"
    command += "x" * (length - len(command))
    rollout = solve(load(containers), bash(command), bash(DONE))
    assert "héllo wörld" in rollout.answers[0] and "/home/user" in rollout.answers[0]
    assert rollout.answers[0].endswith("[exit code 3]")
    assert rollout["podman_failure"] is False


def test_a_command_that_is_too_long_is_told_and_not_sent(containers, load, solve):
    before = len(containers.requests)
    rollout = solve(load(containers), bash("x" * 1_000_001), bash(DONE))
    assert "the command has 1000001 characters; at most 1000000 are accepted" in rollout.answers[0]
    assert rollout["podman_failure"] is False
    assert all(len(body.get("command", "")) <= 16_384 for _, body in containers.requests[before:])


def test_commands_that_no_shell_can_take_are_told(containers, load, solve):
    rollout = solve(load(containers), bash("echo a\0b"), bash("echo \ud800"), bash(DONE))
    assert rollout["podman_failure"] is False
    assert all("[exit code 1]" in answer for answer in rollout.answers[:2])
    assert rollout["podman_terminal_complete"] is True


def test_a_killed_command_is_told_with_its_limit(containers, load, solve):
    rollout = solve(load(containers, command_timeout=3), bash("echo a; sleep 600"), bash(DONE))
    assert rollout.answers[0] == "```stdout\na\n\n```\n\n```stderr\n\n```\n\n[exit code 137; timed out after 3 s]"


def test_what_the_service_cuts_is_told(containers, load, solve):
    env = load(containers, terminal_truncation=200)
    rollout = solve(env, bash("head -c 2000000 /dev/zero | tr '\\0' x"), bash(DONE))
    assert rollout.answers[0].endswith("[stdout truncated]")
    assert "characters omitted]" in rollout.answers[0] and len(rollout.answers[0]) < 400
    assert len(rollout["jtc_tool_history"][0]["output"]["stdout"]) <= 200


def test_hidden_tests_of_any_size_arrive_whole_and_private(containers, load, solve):
    source = "# ünïcödé\n" * 250_000 + f"stat -c '%a %s' /tmp/hidden/t.sh; {PAY}\n"
    assert len(source) > 2_000_000
    row = {"prompt": "p", "image": "u", "unit_tests": source}
    env = load(containers, row, test_file_path="/tmp/hidden/t.sh", test_command="bash /tmp/hidden/t.sh")
    rollout = solve(env, bash("mkdir -p /tmp/hidden/t.sh/x"), bash(DONE))
    assert rollout["podman_test_install_output"] == {"success": True, "error": None}
    assert rollout["podman_test_output"]["stdout"] == f"600 {len(source.encode())}\n"
    assert rollout["reward"] == pytest.approx(1.1)


def test_a_long_test_command_runs(containers, load, solve):
    env = load(containers, test_command=f"{PAY} # " + "x" * 1_040_000)
    assert solve(env, bash(DONE))["reward"] == pytest.approx(1.1)


def test_hidden_tests_that_cannot_be_installed_cost_the_reward_only(containers, load, solve):
    row = {"prompt": "p", "image": "u", "unit_tests": PAY}
    env = load(containers, row, test_file_path="/tests/t.sh", test_command="bash /tests/t.sh")
    rollout = solve(env, bash("mkdir /tests; mount -t tmpfs -o ro none /tests"), bash(DONE))
    assert rollout["podman_reward_file_error"].startswith("could not install the tests: ")
    assert (rollout["podman_failure"], rollout["podman_tests_ran"]) == (False, False)
    assert rollout["podman_test_install_output"]["success"] is False
    assert rollout["reward"] == pytest.approx(0.1)


def test_files_and_processes_stay_within_a_rollout_and_never_cross(containers, load):
    env = load(containers, test_command=f"cat /home/user/mine > {REWARD}")

    async def one(number):
        client = ScriptedClient([bash(f"ls -A; echo 0.{number} > mine"), bash("cat mine", DONE)])
        return await env.run_rollout(dict(env.get_dataset()[0]), client, "m", {}, state_columns=list(COLUMNS))

    async def run():
        outputs = await asyncio.gather(*(one(number) for number in range(1, 9)))
        await env._teardown()
        return outputs

    outputs = asyncio.run(run())
    assert [output["podman_reward_file_score"] for output in outputs] == [number / 10 for number in range(1, 9)]
    for number, output in enumerate(outputs, start=1):
        first, second, _ = (event["output"]["stdout"] for event in output["jtc_tool_history"])
        assert (first, second) == ("", f"0.{number}\n")
    assert len({output["podman_container_id"] for output in outputs}) == 8
    assert containers.containers == []
