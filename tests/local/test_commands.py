"""``primebeaker list|status|logs|follow|stop`` on both engines, and ``primebeaker local …``."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from primebeaker.cli import main
from primebeaker.local import LocalEngine
from primebeaker.supervision.processes import descendants, snapshot

from ..waiting import command_line, until

Launch = Callable[..., str]
GANG = 'echo "from $BEAKER_REPLICA_RANK"; test "$BEAKER_REPLICA_RANK" != 1 || { sleep 0.2; exit 7; }; exec sleep 600'


class Said(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"exit {self.code}: {self.err}"
        return json.loads(self.out)


@pytest.fixture(params=["local", "beaker"])
def run(
    request: pytest.FixtureRequest,
    engine: LocalEngine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Said]:
    """Run a command on the embedded engine, directly or as a Beaker reached through its ``beaker`` program."""
    monkeypatch.setenv("PRIMEBEAKER_ENGINE", request.param)
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_BINARY", str(engine.home.bin / "beaker"))
    monkeypatch.setattr("primebeaker.cli.following._LOOK_SECONDS", {"local": 0.1, "beaker": 0.3})

    def call(*words: str) -> Said:
        code = main(list(words))
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


@pytest.fixture
def local(engine: LocalEngine, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a ``primebeaker local`` command."""

    def call(*words: str) -> Said:
        code = main(["local", *words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


def test_status_names_the_first_cause(run: Callable[..., Said], engine: LocalEngine, launch: Launch):
    experiment_id = launch(GANG, replicas=3, propagateFailure=True)
    engine.wait(experiment_id, timeout=30)
    found = run("status", experiment_id).json
    assert (found["state"], found["cause"]) == ("failed", "main rank 1 ended with 7")
    assert [(one["rank"], one["state"], one["exit_code"]) for one in found["replicas"]] == [
        (0, "canceled", 143),
        (1, "failed", 7),
        (2, "canceled", 143),
    ]
    text = run("status", experiment_id, "--format=text").out
    assert "first cause: main rank 1 ended with 7" in text
    assert text.splitlines()[-2].split()[:4] == ["main", "1", "failed", "-"]


def test_status_tells_running_and_ready_apart(
    run: Callable[..., Said], engine: LocalEngine, launch: Launch, tmp_path: Path
):
    """What a role does comes from its member file; one of an earlier job says nothing. Engines must answer too."""
    meet = tmp_path / "meet"
    variables = [{"name": "RENDEZVOUS_DIR", "value": str(meet)}]
    experiment_id = launch("exec sleep 600", replicas=4, envVars=variables)
    until(lambda: all(job.state == "running" for job in engine.store.jobs(experiment_id)))
    jobs = engine.store.jobs(experiment_id)
    (meet / "members").mkdir(parents=True)
    (meet / "epochs" / "e1").mkdir(parents=True)
    (meet / "epoch.json").write_text('{"epoch": "e1"}')
    (meet / "epochs" / "e1" / "runtime.json").write_text('{"engines": [{"rank": 2}, {"rank": 2}]}')
    told = [("run", jobs[0].id), ("assemble", jobs[1].id), ("run", jobs[2].id), ("run", "an earlier one")]
    for rank, (phase, job_id) in enumerate(told):
        member = {"schema": "x", "rank": rank, "job_id": job_id, "phase": phase, "engines_ready": 1}
        (meet / "members" / f"{rank}.json").write_text(json.dumps(member))
    replicas = run("status", experiment_id).json["replicas"]
    assert [(one["state"], one["phase"]) for one in replicas] == [
        ("ready", "run"),
        ("running", "assemble"),
        ("running", "run"),
        ("running", None),
    ]
    assert (replicas[2]["engines_ready"], replicas[2]["engines"]) == (1, 2)
    assert "run, engines 1/2" in run("status", experiment_id, "--format=text").out
    member["job_id"], member["rank"], member["engines_ready"] = jobs[2].id, 2, 2
    (meet / "members" / "2.json").write_text(json.dumps(member))
    assert run("status", experiment_id).json["replicas"][2]["state"] == "ready"


def test_list_filters(run: Callable[..., Said], engine: LocalEngine, launch: Launch):
    done, bad = launch("true", name="done"), launch("exit 3", name="bad")
    for experiment_id in (done, bad):
        engine.wait(experiment_id, timeout=30)
    here = ["list", "--workspace=ai2/lab"]
    assert [one["name"] for one in run(*here).json] == ["bad", "done"]
    assert [one["name"] for one in run(*here, "--limit=1").json] == ["bad"]
    assert [one["name"] for one in run(*here, "--state=succeeded").json] == ["done"]
    assert [one["name"] for one in run(*here, "--text=don", "--me").json] == ["done"]
    assert run(*here, "--max-age=0s").json == []
    (row,) = run(*here, "--state=failed").json
    assert (row["replicas"], row["exit_codes"], row["cause"]) == (1, [3], "main rank 0 ended with 3")
    assert "--max-age = 'x': expected a duration like 7d" in run(*here, "--max-age=x").err
    assert run(*here, "--format=text").out.splitlines()[0].split()[:3] == ["ID", "NAME", "AUTHOR"]


def test_logs_of_all_and_of_one(run: Callable[..., Said], engine: LocalEngine, launch: Launch):
    experiment_id = launch("echo a; echo b$BEAKER_REPLICA_RANK", replicas=2)
    engine.wait(experiment_id, timeout=30)
    assert run("logs", experiment_id).out == "[main/0] a\n[main/0] b0\n[main/1] a\n[main/1] b1\n"
    assert run("logs", experiment_id, "--tail=1", "--rank=1").out == "b1\n"
    line = json.loads(run("logs", experiment_id, "--rank=0", "--tail=1", "--format=json").out)
    assert (line["task"], line["rank"], line["text"]) == ("main", 0, "b0")
    stamped = run("logs", experiment_id, "--rank=0", "--timestamps").out.splitlines()
    assert stamped[0].endswith("Z a")
    assert run("logs", experiment_id, "--since=2000-01-01", "--rank=0").out == "a\nb0\n"
    assert run("logs", experiment_id, "--since=2100-01-01", "--rank=0").out == ""
    assert run("logs", experiment_id, "--since=soon").code == 2


def test_follow_keeps_lines_and_news_apart(run: Callable[..., Said], launch: Launch):
    """Lines go to stdout, changes of state to stderr; the exit code is that of a failed experiment."""
    said = run("follow", launch(GANG, replicas=3, propagateFailure=True))
    assert said.code == 4
    assert sorted(said.out.splitlines()) == [f"[main/{rank}] from {rank}" for rank in range(3)]
    assert "main rank 1: failed with exit code 7" in said.err.splitlines()
    assert said.err.splitlines()[-1] == "exp failed: main rank 1 ended with 7"


def test_follow_takes_up_jobs_that_start_later(
    run: Callable[..., Said], engine: LocalEngine, launch: Launch, tmp_path: Path
):
    """A preempted replica is started again as a new job while it is followed."""
    script = f"echo try $(cat {tmp_path}/n 2>/dev/null); test -e {tmp_path}/n && exit 0; exec sleep 600"
    experiment_id = launch(script, context={"autoResume": True})

    def followed() -> bool:
        """Whether the first job's lines are being read: in this process, or by a ``beaker job logs`` below it."""
        if os.environ["PRIMEBEAKER_ENGINE"] == "local":
            return any(thread.name == "log lines" for thread in threading.enumerate())
        job = engine.store.jobs(experiment_id)[0].id.encode()
        below = descendants([os.getpid()], snapshot())
        return any(job in command_line(process.pid) for process in below)

    def preempt() -> None:
        until(followed)
        until(lambda: list(engine.logs(experiment_id)))
        (tmp_path / "n").write_text("2")
        engine.preempt(experiment_id)

    helper = threading.Thread(target=preempt)
    helper.start()
    said = run("follow", experiment_id)
    helper.join()
    assert (said.code, said.out) == (0, "try\ntry 2\n")
    assert "main: succeeded with exit code 0 (attempt 2)" in said.err


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 4)])
def test_logs_follow_ends_with_the_outcome(run: Callable[..., Said], launch: Launch, script: str, code: int):
    assert run("logs", launch(script), "--follow").code == code


def test_stop(run: Callable[..., Said], engine: LocalEngine, launch: Launch):
    """Several at once; a wrong id among them stops none; one that has ended is no fault."""
    one, two = launch("exec sleep 600", name="one"), launch("exec sleep 600", name="two")
    assert run("stop", "one", "nobody").code != 0
    assert engine.get(one).state == "running"
    assert [row["outcome"] for row in run("stop", "one", "two", "--dry-run").json] == ["would be stopped"] * 2
    assert [row["outcome"] for row in run("stop", "one", "two").json] == ["stopped"] * 2
    assert {engine.wait(each, timeout=30).state for each in (one, two)} == {"canceled"}
    assert run("stop", "one").json[0]["outcome"] == "ended before"


def test_the_latest_experiment(run: Callable[..., Said], launch: Launch, engine: LocalEngine):
    assert "has no experiment here" in run("status", "--latest", "--workspace=ai2/lab").err
    launch("true", name="old")
    newest = launch("true", name="new")
    assert run("status", "--latest", "--workspace=ai2/lab").json["id"] == newest
    assert "--latest does not go with an id" in run("status", newest, "--latest").err
    assert run("logs").code == 2


def test_an_interrupted_follow_leaves_the_experiment_running(engine: LocalEngine, launch: Launch):
    """Without a terminal nothing is asked: exit 130, one line, and the experiment goes on."""
    experiment_id = launch("echo here; exec sleep 600")
    process = subprocess.Popen(
        [sys.executable, "-m", "primebeaker", "follow", experiment_id, "--engine=local"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"exp goes on; follow it again with 'primebeaker follow {experiment_id}'" in errors.splitlines()[-1]
    assert engine.get(experiment_id).state == "running"


@pytest.mark.parametrize(
    ("answer", "code", "state"), [("q", 130, "running"), ("", 130, "running"), ("s", 5, "canceled")]
)
def test_an_interrupted_follow_asks_on_a_terminal(
    engine: LocalEngine, launch: Launch, answer: str, code: int, state: str
):
    experiment_id = launch("echo here; exec sleep 600")
    process, terminal = _follow_in_terminal(experiment_id)
    _read_until(terminal, "here")
    os.kill(process.pid, signal.SIGINT)
    _read_until(terminal, "[q]uit following, [f]ollow on, [s]top the experiment?")
    os.write(terminal, f"{answer}\n".encode())
    assert process.wait(timeout=30) == code
    os.close(terminal)
    assert engine.get(experiment_id).state == state


def test_following_on_after_an_interruption_loses_no_line(engine: LocalEngine, launch: Launch, tmp_path: Path):
    experiment_id = launch(f"echo one; while ! test -e {tmp_path}/go; do sleep 0.02; done; echo two; echo three")
    process, terminal = _follow_in_terminal(experiment_id)
    _read_until(terminal, "one")
    os.kill(process.pid, signal.SIGINT)
    _read_until(terminal, "[q] ")
    (tmp_path / "go").touch()
    os.write(terminal, b"f\n")
    text = _read_until(terminal, "exp succeeded")
    assert [word for word in text.split() if word in ("one", "two", "three")] == ["two", "three"]
    assert process.wait(timeout=30) == 0
    os.close(terminal)


def _follow_in_terminal(experiment_id: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "primebeaker", "follow", experiment_id, "--engine=local"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def _read_until(terminal: int, wanted: str) -> str:
    text = ""
    while wanted not in text:
        text += os.read(terminal, 4096).decode()
    return text


def test_local_wait_tells_the_outcome_by_its_exit_code(local: Callable[..., Said], launch: Launch, engine: LocalEngine):
    for script, code in (("true", 0), ("exit 9", 4)):
        assert local("wait", launch(script, name=f"n{code}")).code == code
    running = launch("exec sleep 600", name="long", propagatePreemption=True)
    said = local("wait", running, "--timeout=0.2")
    assert (said.code, said.json["state"]) == (124, "running")
    assert local("preempt", running).code == 0
    assert local("wait", running).code == 6
    assert local("restart", running).code == 0
    assert local("stop", running).json["state"] == "canceled"
    assert local("wait", running).code == 5


def test_local_get_list_events(local: Callable[..., Said], launch: Launch, engine: LocalEngine):
    experiment_id = launch("exit 3", replicas=2)
    engine.wait(experiment_id, timeout=30)
    (shape,) = local("get", experiment_id).json
    assert (shape["id"], len(shape["jobs"])) == (experiment_id, 2)
    (row,) = local("list", "--state=failed", "--workspace=ai2/lab").json
    assert (row["id"], row["replicas"], row["exit_codes"]) == (experiment_id, 2, [3, 3])
    kinds = [event["kind"] for event in local("events", experiment_id).json]
    assert kinds[0] == "created"
    assert kinds[-1] == "failed"
    assert kinds.index("scheduled") < kinds.index("failed")


def test_local_logs_follow(local: Callable[..., Said], launch: Launch):
    said = local("logs", launch("echo x; exit 3", replicas=2), "--follow")
    assert (said.code, sorted(said.out.splitlines())) == (4, ["[main/0] x", "[main/1] x"])


def test_local_secrets(
    local: Callable[..., Said], engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    value = tmp_path / "value"
    value.write_text("value-of-secret\n")
    with value.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        said = local("secret", "write", "TOK", "--workspace=a/b")
    assert "value-of-secret" not in said.out
    assert engine.secrets.read("a/b", "TOK") == "value-of-secret"
    assert local("secret", "list", "--workspace=a/b").json == [{"name": "TOK"}]
    assert "no such secret in a/b; did you mean 'TOK'?" in local("secret", "delete", "TOKK", "--workspace=a/b").err
    assert local("secret", "delete", "TOK", "--workspace=a/b").code == 0
    assert local("secret", "list", "--workspace=a/b").json == []


def test_local_doctor_and_gc(local: Callable[..., Said], launch: Launch, engine: LocalEngine):
    assert all(one["ok"] for one in local("doctor").json)
    engine.wait(launch("true"), timeout=30)
    assert len(local("gc", "--older-than=0s", "--dry-run").json) == 1
    assert len(local("gc", "--older-than=0s").json) == 1
    assert local("list").json == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["get", "nobody"], 2, "nobody: no such experiment"),
        (["stop"], 2, "EXPERIMENT_ID is missing"),
        (["wait"], 2, "EXPERIMENT_ID"),
        (["gc", "--older-than=soon"], 2, "--older-than = 'soon': expected a duration like 7d, 12h or 30m"),
        (["list", "--state=ended"], 2, "--state = 'ended': expected"),
    ],
)
def test_local_mistakes_are_one_line(local: Callable[..., Said], words: list[str], code: int, message: str):
    said = local(*words)
    assert said.code == code
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
