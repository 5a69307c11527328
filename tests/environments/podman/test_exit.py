"""The end of a process deletes its containers, with a running event loop, a blocked one, or none."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from ...podman_service.service import HANGING, NO_FAULT, Fault
from ..conftest import ScriptedClient
from .conftest import bash

PROGRAM = """
import asyncio, json, sys, time
import verifiers as vf
from tests.environments.conftest import ScriptedClient

dataset, url, mode = sys.argv[1:]
env = vf.load_environment("primebeaker.environments.podman_terminal_env", dataset=dataset, podman_gateway_url=url)
client = ScriptedClient([{message}])

async def run():
    row = dict(env.get_dataset()[0])
    rollouts = [asyncio.create_task(env.run_rollout(row, client, "m", {{}})) for _ in range(8)]
    while len(env.containers.live) < 8:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    if mode == "blocked":
        time.sleep(600)
    if mode == "exit":
        asyncio.get_running_loop().stop()
    await asyncio.gather(*rollouts)

if mode == "exit":
    loop = asyncio.new_event_loop()
    loop.create_task(run())
    loop.run_forever()
    sys.exit(0)
asyncio.run(run())
"""


@pytest.fixture
def process(rows_file, tmp_path):
    """Start a process with eight rollouts whose command hangs; it has its containers when this returns."""
    running = []

    def start(service, mode):
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(PROGRAM.format(message=json.dumps(bash("hang")))))
        path = rows_file({"prompt": "p", "image": "u"})
        words = [sys.executable, str(program), path, service.url.replace("127.0.0.1", "localhost"), mode]
        env = {**os.environ, "PYTHONPATH": os.getcwd()}
        started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        running.append(started)
        assert started.stdout.readline() == "ready\n", started.communicate()[1]
        return started

    yield start
    for started in running:
        started.kill()
        started.communicate()


def hanging(route, body):
    return HANGING if route == "podman" else NO_FAULT


@pytest.mark.parametrize(
    ("number", "mode", "code"),
    [
        (signal.SIGTERM, "blocked", 143),
        pytest.param(signal.SIGINT, "blocked", -signal.SIGINT, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, "running", 143, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, "running", -signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_a_signal_deletes_all_containers_before_the_process_ends(service, process, number, mode, code):
    made = service(faults=hanging)
    started = process(made, mode)
    assert len(made.containers) == 8
    started.send_signal(number)
    _, said = started.communicate(timeout=120)
    assert made.containers == [], "gone when the process is gone"
    assert started.returncode == code, said
    assert "could not be deleted" not in said


def test_a_process_that_ends_by_itself_deletes_its_containers(service, process):
    made = service(faults=hanging)
    started = process(made, "exit")
    _, said = started.communicate(timeout=120)
    assert started.returncode == 0, said
    assert made.containers == []


@pytest.fixture
def holding(service, load):
    """Run a function of this process while rollouts hold eight containers; in the running loop, or after it."""

    def run(faults, work, *, inside):
        made = service(faults=faults)
        env = load(made)

        async def rollouts():
            row = dict(env.get_dataset()[0])
            client = ScriptedClient([bash("hang")])
            tasks = [asyncio.create_task(env.run_rollout(row, client, "m", {})) for _ in range(8)]
            while len(env.containers.live) < 8 or len(made.bodies("podman")) < 8:
                await asyncio.sleep(0.01)
            work(made, env) if inside else asyncio.get_running_loop().stop()
            made.faults = lambda route, body: NO_FAULT
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if inside:
            asyncio.run(rollouts())
            return made, env
        loop = asyncio.new_event_loop()
        task = loop.create_task(rollouts())
        loop.run_forever()
        work(made, env)
        loop.run_until_complete(task)
        loop.close()
        return made, env

    return run


@pytest.mark.parametrize("inside", [True, False], ids=["in a running loop", "without one"])
def test_closes_go_in_parallel_and_once(holding, inside):
    from primebeaker.environments._shared.podman.exits import close_before_exit

    def faults(route, body):
        # One after the other they would take 16 seconds, more than there are.
        return Fault(seconds=2.0) if route == "close" else hanging(route, body)

    def work(made, env):
        close_before_exit()
        assert made.containers == []

    made, env = holding(faults, work, inside=inside)
    assert len(made.bodies("close")) == 8
    assert (env.containers.live, env.containers.undeleted) == ({}, {})


def test_a_service_that_does_not_answer_holds_the_end_up_for_a_while_only(holding, monkeypatch, caplog):
    from primebeaker.environments._shared.podman import exits

    monkeypatch.setattr(exits, "EXIT_SECONDS", 0.5)
    monkeypatch.setattr(exits, "_HURRY_SECONDS", 0.1)

    def work(made, env):
        exits.close_before_exit()
        assert "8 containers could not be deleted at exit" in caplog.text
        assert len(made.containers) == 8

    _, env = holding(lambda route, body: NO_FAULT if route == "handshake" else HANGING, work, inside=True)
    asyncio.run(env._teardown())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_deletes_nothing_of_its_parent(holding):
    from primebeaker.environments._shared.podman.exits import close_before_exit

    def work(made, env):
        child = os.fork()
        if child == 0:
            close_before_exit()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(made.containers) == 8

    made, _ = holding(hanging, work, inside=False)
    assert made.containers == []
