"""The keeper runs the whole single-node task without the token, then stops the services once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ..waiting import until

ID, TOKEN = "01SERVICE", "token-that-must-not-leak"


@pytest.fixture
def beaker(tmp_path: Path) -> Path:
    """A ``beaker`` that notes its calls and whether it had the token."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "beaker"
    program.write_text(f'#!/bin/sh\necho "$* ${{BEAKER_TOKEN}}" >>{tmp_path}/calls\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def keeper(tmp_path: Path, beaker: Path):
    """Start a keeper of a bash text."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, **variables: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PATH": f"{beaker}{os.pathsep}{os.environ['PATH']}",
            "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": ID,
            "BEAKER_TOKEN": TOKEN,
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "primebeaker.roles.keeper", "bash", "-c", text],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_task_s_code_is_kept_and_the_services_stop_once(text: str, code: int, keeper, tmp_path: Path) -> None:
    process = keeper(text)
    assert process.wait(60) == code
    assert _calls(tmp_path) == [f"experiment stop {ID} {TOKEN}"]


def test_no_process_of_the_task_ever_has_the_token(keeper, tmp_path: Path) -> None:
    process = keeper("env; cat /proc/$$/environ /proc/$PPID/cmdline; bash -c env")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert TOKEN not in out + err
    assert ID not in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_task_before_the_services_stop(number: int, keeper, tmp_path: Path) -> None:
    process = keeper(
        f"trap 'test -e {tmp_path}/calls || echo first >{tmp_path}/seen; exit 9' TERM INT; "
        f"touch {tmp_path}/ready; while :; do sleep 0.1; done"
    )
    until(lambda: (tmp_path / "ready").exists())
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert (tmp_path / "seen").read_text() == "first\n"
    assert len(_calls(tmp_path)) == 1


def test_a_missing_token_is_told_before_anything_starts(keeper, tmp_path: Path) -> None:
    process = keeper(f"touch {tmp_path}/started", BEAKER_TOKEN="")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "BEAKER_TOKEN is empty" in err
    assert not (tmp_path / "started").exists()


def test_the_placeholder_of_a_preview_stops_nothing(keeper, tmp_path: Path) -> None:
    process = keeper("exit 0", PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID="<created-at-launch>")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "nothing is stopped" in err
    assert _calls(tmp_path) == []


@dataclass
class Stub:
    """A local stand-in for Beaker's HTTP interface."""

    address: str
    answers: list[int]
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)


@pytest.fixture
def http_stub() -> Iterator[Stub]:
    stub = Stub("", [])

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            stub.seen.append(("PUT", self.path, self.headers.get("Authorization")))
            self.send_response(stub.answers.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Keep the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield stub
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("answers", [[200], [409], [404], [500, 500, 200]], ids=json.dumps)
def test_without_a_beaker_program_it_asks_over_http(
    answers: list[int], keeper, http_stub: Stub, beaker: Path, tmp_path: Path
) -> None:
    (beaker / "beaker").unlink()
    path = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "beaker").exists()
    )
    http_stub.answers = list(answers)
    process = keeper("exit 3", BEAKER_ADDR=http_stub.address, PATH=path)
    assert process.wait(60) == 3
    assert http_stub.answers == []
    assert set(http_stub.seen) == {("PUT", f"/api/v3/experiments/{ID}/stop", f"Bearer {TOKEN}")}
