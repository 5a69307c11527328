"""Environments against LiteRegistry's own gateway, Python server and terminal server, as processes on loopback."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import verifiers as vf
from tests.ports import free_block

STRICT = '{"feedback":"f","label":"pass"}'
RIGHT = "<feedback>f</feedback><label>pass</label>"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return None, None


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the services did not come up in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """Start a gateway, a Python server and a terminal server on one SQLite registry; gives the gateway's URL."""
    home = tmp_path_factory.mktemp("services")
    registry = f"sqlite://{home}/registry.db"
    ports = {name: free_block(1) for name in ("gateway", "code_server", "terminal_server")}
    common = {"host": "127.0.0.1", "registry": registry, "heartbeat_interval": 1}
    programs = home / "bin"
    programs.mkdir()
    for program in ("grep", "sort", "head", "wc", "cat"):
        (programs / program).symlink_to(shutil.which(program) or program)
    commands = {
        "gateway": ["literegistry.gateway", {**common, "advertise_host": "127.0.0.1"}],
        "code_server": [
            "literegistry.services.code_server",
            {**common, "pool_size": 2, "preimport_tools": "json", "default_tools": "json"},
        ],
        "terminal_server": [
            "literegistry.services.terminal_server",
            {**common, "command_path": str(programs), "max_response_chars": 4000},
        ],
    }
    processes = []
    for name, (module, options) in commands.items():
        words = [f"--{key}={value}" for key, value in {**options, "port": ports[name]}.items()]
        log = (home / f"{name}.log").open("w")
        environment = {**os.environ, "LITEREGISTRY_ADVERTISE_HOST": "127.0.0.1", "HOSTNAME": "127.0.0.1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=home,
                start_new_session=True,
            )
        )
    url = f"http://127.0.0.1:{ports['gateway']}"
    try:
        wait_for(lambda: post(f"{url}/python", {"code": "print(1)", "model": "python"})[0] == 200)
        wait_for(lambda: post(f"{url}/terminal", {"contents": "a", "command": "cat"})[0] == 200)
        yield url
    except AssertionError:
        for name in commands:
            sys.stderr.write(f"--- {name}\n{(home / f'{name}.log').read_text()[-3000:]}\n")
        raise
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


@pytest.fixture
def row(rows_file):
    return rows_file({"prompt": "Judge.", "output": "alpha\nbeta\ngamma\n", "answer": "pass"})


def code(source):
    return f"<code>```python\n{source}\n```</code>"


def call(command):
    return {
        "content": "",
        "tool_calls": [{"id": "c1", "name": "terminal", "arguments": json.dumps({"command": command})}],
    }


def test_code_runs_in_the_python_server(services, row, play):
    module = "primebeaker.environments.jtc_code_tool_label_env"
    env = vf.load_environment(
        module, dataset=row, code_server_url=f"{services}/python", max_runtime=30, timeout=100, max_retries=6
    )
    wait_for(lambda: post(f"{services}/python", {"code": "print(1)", "model": "python"})[0] == 200)
    played = play(env, [code("print(len(context.split()))"), RIGHT])
    assert played.output["error"] is None
    assert played.prompts[1][-1]["content"].startswith("```stdout\n3\n"), played.prompts[1][-1]["content"]
    assert played.reward == 3.0
    failed = play(env, [code("1/0"), RIGHT])
    assert "ZeroDivisionError" in failed.prompts[1][-1]["content"]
    assert failed.reward == 3.0


def test_commands_run_in_the_terminal_server(services, row, play):
    module = "primebeaker.environments.jtc_tool_label_env"
    env = vf.load_environment(module, dataset=row, terminal_server_url=f"{services}/terminal")
    played = play(env, [call("grep a | wc -l"), call("sort | head -n 1"), STRICT])
    assert json.loads(played.prompts[1][-1]["content"])["stdout"].strip() == "3"
    assert json.loads(played.prompts[2][-1]["content"])["stdout"].strip() == "alpha"
    assert played.reward == 4.0


def test_a_command_the_server_refuses_is_the_models_fault_with_its_reason(services, row, play):
    module = "primebeaker.environments.jtc_tool_label_env"
    env = vf.load_environment(module, dataset=row, terminal_server_url=f"{services}/terminal")
    played = play(env, [call("python -c 1"), STRICT])
    shown = json.loads(played.prompts[1][-1]["content"])
    assert shown["exit_code"] == 1 and shown["stderr"], shown
    assert services not in shown["stderr"] and "127.0.0.1" not in shown["stderr"]
    assert played.reward == pytest.approx(3.9)


def test_a_program_that_is_not_installed_is_an_outage(services, row, play):
    module = "primebeaker.environments.jtc_tool_label_env"
    env = vf.load_environment(module, dataset=row, terminal_server_url=f"{services}/terminal")
    played = play(env, [call("xsv count"), STRICT])
    assert played.state["jtc_tool_infrastructure_stderr_count"] == 1
    assert played.state["jtc_tool_command_error_count"] == 0
    assert played.reward == 4.0


def test_a_truncation_above_the_servers_own_is_a_configuration_error(services, row, play):
    module = "primebeaker.environments.jtc_terminal_tool_label_env"
    env = vf.load_environment(
        module, dataset=row, terminal_server_url=f"{services}/terminal", terminal_truncation=10**9
    )
    played = play(env, [call("cat"), STRICT])
    assert "terminal_truncation: truncation cannot exceed the server maximum of 4000" in str(played.output["error"])
    assert played.output["error"]["error"] != "InfraError"


def test_many_rollouts_share_the_services(services, row, scripted_client):
    module = "primebeaker.environments.jtc_tool_label_env"
    env = vf.load_environment(module, dataset=row, terminal_server_url=f"{services}/terminal")

    async def run():
        start = dict(env.get_dataset()[0])
        client = scripted_client([call("grep beta"), STRICT])
        return await asyncio.gather(*(env.run_rollout(start, client, "m", {}) for _ in range(24)))

    assert {output["reward"] for output in asyncio.run(run())} == {4.0}
