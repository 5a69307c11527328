"""The stand-in keeps to LiteRegistry's contract: routes, limits, codes, capacity, reaper, isolation."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request

import pytest

from ..environments.podman.conftest import can_isolate
from .answers import obedient
from .service import AnsweringBackend, PodmanService, ScriptBackend


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    if not can_isolate():
        pytest.skip("this machine does not let us make process, mount and user namespaces")
    with PodmanService(ScriptBackend(tmp_path_factory.mktemp("podman"))) as made:
        yield made


@pytest.fixture
def session(service):
    _, started = post(f"{service.url}/affinity/handshake", {"image": "ubuntu", "client_id": "c", "service": "podman"})
    yield started
    post(f"{service.url}/affinity/close", {"affinity_id": started["affinity_id"], "service": "podman"})


@pytest.fixture
def run(service, session):
    def execute(command, **fields):
        body = {"affinity_id": session["affinity_id"], "command": command, "stdin": "", "timeout": 10, "workdir": "/"}
        return post(f"{service.url}/affinity/podman", {**body, "service": "podman", **fields})

    return execute


def test_a_handshake_gives_two_equal_ids(session):
    assert session["container_id"] == session["affinity_id"]
    assert re.fullmatch(r"[0-9a-f]{64}", session["container_id"])
    assert (session["client_id"], session["image"]) == ("c", "ubuntu")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"command": "x" * 16_385}, 422),
        ({"command": ""}, 422),
        ({"command": ": " + "x" * 16_382}, 200),
        ({"command": "true", "stdin": "x" * 1_048_577}, 422),
        ({"command": "true", "stdin": "x" * 1_048_576}, 200),
        ({"command": "true", "timeout": 0.05}, 422),
        ({"command": "true", "timeout": 60.5}, 422),
        ({"command": "true", "timeout": 60}, 200),
        ({"command": "true", "workdir": "/" + "x" * 4096}, 422),
        ({"command": "a\0b"}, 400),
        ({"command": "true", "affinity_id": "f" * 64}, 404),
        ({"command": "true", "service": "other"}, 404),
    ],
)
def test_limits(run, fields, status):
    command = fields.pop("command")
    assert run(command, **fields)[0] == status


def test_streams_codes_and_deadlines(run):
    _, done = run("cat; echo err >&2; exit 3", stdin="in\xff")
    assert (done["stdout"], done["stderr"], done["exit_code"], done["success"]) == ("in\xff", "err\n", 3, False)
    _, late = run("echo a; sleep 30 & wait", timeout=3)
    assert (late["stdout"], late["exit_code"], late["timed_out"]) == ("a\n", 137, True)
    _, long = run("head -c 2000000 /dev/zero; head -c 300000 /dev/zero >&2")
    assert (len(long["stdout"]), len(long["stderr"])) == (2**20, 2**18)
    assert (long["stdout_truncated"], long["stderr_truncated"]) == (True, True)
    assert run("printf '\\xff'")[1]["stdout"] == "\ufffd"
    assert (
        run("shopt -q login_shell && echo login; tr '\\0' ' ' </proc/1/cmdline")[1]["stdout"]
        == "login\nsleep infinity "
    )


def test_files_and_processes_stay_and_are_nobody_elses(service, run, session):
    run("sleep 300 >/dev/null 2>&1 & echo mine > /root/x; (setsid sleep 301 >/dev/null 2>&1 &)")
    assert run("cat /root/x; pgrep -c sleep")[1]["stdout"] == "mine\n3\n"
    _, other = post(f"{service.url}/affinity/handshake", {"image": "ubuntu", "service": "podman"})
    body = {"affinity_id": other["affinity_id"], "timeout": 10, "workdir": "/", "service": "podman"}
    _, seen = post(f"{service.url}/affinity/podman", {**body, "command": "ls /root; pgrep -c sleep; touch /usr/x"})
    assert seen["stdout"] == "1\n" and "Read-only" in seen["stderr"]
    assert post(f"{service.url}/affinity/close", body)[1]["removed"] is True
    assert post(f"{service.url}/affinity/podman", {**body, "command": "true"})[0] == 404
    assert service.containers == [session["container_id"]]


def test_an_image_that_cannot_be_pulled_is_unavailable(service):
    status, _ = post(f"{service.url}/affinity/handshake", {"image": "no-such-image", "service": "podman"})
    assert status == 503
    assert post(f"{service.url}/affinity/handshake", {"image": "a b", "service": "podman"})[0] == 422


def test_capacity_and_idle_reaper():
    backend = AnsweringBackend(obedient(), max_sessions=1, session_idle_timeout=0.3, janitor_interval=0.1)
    with PodmanService(backend) as made:
        assert post(f"{made.url}/affinity/handshake", {"image": "u", "service": "podman"})[0] == 200
        assert post(f"{made.url}/affinity/handshake", {"image": "u", "service": "podman"})[0] == 503
        end = time.monotonic() + 60
        while made.containers:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert asyncio.iscoroutinefunction(backend.reap_idle_sessions)
