"""The waits and the gateway with real stores, servers and processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from role_harness import wait_until
from tests.ports import free_block

SOURCE = Path(__file__).parents[2] / "src"


def coordination(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "primebeaker.coordination", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A Redis that asks for a password."""
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is needed: apt-get install redis-server"
    port = free_block(1)
    words = [program, "--port", str(port), "--requirepass", "s3cretpass", "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "redis listens")
        yield f"redis://:s3cretpass@127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def register(path: Path, name: str, *, port: int = 1, age: float = 0.0) -> None:
    """One service entry in a file registry, as LiteRegistry writes it."""
    import asyncio

    from literegistry import FileSystemKVStore, ServerRegistry

    async def write() -> None:
        registry = ServerRegistry(FileSystemKVStore(path))
        await registry.register_server("http://127.0.0.1", port, {"model_path": name})
        if age:
            key = f"server_{registry.server_id}"
            info = json.loads(await registry.store.get(key))
            await registry.store.set(key, json.dumps(info | {"last_heartbeat": time.time() - age}))

    asyncio.run(write())


def test_a_registry_that_answers_is_printed_without_its_password(redis: str) -> None:
    done = coordination("wait-redis", "--timeout=10", REGISTRY=redis)
    assert (done.returncode, done.stdout.strip()) == (0, redis.replace("s3cretpass", "***"))


def test_a_refused_password_ends_the_wait_at_once(redis: str) -> None:
    done = coordination("wait-redis", f"--registry={redis.replace('s3cretpass', 'wr0ngpassword')}", "--timeout=50")
    assert done.returncode == 2
    assert "authentication refused" in done.stderr
    assert "wr0ngpassword" not in done.stderr + done.stdout


def test_an_unreachable_registry_is_not_ready_in_time() -> None:
    done = coordination("wait-redis", "--registry=redis://:pw1234567@127.0.0.1:1", "--timeout=2")
    assert done.returncode == 3
    assert "redis://:***@127.0.0.1:1 not reachable" in done.stderr


@pytest.mark.parametrize("uri", ["mongodb://x", "redis://", "nonsense"])
def test_a_malformed_registry_is_a_mistake(uri: str) -> None:
    done = coordination("wait-redis", f"--registry={uri}")
    assert done.returncode == 2
    assert "expected a LiteRegistry URI" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_a_registry_on_disk_is_created(tmp_path: Path, scheme: str) -> None:
    done = coordination("wait-redis", f"--registry={scheme}://{tmp_path}/new/registry", "--timeout=20")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new").is_dir()


def test_a_stop_file_ends_a_wait(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    done = coordination("wait-redis", "--registry=redis://127.0.0.1:1", f"--stop-file={tmp_path}/stop")
    assert done.returncode == 143


def test_a_signal_ends_a_wait() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "primebeaker.coordination", "wait-redis", "--registry=redis://127.0.0.1:1"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.DEVNULL,
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143


def test_services_are_counted_when_enough_are_alive(tmp_path: Path) -> None:
    for port in (1, 2, 3):
        register(tmp_path, "terminal", port=port)
    register(tmp_path, "localsearch:corpus", port=4)
    needed = json.dumps({"terminal": 2, "localsearch:corpus": 1})
    done = coordination("wait-services", f"--registry=file://{tmp_path}", f"--requirements-json={needed}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"terminal": 3, "localsearch:corpus": 1}


def test_missing_services_are_listed_with_stale_entries_and_similar_names(tmp_path: Path) -> None:
    register(tmp_path, "terminal", port=1)
    register(tmp_path, "terminal", port=7777, age=900)
    register(tmp_path, "localsearch:corpus", port=2)
    needed = json.dumps({"terminal": 2, "local-search:corpus": 1})
    done = coordination(
        "wait-services", f"--registry=file://{tmp_path}", f"--requirements-json={needed}", "--timeout=1"
    )
    assert done.returncode == 3
    assert "terminal: 1 of 2 healthy (1 stale: 127.0.0.1:7777)" in done.stderr
    assert "local-search:corpus: 0 of 1 healthy (the registry has localsearch:corpus)" in done.stderr


def test_no_requirement_contacts_nothing() -> None:
    done = coordination("wait-services", "--requirements-json={}")
    assert (done.returncode, done.stdout.strip()) == (0, "{}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["wait-rediss"], "unknown command 'wait-rediss'; did you mean 'wait-redis'?"),
        (["wait-services", "--requirements-json=[]"], "--requirements-json = '[]': expected a JSON object"),
        (["wait-services"], "--requirements-json is required"),
        (["wait-redis"], "no registry: give --registry, or set REGISTRY"),
        (["probe-gateway", "--url=http://x", "--timeout=0"], "--timeout = '0': expected a number above 0"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str) -> None:
    done = coordination(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"primebeaker: error: {line}")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The real gateway on a file registry."""
    port = free_block(1)
    registry = tmp_path / "registry"
    registry.mkdir()
    words = [sys.executable, "-m", "primebeaker.gateway", f"--port={port}", "--advertise-host=h.example"]
    with open(tmp_path / "gateway.log", "wb") as log:
        process = subprocess.Popen(
            words,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(SOURCE),
                "REGISTRY_PATH": f"file://{registry}",
                "GATEWAY_REGISTRATION_ENABLED": "false",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        done = coordination(
            "probe-gateway", f"--url=http://127.0.0.1:{port}", "--wait-health=1", "--required-path=/judge"
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "gateway.log").read_text()
        assert (tmp_path / "gateway.log").read_text().splitlines()[0] == f"GATEWAY_URL=http://h.example:{port}"
        yield f"http://127.0.0.1:{port}", registry
    finally:
        process.terminate()
        process.wait()


def post(url: str, body: object) -> tuple[int, dict]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except OSError as error:
        return error.code, json.loads(error.read())  # type: ignore[attr-defined]


@pytest.fixture
def service() -> Iterator[tuple[int, list[tuple[str, dict]]]]:
    """A service that remembers what reaches it."""
    seen: list[tuple[str, dict]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, body))
            answer = json.dumps({"ok": True}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], seen
    server.shutdown()


def test_the_gateway_forwards_searches_and_judgements(gateway, service) -> None:
    url, registry = gateway
    port, seen = service
    for name in ("search", "localsearch:a", "judge", "judge-b"):
        register(registry, name, port=port)
    # The gateway may have read the registry right before they were there.
    wait_until(lambda: post(f"{url}/search", {"mode": "query", "query": "q"})[0] == 200, "services are seen")
    assert post(f"{url}/search", {"mode": "query", "query": "q", "model_path": "localsearch:a"})[0] == 200
    assert post(f"{url}/judge", {"prompt": "p"})[0] == 200
    assert post(f"{url}/judge", {"prompt": "p", "model_path": "judge-b"})[0] == 200
    assert [path for path, _ in seen] == ["/search", "/search", "/judge", "/judge"]
    assert "model_path" not in seen[1][1]


def test_the_gateway_refuses_what_it_cannot_forward(gateway) -> None:
    url, _ = gateway
    for path, body in (
        ("search", {"mode": "other"}),
        ("search", {"mode": "query", "query": ""}),
        ("judge", {"model_path": ""}),
        ("judge", {"model_path": 3}),
    ):
        status, answer = post(f"{url}/{path}", body)
        assert (status, answer["status"]) == (400, "failed")


def test_a_probe_names_every_missing_route_and_service(gateway, service) -> None:
    url, registry = gateway
    port, _ = service
    register(registry, "localsearch:a", port=port)
    there = coordination("probe-gateway", f"--url={url}", '--model-paths-json=["localsearch:a"]', "--retry=15")
    assert there.returncode == 0, there.stderr
    done = coordination(
        "probe-gateway",
        f"--url={url}",
        '--model-paths-json=["localsearch:zz"]',
        "--required-path=/nope",
        "--timeout=10",
    )
    assert done.returncode == 3
    assert "route /nope is missing (HTTP 404)" in done.stderr
    assert "local search 'localsearch:zz': " in done.stderr


def test_a_gateway_without_a_registry_is_a_mistake() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker.gateway", "--port=0"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--port = '0': expected a whole number from 1 to 65535" in done.stderr
