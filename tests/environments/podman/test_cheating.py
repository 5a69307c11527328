"""What a model may try with a real shell to be paid for work it has not done; and that honest work is always paid."""

import asyncio
import base64

import pytest

from primebeaker.environments._shared.podman import grading
from primebeaker.environments._shared.podman.book import SessionBook
from primebeaker.environments._shared.podman.session import open_session
from primebeaker.environments._shared.services import ServicePool

from .conftest import DONE, bash, eventually, is_alive

REWARD = "/logs/verifier/reward.txt"
HONEST = f"test -e /home/user/solved && echo 1 > {REWARD} || echo 0 > {REWARD}"
NOTHING = "true"
SOLVE = "touch solved"


@pytest.fixture
def paid(containers, load, solve):
    """Run commands of a model with a test command; gives the rollout."""

    def run(*commands, tests=HONEST, row=None, **arguments):
        env = load(containers, *([row] if row else []), test_command=tests, **arguments)
        return solve(env, *(bash(command) for command in commands), bash(DONE))

    return run


@pytest.mark.parametrize(
    ("command", "tests"),
    [
        (f"mkdir -p /logs/verifier; echo 1 > {REWARD}", NOTHING),
        (f"mkdir -p /logs/verifier; (while :; do echo 1 > {REWARD}; done) >/dev/null 2>&1 &", "sleep 0.3"),
        (
            f"mkdir -p /logs/verifier; setsid bash -c 'while :; do echo 1 > {REWARD}; done' >/dev/null 2>&1 &",
            "sleep 0.3",
        ),
        (f"mkdir -p {REWARD}; echo 1 > {REWARD}/x", NOTHING),
        (f"mkdir -p /logs/verifier; echo 1 > /tmp/one; ln -s /tmp/one {REWARD}", NOTHING),
        ("mkdir -p /logs; echo 1 > /tmp/reward.txt; ln -s /tmp /logs/verifier", NOTHING),
        (f"mkdir -p /logs/verifier; mkfifo {REWARD}; (echo 1 > {REWARD}) >/dev/null 2>&1 &", NOTHING),
        (f"mkdir -p /logs/verifier; ln -s {REWARD} {REWARD}", NOTHING),
        (f"mkdir -p {REWARD}; ln -s /proc/self/root {REWARD}/loop", NOTHING),
    ],
    ids=["file", "loop", "detached loop", "directory", "link", "linked folder", "fifo", "link to itself", "tree"],
)
def test_what_is_at_the_path_before_the_tests_pays_nothing(paid, command, tests):
    rollout = paid(command, tests=tests)
    assert (rollout["podman_reward_file_present"], rollout["podman_reward_file_error"]) == (False, None)
    assert rollout["reward"] == pytest.approx(0.1)
    assert rollout["podman_process_sweep"] == "done"


def test_a_read_only_mount_over_the_file_pays_nothing_and_is_no_podman_failure(paid):
    rollout = paid(
        "mkdir -p /logs/verifier /keep; echo 1 > /keep/reward.txt; mount --bind /keep /logs/verifier;"
        " mount -o remount,ro,bind /logs/verifier"
    )
    assert rollout["podman_reward_file_error"] == "could not clear reward file before tests"
    assert (rollout["podman_reward_file_present"], rollout["podman_tests_ran"]) == (False, False)
    assert rollout["podman_failure"] is False
    assert rollout["reward"] == pytest.approx(0.1)


VALUES = [
    (b"1", 1.0, None),
    (b"1\n", 1.0, None),
    (b".5", 0.5, None),
    (b"0.75\n", 0.75, None),
    (b"1e-3", 0.001, None),
    (b"1.5", 1.0, None),
    (b"-0.3", 0.0, None),
    (b" 0.5 ", 0.5, None),
    (b"nan", 0.0, "invalid reward file value: 'nan'"),
    (b"inf", 0.0, "invalid reward file value: 'inf'"),
    (b"-inf", 0.0, "invalid reward file value: '-inf'"),
    (b"1e999", 0.0, "invalid reward file value: '1e999'"),
    (b"1_0", 0.0, "invalid reward file value: '1_0'"),
    (b"0x1", 0.0, "invalid reward file value: '0x1'"),
    ("１".encode(), 0.0, "invalid reward file value: '１'"),
    (b"True", 0.0, "invalid reward file value: 'True'"),
    (b"0.5 0.9", 0.0, "invalid reward file value: '0.5 0.9'"),
    (b"0.5\n0.9\n", 0.0, "invalid reward file value: '0.5\\n0.9\\n'"),
    (b"", 0.0, "invalid reward file value: ''"),
    (b"\xff\xfe1", 0.0, "invalid reward file value: "),
    (b"1\xc2\xa0", 0.0, "invalid reward file value: "),
    (b"1" + b" " * 4095, 1.0, None),
    (b"1" + b" " * 4096, 0.0, "reward file is larger than 4096 bytes"),
]


def test_values(containers, load):
    """All in one container, which is graded again and again."""

    async def run():
        env, pool, book = load(containers), ServicePool(), SessionBook("test", 3)
        states = []
        async with pool.held():
            session = await open_session(env, book, pool, "docker.io/library/ubuntu")
            for content, _, _ in VALUES:
                command = f"echo {base64.b64encode(content).decode()} | base64 -d > {REWARD}"
                plan = grading.GradingPlan(REWARD, "/tmp/t", None, command, 60, "/", keeps_processes=False)
                states.append(grading.grading_defaults())
                await grading.grade(session, states[-1], plan)
            await book.close(session.entry)
        return states

    for state, (content, score, error) in zip(asyncio.run(run()), VALUES, strict=True):
        assert state["podman_reward_file_score"] == pytest.approx(score), content
        assert state["podman_reward_file_present"] is True
        found = state["podman_reward_file_error"]
        assert found is None if error is None else found.startswith(error), (content, found)


@pytest.mark.parametrize(
    ("tests", "error"),
    [
        (f"mkdir {REWARD}", "reward file is not a regular file"),
        (f"echo 1 > /tmp/x; ln -s /tmp/x {REWARD}", "reward file is not a regular file"),
        (f"ln -s /nowhere {REWARD}", "reward file is not a regular file"),
        (f"mkfifo {REWARD}", "reward file is not a regular file"),
        (f"truncate -s 1G {REWARD}", "reward file is larger than 4096 bytes"),
    ],
    ids=["directory", "link", "dangling link", "fifo", "1 GB"],
)
def test_what_is_no_small_regular_file_scores_nothing(paid, tests, error):
    rollout = paid(tests=tests)
    assert (rollout["podman_reward_file_error"], rollout["podman_reward_file_present"]) == (error, True)
    assert rollout["reward"] == pytest.approx(0.1)


FORGED = f"printf '\\n1\\n'; echo TERMINAL_COMPLETE; echo 'done 0 regular'; echo '31'; mkdir -p /logs/verifier; echo 1 > {REWARD}"
PROFILES = {
    "prints": FORGED,
    "alias bash": "shopt -s expand_aliases; alias bash='echo 1;' exec='echo 1;' printf='true;' head='echo 1;' od='echo 31;'",
    "functions": (
        "function exec { builtin printf '1\\n'; }; function printf { builtin echo 1; }; function /bin/bash { echo 31; };"
        " function env { echo 31; }; function head { echo 31; }; export -f printf head env"
    ),
    "environment": "export BASH_ENV=/home/user/evil ENV=/home/user/evil PATH=/home/user/bin:$PATH PS4='1'; export SHELLOPTS; set -x",
    "traps": "trap 'echo 1' DEBUG EXIT ERR; umask 777; cd /nowhere",
}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("file", ["/root/.bash_profile", "/etc/profile"])
def test_edited_start_up_files_pay_nothing_and_punish_nobody(paid, name, file):
    plant = f"mkdir -p bin; echo 'echo 1 > {REWARD}' > evil; printf '#!/bin/sh\\necho 1 > {REWARD}\\n' > bin/head; cp bin/head bin/bash; chmod +x bin/*"
    text = base64.b64encode(PROFILES[name].encode()).decode()
    edit = f"{plant}; echo {text} | base64 -d > {file}"
    cheat = paid(edit)
    assert cheat["podman_failure"] is False, cheat["podman_failure_message"]
    assert (cheat["podman_reward_file_score"], cheat["podman_reward_file_error"]) == (0.0, None)
    assert cheat["reward"] == pytest.approx(0.1)
    honest = paid(SOLVE, edit)
    assert honest["reward"] == pytest.approx(1.1)


def test_a_start_up_file_that_ends_the_shell_costs_the_reward_at_most(containers, load, solve):
    env = load(containers, test_command=HONEST)
    rollout = solve(env, bash(SOLVE, "echo 'echo TERMINAL_COMPLETE; exit 0' > /root/.bash_profile", DONE))
    assert rollout["podman_terminal_complete"] is True
    assert rollout["podman_reward_file_error"] == "could not clear reward file before tests"
    assert (rollout["reward"], rollout["podman_failure"]) == (pytest.approx(0.1), False)


def test_a_test_command_is_not_shadowed_by_programs_in_the_home_directory(paid):
    shim = f"mkdir -p /root/bin /root/.local/bin; printf '#!/bin/sh\\necho 1 > {REWARD}\\n' | tee /root/bin/bash /root/.local/bin/bash >/root/bin/python3; chmod +x /root/bin/* /root/.local/bin/*; echo 'PATH=/root/bin:/root/.local/bin:$PATH' >> /root/.profile"
    row = {
        "prompt": "p",
        "image": "u",
        "test_final_state": f"if test -e /home/user/solved; then echo 1; else echo 0; fi > {REWARD}",
    }
    command = "bash /tmp/primebeaker-test-final-state.py"
    assert paid(shim, tests=command, row=row)["reward"] == pytest.approx(0.1)
    assert paid(shim, SOLVE, tests=command, row=row)["reward"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    "command",
    [
        "printf 'TERMINAL_COMPLETE\\n'",
        "cat <<END\nTERMINAL_COMPLETE\nEND",
        "echo TERMINAL_COMPLETE && true",
        "echo TERMINAL_COMPLETE;",
        "echo TERMINAL_COMPLETE # x",
        "echo -n TERMINAL_COMPLETE",
        "bash -c 'echo TERMINAL_COMPLETE'",
        "echo\nTERMINAL_COMPLETE",
        "echo TERMINAL_COMPLETE > done.txt",
        "ECHO TERMINAL_COMPLETE",
    ],
)
def test_what_only_looks_like_the_completion_command_ends_nothing(containers, load, solve, command):
    env = load(containers, test_command=f"echo 1 > {REWARD}", max_tool_calls=1)
    rollout = solve(env, bash(command))
    assert (rollout["stop_condition"], rollout["podman_tests_ran"]) == ("tool_budget_exhausted", False)
    assert rollout["reward"] == 0.0


@pytest.mark.parametrize(
    "command", [DONE, "  echo   TERMINAL_COMPLETE \n", "echo 'TERMINAL_COMPLETE'", 'echo "TERMINAL_COMPLETE"']
)
def test_the_completion_command_may_be_spelled_as_a_shell_allows(paid, containers, load, solve, command):
    rollout = solve(load(containers, test_command=f"echo 1 > {REWARD}"), bash(command))
    assert rollout["reward"] == pytest.approx(1.1)


def test_the_marker_before_the_work_or_twice_is_graded_once_and_nothing_runs_after_it(containers, load, solve):
    env = load(containers, test_command=f"{HONEST}; echo run >> /tmp/runs; cat /tmp/runs")
    rollout = solve(env, bash(DONE, SOLVE, DONE))
    assert rollout["reward"] == pytest.approx(0.1), "the work came after the marker"
    assert rollout["podman_test_output"]["stdout"] == "run\n"
    assert len(rollout.answers) == 3
    assert all("was not run" in answer for answer in rollout.answers[1:])


def test_a_program_that_waits_for_the_sweep_cannot_outlive_it(paid):
    fork = "for i in 1 2 3; do (trap '' TERM HUP INT; while :; do sleep 0.01; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done) >/dev/null 2>&1 & done"
    rollout = paid(fork, tests="sleep 0.3; ls /logs/verifier")
    assert rollout["podman_process_sweep"] == "done"
    assert rollout["podman_processes_killed"] >= 3
    assert rollout["podman_test_output"]["stdout"] == ""
    assert rollout["reward"] == pytest.approx(0.1)


def test_what_the_tests_leave_running_cannot_rewrite_the_file(paid):
    left = f"echo 0 > {REWARD}; setsid bash -c 'sleep 0.2; while :; do echo 1 > {REWARD}; done' >/dev/null 2>&1 & echo 0 > {REWARD}"
    assert paid(tests=left)["reward"] == pytest.approx(0.1)


def test_background_processes_are_kept_on_request(paid):
    serve = "(while :; do sleep 0.05; touch /tmp/alive; done) >/dev/null 2>&1 &"
    tests = f"rm -f /tmp/alive; for i in $(seq 100); do test -e /tmp/alive && break; sleep 0.1; done; test -e /tmp/alive && echo 1 > {REWARD}"
    rollout = paid(serve, tests=tests, keep_background_processes=True)
    assert (rollout["podman_process_sweep"], rollout["podman_processes_killed"]) == ("kept", 0)
    assert rollout["reward"] == pytest.approx(1.1)


def test_the_hidden_tests_are_nowhere_before_completion_and_never_shown(containers, load, solve, caplog):
    secret = "a-very-hidden-check"
    row = {"prompt": "p", "image": "u", "test_final_state": f"# {secret}\necho {secret}; echo 1 > {REWARD}\n"}
    env = load(containers, row, test_command="bash /tmp/primebeaker-test-final-state.py")
    search = (
        f"grep -rs {secret[:12]} / --exclude-dir=proc --exclude-dir=usr -l | grep -v /root/.bash_history; ls -la /tmp"
    )
    rollout = solve(env, bash(search), bash(DONE))
    assert rollout["reward"] == pytest.approx(1.1)
    assert rollout["podman_test_output"]["stdout"] == f"{secret}\n"
    shown = str([rollout.prompts, rollout.answers])
    assert secret not in shown and "primebeaker" not in shown
    assert secret not in caplog.text


def test_the_sweep_does_nothing_where_process_1_is_no_session_container(containers, tmp_path):
    """In a process namespace of its own, so that a fault could not kill this machine's processes."""
    import subprocess

    from primebeaker.environments._shared.podman.control import script_text

    script = tmp_path / "sweep"
    script.write_text(f"{script_text('prelude')}\n{script_text('sweep')}\nsweep; echo $swept $killed\n")
    inside = f"sleep 60 & victim=$!; echo token | bash {script}; kill -0 $victim && echo alive; kill -9 $victim"
    words = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--fork", "--mount-proc", "bash", "-c", inside]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "skipped 0\nalive\n", done


def test_the_sweep_reaches_nothing_outside_its_container(containers, paid):
    import subprocess

    outside = subprocess.Popen(["sleep", "600"])
    try:
        rollout = paid("sleep 300 >/dev/null 2>&1 & echo started", SOLVE)
        assert rollout["podman_processes_killed"] == 1
        assert is_alive(outside.pid) and outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
    eventually(lambda: containers.containers == [], "the container is gone")
