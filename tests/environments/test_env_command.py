"""`primebeaker env`: list, show, check, and real rollouts against a server."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from primebeaker.environments.trying import SavedRollouts
from primebeaker.errors import UserError

ROOT = Path(__file__).parents[2]
RIGHT = "<feedback>f</feedback><label>pass</label>"


def command(*words, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "primebeaker", "env", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


def test_list_and_show_name_what_is_there():
    names = [entry["name"] for entry in json.loads(command("list").stdout)]
    assert {"label", "tool-label", "code-tool-label", "terminal-tool-label", "reward-model"} <= set(names)
    shown = json.loads(command("show", "jtc-tool-label").stdout)
    assert shown["name"] == "tool-label"
    assert [tool["name"] for tool in shown["tool_definitions"]] == ["terminal"]
    assert {"name": "correct_final_label", "weight": 1.0}.items() <= shown["rewards"][11].items()
    text = command("show", "label", "--format", "text").stdout
    assert "valid_format" in text and "[[orchestrator.train.source]]" in text


def test_check_of_the_example_toml():
    done = command("check", "--toml", "examples/rl/config.toml")
    assert done.returncode == 0, done.stderr
    assert [(entry["name"], entry["rows"]) for entry in json.loads(done.stdout)] == [("label", 4), ("label", 2)]


def test_check_says_what_is_wrong_by_file_row_and_key(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "q", "answer": "a"}\n{"answer": "a"}\n')
    toml = tmp_path / "rl.toml"
    toml.write_text(
        "[[orchestrator.train.source]]\nname = 'a'\nlegacy.id = 'primebeaker.environments.jtc_label_env'\n"
        f"legacy.args = {{ dataset = '{rows}' }}\n"
        "[[orchestrator.eval.source]]\nname = 'b'\nlegacy.id = 'primebeaker.environments.jtc_tool_label_env'\n"
        f"legacy.args = {{ dataset = '{rows}', max_tool_call = 3 }}\n"
        "[[orchestrator.eval.source]]\nname = 'c'\nlegacy.id = 'primebeaker.environments.jtc_lable_env'\n"
    )
    done = command("check", "--toml", toml)
    assert done.returncode == 2
    first, second, third = done.stderr.splitlines()
    assert f"{toml}: orchestrator.train.source[0].legacy.args: {rows}:2: prompt: missing or empty" in first
    assert "max_tool_call=3: unknown argument; did you mean 'max_tool_calls'" in second
    assert "orchestrator.eval.source[1].legacy.id" in third and "did you mean 'jtc_label_env'" in third


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check",), "expected a NAME"),
        (("check", "lable", "--args", "dataset=x"), "did you mean 'label'"),
        (("check", "label", "--args", "dataset=nope.jsonl"), "file not found"),
        (("check", "label", "--args", "dataset"), "expected KEY=VALUE"),
        (("check", "label", "--args", '{"dataset": "a", "dataset": "b"}'), "the key 'dataset' is given twice"),
        (("try", "label"), "--base-url is missing"),
        (("show", "search-agent-nope"), "unknown environment"),
    ],
)
def test_mistakes_exit_2_with_one_readable_line(words, says):
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_try_runs_rollouts_and_a_rerun_goes_on(model_server, tmp_path):
    asked = []

    def answer(messages):
        asked.append(messages)
        return RIGHT if len(asked) % 2 else "no verdict"

    saved = tmp_path / "rollouts.jsonl"
    words = ("try", "label", "--args", "dataset=examples/rl/data/train.jsonl", "--model", "m", "--save", saved)
    with model_server(answer) as base_url:
        first = command(*words, "--base-url", base_url, "--rollouts", 4, "--concurrency", 2)
        assert first.returncode == 0, first.stderr
        data = json.loads(first.stdout)
        assert (data["rollouts"], data["scored"], len(asked)) == (4, 4, 4)
        assert data["figures"]["valid_format"]["mean"] == 0.5
        assert data["figures"]["valid_format"]["zeros"] == 0.5
        # A line that was being written when the run ended is made anew, and so is what an outage hit.
        lines = saved.read_text().splitlines()
        outage = {**json.loads(lines[2]), "error": {"kind": "InfraError", "message": "x"}}
        saved.write_text("\n".join([*lines[:2], json.dumps(outage), lines[3][:40]]))
        again = command(*words, "--base-url", base_url, "--rollouts", 6, "--show", 1, "--format", "text")
        assert again.returncode == 0, again.stderr
        assert len(asked) == 8
        assert "6 rollouts" in again.stdout and "valid_format" in again.stdout
        assert "[assistant]" in again.stdout
    other = command(*words[:-4], "--model", "other", "--save", saved, "--base-url", base_url)
    assert other.returncode == 2
    assert "another model" in other.stderr


TRY = ("try", "label", "--args", "dataset=examples/rl/data/train.jsonl")


def test_try_with_the_stand_in_model_needs_no_endpoint():
    done = command(*TRY, "--model", "stand-in", "--rollouts", 24, "--format", "text")
    assert done.returncode == 0, done.stderr
    assert "label with stand-in: 24 rollouts" in done.stdout
    assert "scored 24, truncated 0, infrastructure errors 0, other errors 0" in done.stdout
    mean = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("reward "))
    assert 0 < float(mean) < 2, "right and wrong replies are drawn"


def test_try_says_when_nothing_listens_where_a_service_is_named():
    words = ("try", "tool-label", *TRY[2:], "--model", "stand-in", "--rollouts", 1)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        host, port = held.getsockname()
        address = f"terminal_server_url=http://{host}:{port}/terminal"
        done = command(*words, "--args", address)
        assert f"warning: nothing listens at {host}:{port} (terminal_server_url)" in done.stderr
        held.listen()
        assert "nothing listens" not in command(*words, "--args", address).stderr


def test_try_goes_on_where_it_was_ended(model_server, tmp_path):
    """Whatever ends a run, what it saved is kept as it is, and nothing is made twice."""
    saved = tmp_path / "rollouts.jsonl"
    asked = []
    answers = threading.Semaphore(0)

    def answer(messages):
        asked.append(messages)
        answers.acquire(timeout=60)
        # Line separators that are no line breaks of the file.
        return f"<feedback>\u2028 \x85 ü {len(asked)}</feedback><label>pass</label>"

    with model_server(answer) as base_url:
        words = (*TRY, "--model", "m", "--base-url", base_url, "--rollouts", 12, "--concurrency", 1, "--save", saved)
        argv = [sys.executable, "-m", "primebeaker", "env", *map(str, words)]
        for ended_by in (signal.SIGKILL, signal.SIGINT):
            before, kept = len(asked), whole_lines(saved)
            run = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            answers.release(4)
            deadline = time.monotonic() + 120
            while len(asked) - before < 5:
                assert run.poll() is None and time.monotonic() < deadline, run.communicate()[1]
                time.sleep(0.05)
            run.send_signal(ended_by)
            _, said = run.communicate(timeout=60)
            answers.release()
            assert run.returncode == (130 if ended_by == signal.SIGINT else -signal.SIGKILL)
            assert "Traceback" not in said
            assert whole_lines(saved).startswith(kept)
            assert whole_lines(saved).count(b"\n") == kept.count(b"\n") + 4
            # What a write leaves that is cut short, even within a character.
            saved.write_bytes(saved.read_bytes() + '{"environment": "label", "ü'.encode()[:-1])
        kept, before = whole_lines(saved), len(asked)
        answers.release(20)
        again = command(*words)
        assert again.returncode == 0, again.stderr
        assert len(asked) - before == 4
    assert saved.read_bytes().startswith(kept)
    assert [json.loads(line)["rollout"] for line in saved.read_bytes().splitlines()] == list(range(12))


def whole_lines(file):
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def test_a_save_file_of_something_else_is_refused(tmp_path):
    rows = [{"question": "q"}]
    entry = {"reward": 1.0, "error": None}
    saved = tmp_path / "saved.jsonl"
    identity = {"model": "m", "sampling": {}}
    SavedRollouts(saved, identity).add(3, rows[0], entry)
    again = SavedRollouts(saved, identity)
    again.check_rows(rows)
    with pytest.raises(UserError, match=r"saved\.jsonl: --save: another run is writing to it"):
        SavedRollouts(saved, identity)
    with pytest.raises(UserError, match="rollout 3 was made from another row than row 0 of the dataset now"):
        again.check_rows([{"question": "another"}])
    del again
    with pytest.raises(UserError, match=r"saved\.jsonl:1: holds rollouts with another sampling"):
        SavedRollouts(saved, {**identity, "sampling": {"temperature": 0.5}})
    saved.write_text("not ours\n")
    with pytest.raises(UserError, match=r"saved\.jsonl:1: not a line of saved rollouts"):
        SavedRollouts(saved, identity)
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        SavedRollouts(tmp_path / "no" / "such.jsonl", identity)


def test_try_against_nothing_reports_infrastructure_errors():
    words = ("--args", "dataset=examples/rl/data/train.jsonl", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    done = command("try", "label", *words, "--rollouts", 1)
    data = json.loads(done.stdout)
    assert (done.returncode, data["scored"], data["infrastructure_errors"]) == (3, 0, 1)
    assert "ModelError" in data["first_error"]
    assert "All connection attempts failed" in data["first_error"], "the cause, not only the class of the error"
    said = "warning: --base-url = http://127.0.0.1:9/v1: no rollout could be scored; the first error: ModelError()"
    assert said in done.stderr
