"""Rollouts of podman-terminal against LiteRegistry's own server, over real containers or over answers at once."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import verifiers as vf

from ...podman_service.answers import obedient
from ...podman_service.service import NO_FAULT, AnsweringBackend, PodmanService, ScriptBackend
from ..conftest import ScriptedClient

MODULE = "primebeaker.environments.podman_terminal_env"
COLUMNS = (
    "podman_failure",
    "podman_failure_phase",
    "podman_failure_type",
    "podman_failure_message",
    "podman_failure_oom",
    "podman_container_id",
    "podman_original_image",
    "podman_terminal_complete",
    "podman_tests_ran",
    "podman_test_output",
    "podman_test_install_output",
    "podman_reward_file_clear_output",
    "podman_reward_file_present",
    "podman_reward_file_error",
    "podman_reward_file_score",
    "podman_cleanup",
    "podman_cleanup_error",
    "podman_process_sweep",
    "podman_processes_killed",
    "jtc_infrastructure_failure",
    "jtc_tool_history",
    "jtc_tool_call_count",
    "jtc_unknown_tool_call_count",
    "jtc_submit_submissions",
)
DONE = "echo TERMINAL_COMPLETE"


def calls(*pairs: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A message of the model with calls."""
    return {
        "content": "",
        "tool_calls": [
            {"id": f"c{number}", "name": name, "arguments": json.dumps(arguments)}
            for number, (name, arguments) in enumerate(pairs, start=1)
        ],
    }


def bash(*commands: str) -> dict[str, Any]:
    """A message of the model that runs commands."""
    return calls(*(("bash", {"command": command}) for command in commands))


class Rollout(NamedTuple):
    """A finished rollout: its output, and the prompts the model was sent."""

    output: dict[str, Any]
    prompts: list[list[dict[str, Any]]]

    def __getitem__(self, key: Any) -> Any:
        return self.output[key]

    @property
    def answers(self) -> list[str]:
        """The contents of the tool messages."""
        return [message["content"] for message in self.output["completion"] if message["role"] == "tool"]


@pytest.fixture
def load(rows_file):
    """Load the environment on rows (by default one without hidden tests) against a service."""

    def make(service: Any, *rows: dict[str, Any], **arguments: Any) -> Any:
        path = rows_file(*(rows or [{"prompt": "p", "image": "ubuntu:24.04"}]))
        url = service if isinstance(service, str) else service.url
        return vf.load_environment(MODULE, dataset=path, podman_gateway_url=url, **arguments)

    return make


@pytest.fixture
def solve():
    """Run one rollout with scripted replies (text, or messages) and tear the environment down."""

    def run(env: Any, *replies: Any, row: dict[str, Any] | None = None) -> Rollout:
        return asyncio.run(solve_async(env, *replies, row=row))

    return run


async def solve_async(env: Any, *replies: Any, row: dict[str, Any] | None = None) -> Rollout:
    """The same inside a running loop; the teardown deletes the containers of all rollouts, so one at a time."""
    client = ScriptedClient(list(replies))
    given = dict(env.get_dataset()[0]) if row is None else row
    output = await env.run_rollout(given, client, "scripted", {}, state_columns=list(COLUMNS))
    await env._teardown()
    json.dumps({key: output[key] for key in COLUMNS})
    return Rollout(output, client.prompts)


def can_isolate() -> bool:
    """Whether this machine lets us make namespaces."""
    words = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def containers(tmp_path_factory) -> Iterator[PodmanService]:
    """The service with real containers."""
    if not can_isolate():
        pytest.skip("this machine does not let us make process, mount and user namespaces")
    with PodmanService(ScriptBackend(tmp_path_factory.mktemp("podman"))) as service:
        yield service
        assert service.containers == []


@pytest.fixture
def service() -> Iterator[Callable[..., PodmanService]]:
    """Start the service over answers at once: ``service(answer=…, faults=…, **config)``."""
    started: list[PodmanService] = []

    def start(answer: Any = None, faults: Any = lambda route, body: NO_FAULT, **config: Any) -> PodmanService:
        made = PodmanService(AnsweringBackend(answer or obedient(), **config), faults)
        started.append(made)
        return made.__enter__()

    yield start
    for made in started:
        made.__exit__()


@pytest.fixture
def no_pauses(monkeypatch):
    """Retries without their waits; gives the list of waits."""
    from primebeaker.environments._shared.podman import book, session

    waited: list[float] = []

    async def at_once(seconds: float = 0.0) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(session, "backoff_sleep", at_once)
    monkeypatch.setattr(book, "close_pause", at_once)
    return waited


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for a condition."""
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
