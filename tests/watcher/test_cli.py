"""The commands as a user types them: one JSON document, exit codes, one-line mistakes; and a real server."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Tree

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(family: Tree) -> Run:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "primebeaker.watcher", *words, f"--database={family.database}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=family.root, timeout=180)

    return call


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_user_s_day(run: Run, family: Tree) -> None:
    assert document(run("status")) == {"database": str(family.database), "exists": False}
    assert run("status", "--check").returncode == 1
    assert not family.database.exists()
    made = document(run("update", f"--repo-root={family.repo}", f"--output_roots={family.runs},/nowhere"))
    assert made["operation"] == "update"
    assert run("status", "--check", "--max_age_minutes=5").returncode == 0
    assert [row["name"] for row in document(run("runs", "--stage=rl"))["items"]] == ["math-rl", "math-rl2"]
    shown = document(run("show", "math-rl@15", "--config"))
    assert shown["config"].startswith("output_dir")
    assert shown["provenance"]["rl_checkpoint_step"] == 15
    assert run("lineage", "math-rl", "--format=dot").stdout.startswith("digraph")
    assert document(run("diff", "math-rl", "math-rl2"))["equal"] == 3
    assert document(run("compare", "math-rl", "chat-sft"))["columns"][0]["label"] == "math-rl"
    assert document(run("evals", "--status=partial"))["count"] == 1
    assert document(run("prune", "--dry_run"))["runs"] == 0
    roots = {row["option"]: row["source"] for row in document(run("config"))["roots"]}
    assert roots["output_roots"] == "stored"
    assert run("runs", "--format=text").stdout.splitlines()[0].startswith("key")
    # The roots are remembered.
    assert document(run("update"))["files_parsed"] == 0
    empty = run("index", "runs")
    assert empty.returncode == 2
    assert "model is not indexed" in empty.stderr and "the scan found no checkpoint there" in empty.stderr
    indexed = document(run("index", "runs/math-rl/weights/step_5"))
    assert indexed["checkpoint"]["step"] == 5


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["updat"], 2, "did you mean 'update'"),
        (["update", "--ful"], 2, "did you mean '--full'"),
        (["update", "extra"], 2, "unexpected word 'extra'"),
        (["update", "--stale_minutes=soon"], 2, "expected a number"),
        (["update", "--path_map=/a", "--repo_root=."], 2, "expected OLD=NEW"),
        (["runs"], 2, "does not exist"),
        (["show", "nothing@1"], 2, "does not exist"),
        (["index", "nothing"], 2, "/nothing: no such directory; give the directory of a checkpoint"),
        (["compare", "one"], 2, "expected 2 to 10 references, found 1"),
        (["update", "--train_config_roots=()", "--repo_root=/nowhere"], 2, "no root exists"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_file(
    run: Run, family: Tree, words: list[str], code: int, line: str
) -> None:
    done = run(*words)
    assert done.returncode == code
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not family.database.exists()


def test_ambiguous_and_unknown_references_list_what_there_is(run: Run, family: Tree) -> None:
    family.train("twin", f'output_dir = "{family.root}/elsewhere/math-rl"\n[data]\ntype = "sft"\nname = "d"\n')
    document(run("update", f"--repo_root={family.repo}", f"--output_roots={family.runs}"))
    done = run("lineage", "math-rl")
    assert done.returncode == 2
    assert "names 2 entities" in done.stderr
    done = run("show", str(family.runs / "math-rl/weights/step_99"))
    assert done.returncode == 2
    assert "model is not indexed" in done.stderr


def test_strict_and_damage_have_their_exit_codes(run: Run, family: Tree) -> None:
    family.train("bad", "[x")
    assert run("update", f"--repo_root={family.repo}", "--strict").returncode == 1
    family.database.write_bytes(b"x" * 5000)
    for suffix in ("-wal", "-shm"):
        family.database.with_name(family.database.name + suffix).unlink(missing_ok=True)
    done = run("status")
    assert done.returncode == 4
    assert json.loads(done.stdout)["rl_checkpoints"] is None
    assert "primebeaker watcher rebuild" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_serves_scans_and_ends(family: Tree, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "primebeaker.watcher", "serve", f"--database={family.database}", "--port=0"]
    words += ["--scan_interval=3600", f"--repo_root={family.repo}", f"--output_roots={family.runs}"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        found = re.fullmatch(r"Watcher: http://127\.0\.0\.1:(\d+)/\n", line)
        assert found, line
        events = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        events.request("GET", "/api/events")
        stream = events.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        while True:
            # The first scan makes the index and raises its generation.
            text = stream.readline().decode()
            if text.startswith("data: ") and re.fullmatch(r"data: [1-9]\d*", text.strip()):
                break
        asked = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        asked.request("GET", "/api/runs")
        assert json.loads(asked.getresponse().read())["total"] == 3
    finally:
        server.send_signal(number)
        assert server.wait(timeout=30) in (0, 130, -number, 128 + number)


def test_another_address_asks_for_a_token(family: Tree) -> None:
    family.update()
    words = [
        sys.executable,
        "-m",
        "primebeaker.watcher",
        "serve",
        f"--database={family.database}",
        "--port=0",
        "--auth=token",
    ]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        token = server.stderr.readline().split()[1]
        port = int(re.search(r":(\d+)/", server.stderr.readline())[1])
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/api/runs", headers=headers)
            assert connection.getresponse().status == status
    finally:
        server.terminate()
        server.wait(timeout=30)
