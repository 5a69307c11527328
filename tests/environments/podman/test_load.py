"""Many rollouts at once with one request in ten failing: no mix-up, no wrong reward, nothing left behind."""

import asyncio

import pytest

from primebeaker.environments._shared.podman import session

from ...podman_service.answers import obedient
from ...podman_service.stress import one_in_ten, stress
from .conftest import eventually


@pytest.mark.parametrize("rollouts", [64, pytest.param(512, marks=pytest.mark.soak)])
def test_faults_under_load(service, load, monkeypatch, rollouts):
    async def shorter(seconds):
        await asyncio.sleep(seconds / 10)

    monkeypatch.setattr(session, "backoff_sleep", shorter)
    faults, injected = one_in_ten(seed=7)
    answer = obedient("1", say=lambda container, command: f"{container} {command}\n")
    made = service(answer, faults=faults, session_idle_timeout=6.0, janitor_interval=0.5)
    env = load(made, podman_failure_policy="error", max_retries=6)
    result = stress(env, made, rollouts, request_timeout=4.0 if rollouts < 100 else 8.0)

    assert sum(injected.values()) > rollouts / 4
    assert len(result.scored) + len(result.masked) == rollouts
    assert len(result.scored) > rollouts / 6
    # A rollout is right or it is masked, never anything between.
    assert {round(output["reward"], 6) for output in result.scored} == {1.1}
    assert all(output["error"]["error"] == "InfraError" for output in result.masked)
    assert all(output["reward"] == 0.0 for output in result.masked)
    failed = sum(output["metrics"]["podman_failure_metric"] for output in result.outputs)
    assert failed == len(result.masked)
    for number, output in enumerate(result.outputs):
        said = [event["output"]["stdout"] for event in output["jtc_tool_history"]][:3]
        container = output["podman_container_id"]
        for text, letter in zip(said, "abc", strict=False):
            assert text in (f"{container} {letter} {number}\n", ""), "every rollout hears its own container"
    containers = {output["podman_container_id"] for output in result.outputs} - {None}
    assert len(containers) == sum(output["podman_container_id"] is not None for output in result.outputs)

    assert result.tasks_left == 0
    assert result.most_in_flight <= 256 + rollouts, "256 requests, and closes, which never wait"
    eventually(lambda: made.containers == [], "what lost handshakes left is reaped, all else is closed")
    eventually(lambda: made.connections == 0, "no connection is left")
    assert result.undeleted == 0
    assert result.memory_growth < 400


@pytest.mark.soak
def test_more_than_256_requests_wait_in_order(service, load):
    made = service()
    result = stress(load(made), made, 300, request_timeout=60.0)
    assert {round(output["reward"], 6) for output in result.outputs} == {1.1}
    assert result.most_in_flight <= 256 + 44
    assert (made.containers, result.tasks_left, result.lost_handshakes) == ([], 0, 0)
