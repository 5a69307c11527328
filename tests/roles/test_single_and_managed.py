"""A single-node task beside its gateway, and the services that are stopped when a run ends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from role_harness import Topology, wait_until

from primebeaker.errors import UserError
from primebeaker.roles.managed import ManagedServices, take_managed_services

Launch = Callable[..., Topology]
TOKEN = "tok3n-0123456789"


def beaker(topology: Topology, code: int = 0, text: str = "") -> Path:
    """A recorder in place of the ``beaker`` executable."""
    calls = topology.root / "beaker-calls"
    program = topology.bin / "beaker"
    program.write_text(f'#!/bin/bash\necho "$* token=$BEAKER_TOKEN" >> {calls}\necho "{text}" >&2\nexit {code}\n')
    program.chmod(0o755)
    return calls


def managed(topology: Topology) -> None:
    topology.env |= {"PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "01SERVICES", "BEAKER_TOKEN": TOKEN}


def test_rank_0_stops_the_services_once_and_no_child_sees_the_token(launch: Launch) -> None:
    topology = launch()
    calls = beaker(topology)
    managed(topology)
    topology.start()
    topology.up()
    for rank, process in topology.processes:
        env = topology.record(rank, process)["env"]
        assert "BEAKER_TOKEN" not in env
        assert "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID" not in env
    topology.order(0, "trainer", "exit 7")
    assert topology.codes() == {0: 7, 1: 90}
    assert calls.read_text() == f"experiment stop 01SERVICES token={TOKEN}\n"
    assert TOKEN not in topology.output()


@pytest.mark.parametrize("how", ["term", "setup", "input"])
def test_services_are_stopped_on_every_way_out(launch: Launch, how: str) -> None:
    topology = launch(
        env={"setup": {"PRIMEBEAKER_SETUP_COMMAND": "exit 5"}, "input": {"GATEWAY_PORT": "x"}}.get(how, {})
    )
    calls = beaker(topology)
    managed(topology)
    (leader,) = topology.start(0)
    if how == "term":
        wait_until(lambda: "assemble: started" in leader.text, "the role waits")
        leader.process.terminate()
    assert topology.code(leader) == {"term": 143, "setup": 5, "input": 2}[how], topology.output()
    assert calls.read_text().count("experiment stop") == 1


def test_a_missing_token_is_a_mistake_before_anything_starts(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "01SERVICES", "BEAKER_TOKEN": " "})
    calls = beaker(topology)
    (leader,) = topology.start(0)
    assert topology.code(leader) == 2
    assert "BEAKER_TOKEN is empty" in leader.text
    assert not calls.exists()
    assert not topology.rendezvous.exists()


def stop(services: ManagedServices) -> list[str]:
    said: list[str] = []
    asyncio.run(services.stop(said.append))
    asyncio.run(services.stop(said.append))
    return said


def test_the_placeholder_of_a_preview_is_only_warned_about() -> None:
    said = stop(ManagedServices("<created-at-launch>", TOKEN))
    assert len(said) == 1
    assert "nothing is stopped" in said[0]


@pytest.mark.parametrize("reason", ["no route to beaker", "lookup beaker.org: server 404x, host not found"])
def test_a_stop_that_fails_says_how_to_do_it_by_hand(
    reason: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("primebeaker.roles.managed._PAUSES", (0.0, 0.0, 0.0))
    topology = launch()
    calls = beaker(topology, 1, reason)
    said = stop(ManagedServices("01S", TOKEN, env={"PATH": f"{topology.bin}:{os.environ['PATH']}"}))
    assert calls.read_text().count("experiment stop") == 4
    assert said == [
        f"warning: the service experiment may still run ({reason}); stop it with: beaker experiment stop 01S"
    ]


@pytest.fixture
def beaker_api() -> Iterator[tuple[str, list[tuple[str, str]], list[int]]]:
    """Beaker's HTTP interface: remembers requests, answers with the codes it is given."""
    seen: list[tuple[str, str]] = []
    codes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(codes.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen, codes
    server.shutdown()


@pytest.mark.parametrize("answers", [[200], [404], [409], [503, 200]])
def test_without_the_executable_the_http_interface_is_used(
    beaker_api, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("primebeaker.roles.managed._PAUSES", (0.0, 0.0, 0.0))
    address, seen, codes = beaker_api
    codes += answers
    said = stop(ManagedServices("01S", TOKEN, address, {"PATH": "/nowhere"}))
    assert seen == [("/api/v3/experiments/01S/stop", f"Bearer {TOKEN}")] * len(answers)
    assert said == ["stopped the managed service experiment 01S"]


def test_other_ranks_drop_both_variables() -> None:
    env = {"PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "01S", "BEAKER_TOKEN": TOKEN, "A": "1"}
    assert take_managed_services(env, rank=1) is None
    assert env == {"A": "1"}
    with pytest.raises(UserError, match="BEAKER_TOKEN is empty"):
        take_managed_services({"PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "01S"}, rank=0)


def single(topology: Topology, gateway: bool = True, **env: str) -> subprocess.Popen[bytes]:
    rl = topology.bin / "rl"
    rl.write_text((topology.bin / "torchrun").read_text())
    rl.chmod(0o755)
    values = topology.environment(0) | env
    if not gateway:
        del values["GATEWAY_PORT"]
    output = topology.root / "single.txt"
    with open(output, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "primebeaker.multinode", "single-node-rl", "--config", str(topology.config)],
            env=values,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def test_rl_runs_beside_its_gateway_and_its_code_is_the_tasks(launch: Launch) -> None:
    topology = launch()
    process = single(topology)
    record = topology.record(0, "rl")
    assert record["argv"][1:] == ["@", str(topology.config)]
    assert topology.record(0, "gateway")["pid"] < record["pid"]
    topology.order(0, "rl", "exit 6")
    assert process.wait(20) == 6
    topology.nothing_left()


@pytest.mark.parametrize(("order", "code"), [("exit 0", 91), ("exit 4", 4)])
def test_a_gateway_that_dies_ends_rl(launch: Launch, order: str, code: int) -> None:
    topology = launch()
    process = single(topology)
    topology.record(0, "rl")
    topology.order(0, "gateway", order)
    assert process.wait(20) == code
    topology.nothing_left()


def test_a_single_node_run_that_ends_well_stops_its_services(launch: Launch) -> None:
    topology = launch()
    calls = beaker(topology)
    managed(topology)
    process = single(topology, gateway=False)
    topology.record(0, "rl")
    assert not (topology.root / "records" / "0.gateway").exists()
    topology.order(0, "rl", "exit 0")
    assert process.wait(20) == 0
    assert calls.read_text().count("experiment stop") == 1


def test_term_reaches_rl(launch: Launch) -> None:
    topology = launch()
    process = single(topology)
    topology.record(0, "rl")
    process.terminate()
    assert process.wait(20) == 143
    topology.nothing_left()


def test_a_stuck_single_node_run_is_ended_by_the_stall_watch(launch: Launch) -> None:
    topology = launch()
    spy = topology.bin / "py-spy"
    spy.write_text('#!/bin/sh\necho "stack of $*"\n')
    spy.chmod(0o755)
    process = single(topology, PRIMEBEAKER_STALL_SECONDS="1")
    pid = topology.record(0, "rl")["pid"]
    assert process.wait(30) == 97
    text = (topology.root / "single.txt").read_text()
    assert f"  rl: stack of dump --subprocesses --pid {pid}" in text
    assert "no log output and no new step for 1 s" in text.splitlines()[-1]
    topology.nothing_left()


def test_a_single_node_run_whose_trainer_logs_is_not_stuck(launch: Launch) -> None:
    topology = launch()
    process = single(topology, PRIMEBEAKER_STALL_SECONDS="2")
    topology.record(0, "rl")
    log = topology.output_dir / "logs" / "trainer.log"
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with log.open("a") as stream:
            stream.write("step\n")
        time.sleep(0.1)
    assert process.poll() is None, (topology.root / "single.txt").read_text()
    topology.order(0, "rl", "exit 0")
    assert process.wait(30) == 0


def test_all_faults_of_a_single_node_task_are_told_together(launch: Launch) -> None:
    topology = launch()
    process = single(topology, GATEWAY_WORKERS="0", OUTPUT_DIR="out", REGISTRY="")
    assert process.wait(20) == 2
    text = (topology.root / "single.txt").read_text()
    for line in ("OUTPUT_DIR = 'out'", "GATEWAY_WORKERS = '0'", "REGISTRY is not set"):
        assert f"primebeaker: error: {line}" in text


def test_status_shows_the_current_epoch(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    words = [sys.executable, "-m", "primebeaker.multinode", "status", "--rendezvous-dir", str(topology.rendezvous)]
    status = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert status["started"] is True
    assert status["complete"] is False
    assert {rank: member["phase"] for rank, member in status["members"].items()} == {"0": "run", "1": "run"}
    assert all(member["in_epoch"] and member["heartbeat_age"] < 30 for member in status["members"].values())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["role", "rll"], "role rll: expected rl or sft"),
        (["role"], "role: expected rl or sft"),
        (["prepare"], "unknown command 'prepare'; did you mean"),
        (["status"], "--rendezvous-dir is required"),
        (
            ["prepare-rl", "--config=/nope.toml", "--config-dir=/tmp/x", "--runtime-dir=/tmp/y"],
            "/nope.toml: cannot be read",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(words: list[str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker.multinode", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"primebeaker: error: {line}")
    assert "Traceback" not in done.stderr


def test_a_preparation_can_be_inspected_alone(launch: Launch, tmp_path: Path) -> None:
    topology = launch(gpus=8, cp=4)
    words = ["prepare-rl", "--config", str(topology.config), "--config-dir", str(tmp_path / "o" / "configs")]
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker.multinode", *words, "--runtime-dir", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runtime = json.loads((tmp_path / "r" / "runtime.json").read_text())
    assert (runtime["schema"], len(runtime["engines"])) == ("primebeaker.runtime/v1", 12)
    assert (tmp_path / "r" / "runtime.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (tmp_path / "o" / "configs").iterdir()) == [
        *("inference.toml", "orchestrator.toml", "trainer.toml")
    ]


@pytest.mark.parametrize(
    ("setup", "code"),
    [("exit 5", 5), ("true", 2), ("kill -TERM $PPID; sleep 60", 143)],
    ids=["setup", "program", "term"],
)
def test_a_single_node_task_that_ends_early_stops_its_services(launch: Launch, setup: str, code: int) -> None:
    from primebeaker.launch.script import single_node_command

    topology = launch()
    calls = beaker(topology)
    managed(topology)
    # An image without Prime-RL's program, and a Python that finds this package.
    (topology.bin / "python3").symlink_to(sys.executable)
    env = topology.environment(0) | {"PRIMEBEAKER_SETUP_COMMAND": f'echo "token=$BEAKER_TOKEN"; {setup}'}
    env["PATH"] = f"{topology.bin}:/usr/bin:/bin"
    done = subprocess.run(single_node_command("rl"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "token=\n" in done.stdout
    assert calls.read_text() == f"experiment stop 01SERVICES token={TOKEN}\n"
    topology.nothing_left()
