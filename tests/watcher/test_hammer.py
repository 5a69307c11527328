"""One index under processes that scan it, read it, serve it and swap it: no error, and never half of two states."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Tree
from .test_family import rows

WORKER = Path(__file__).with_name("hammer_worker.py")
ROLES = ("scan", "rebuild", "read", "read")
PAGES = ("/api/runs", "/api/evaluations", "/", "/api/overview")


def rescore(tree: Tree, number: int) -> None:
    for name in ("one", "two"):
        tree.averages(name, a=number % 100 / 200 + 0.1, b=0.5)


def ask(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, (path, answer.status, body[:300])
    return body


def hammer(family: Tree, seconds: float) -> dict[str, int]:
    for name in ("one", "two"):
        family.evaluation(name, str(family.runs / "math-rl/weights/step_5"))
    rescore(family, 0)
    family.update()
    words = [sys.executable, "-m", "primebeaker.watcher", "serve", f"--database={family.database}", "--port=0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    workers: list[subprocess.Popen[str]] = []
    asked = 0
    try:
        assert server.stderr is not None
        port = int(re.search(r":(\d+)/", server.stderr.readline())[1])
        for number, role in enumerate(ROLES):
            command = [sys.executable, str(WORKER), role, str(family.root), str(number)]
            workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        began = time.monotonic()

        def is_enough() -> bool:
            # On a busy machine it takes a while until everybody is at it.
            warm = len(list(family.root.glob("warm-*"))) == len(ROLES)
            return time.monotonic() - began > (seconds if warm else seconds + 120)

        while not is_enough() and all(worker.poll() is None for worker in workers):
            rescore(family, asked)
            for path in PAGES:
                body = ask(port, path)
                assert path != "/api/runs" or json.loads(body)["total"] == 3
                asked += 1
        (family.root / "stop").touch()
        said = [worker.communicate(timeout=120)[0].strip() for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * len(ROLES), said
    finally:
        server.terminate()
        server.wait(timeout=30)
        for worker in workers:
            worker.kill()
            worker.wait(timeout=30)
    assert rows(family, "PRAGMA integrity_check") == [("ok",)]
    assert {row[0] for row in rows(family, "SELECT status FROM scans")} == {"done"}
    return {
        "answers": asked,
        **{f"{role} {index}": int(text) for index, (role, text) in enumerate(zip(ROLES, said, strict=True))},
    }


def test_scans_swaps_readers_and_a_server_share_one_index(family: Tree) -> None:
    assert all(hammer(family, 5).values())


@pytest.mark.soak
def test_the_same_for_a_minute(family: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    done = hammer(family, 60)
    with capsys.disabled():
        print(json.dumps({"name": "watcher_hammer", "seconds": 60, **done}))
