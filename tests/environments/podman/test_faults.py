"""A service that fails: what is repeated, what never is, what the rollout becomes, and that containers go in any case."""

import asyncio
import logging
from collections import Counter

import pytest

from ...podman_service.answers import obedient
from ...podman_service.service import (
    DROPPED_AFTER,
    DROPPED_BEFORE,
    HANGING,
    NO_FAULT,
    Fault,
    http_error,
)
from ..conftest import ScriptedClient
from .conftest import COLUMNS, DONE, bash, eventually, solve_async


def first(count, fault, route, condition=lambda body: True):
    """The first requests to a route fail."""
    left = [count]

    def faults(name, body):
        if name != route or not condition(body) or left[0] == 0:
            return NO_FAULT
        left[0] -= 1
        return fault

    return faults


def is_model_command(body):
    return "--noprofile" not in body.get("command", "")


async def started(env, *replies):
    client = ScriptedClient(list(replies))
    row = dict(env.get_dataset()[0])
    return asyncio.create_task(env.run_rollout(row, client, "m", {}, state_columns=list(COLUMNS)))


async def until(condition, what="the condition"):
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


# Handshakes.


@pytest.mark.parametrize("fault", [http_error(503), http_error(429)])
def test_a_full_pool_makes_a_rollout_wait(service, load, solve, no_pauses, fault):
    made = service(faults=first(8, fault, "handshake"))
    rollout = solve(load(made), bash(DONE))
    assert rollout["reward"] == pytest.approx(1.1)
    assert len(made.bodies("handshake")) == 9
    assert len(no_pauses) == 8
    bounds = [(0.25, 0.75), (0.5, 1.5), (1, 3), (2, 6), (4, 12), (4, 12), (4, 12), (4, 12)]
    assert all(least <= pause <= most for pause, (least, most) in zip(no_pauses, bounds, strict=True)), no_pauses


def test_more_rollouts_than_the_pool_holds_all_get_a_container_in_time(service, load, monkeypatch):
    from primebeaker.environments._shared.podman import session

    async def short(seconds):
        await asyncio.sleep(0.02)

    monkeypatch.setattr(session, "backoff_sleep", short)
    made = service(max_sessions=2)
    env = load(made)

    async def run():
        rollouts = [await started(env, bash("work"), bash(DONE)) for _ in range(8)]
        return await asyncio.gather(*rollouts)

    outputs = asyncio.run(run())
    assert [output["reward"] for output in outputs] == [pytest.approx(1.1)] * 8
    assert made.containers == []


def test_the_handshake_budget_ends_and_says_why(service, load, solve):
    made = service(faults=first(-1, http_error(503), "handshake"))
    rollout = solve(load(made, handshake_timeout=3))
    assert rollout["reward"] == -1.0
    assert rollout["podman_failure_type"] == "NoContainer"
    assert rollout["podman_failure_message"].startswith(
        "no container within 3 s: Podman execution failed with HTTP 503"
    )


@pytest.mark.parametrize("status", [400, 404, 422, 500, 502])
def test_other_refusals_of_a_handshake_are_final(service, load, solve, status):
    made = service(faults=first(-1, http_error(status), "handshake"))
    rollout = solve(load(made))
    assert (rollout["podman_failure_phase"], rollout["podman_failure_type"]) == ("setup", "RuntimeError")
    assert len(made.bodies("handshake")) == 1


def test_a_service_that_is_not_there_yet_is_waited_for(load, solve, service, no_pauses):
    """Connections are refused until it is up; nothing counts as lost."""
    env = load("http://127.0.0.1:9", handshake_timeout=2)
    rollout = solve(env)
    assert rollout["podman_failure_type"] == "NoContainer"
    assert "Cannot connect" in rollout["podman_failure_message"]
    assert env.containers.lost_handshakes == []


def test_a_lost_reply_is_asked_for_again_counted_and_left_to_the_reaper(service, load, solve, no_pauses, caplog):
    made = service(faults=first(2, DROPPED_AFTER, "handshake"), session_idle_timeout=6.0, janitor_interval=0.2)
    env = load(made)
    rollout = solve(env, bash(DONE))
    assert rollout["reward"] == pytest.approx(1.1)
    sent = [body["client_id"] for body in made.bodies("handshake")]
    assert env.containers.lost_handshakes == sent[:2]
    assert all(f"client {id} is lost" in caplog.text for id in sent[:2])
    eventually(lambda: made.containers == [], "the reaper removes the orphans")


def test_lost_replies_are_asked_for_again_max_retries_times_at_most(service, load, solve, no_pauses):
    made = service(faults=first(-1, DROPPED_BEFORE, "handshake"))
    rollout = solve(load(made, max_retries=2))
    assert len(made.bodies("handshake")) == 2
    assert (rollout["reward"], rollout["podman_failure_phase"]) == (-1.0, "setup")


def test_a_handshake_that_takes_too_long_is_finished_beside_a_new_one_and_its_container_closed(service, load):
    made = service(faults=first(1, Fault(seconds=8.0), "handshake"))
    env = load(made, command_timeout=0.1, request_timeout=10.1)
    env.request_timeout = 3.0

    async def run():
        rollout = await solve_async(env, bash(DONE))
        assert len(asyncio.all_tasks()) == 1
        return rollout

    assert asyncio.run(run())["reward"] == pytest.approx(1.1)
    assert len(made.bodies("handshake")) == 2
    assert len({body["affinity_id"] for body in made.bodies("close")}) == 2
    assert (made.containers, env.containers.lost_handshakes, env.containers.undeleted) == ([], [], {})


def test_an_answer_with_two_ids_is_refused_and_both_containers_are_closed(service, load, solve):
    other = "f" * 64
    made = service(faults=first(1, Fault(changes={"affinity_id": other}), "handshake"))
    rollout = solve(load(made))
    assert rollout["podman_failure_phase"] == "setup"
    assert other in {body["affinity_id"] for body in made.bodies("close")}
    assert made.containers == []


def test_a_row_without_an_image_is_a_setup_failure_of_type_value_error(service, load, solve):
    row = {"example_id": 0, "prompt": [{"role": "user", "content": "p"}]}
    rollout = solve(load(service()), row=row)
    assert (rollout["podman_failure_type"], rollout["reward"]) == ("ValueError", -1.0)
    assert rollout["error"] is None


# Commands of the model.


@pytest.mark.parametrize(
    ("fault", "sent", "message"),
    [
        (DROPPED_BEFORE, 1, None),
        (DROPPED_AFTER, 1, None),
        (http_error(503), 1, None),
        (http_error(500), 1, None),
        (http_error(404), 1, None),
        (http_error(410), 1, None),
        (http_error(429), 3, None),
    ],
)
def test_a_command_that_may_have_started_is_never_sent_twice(service, load, solve, no_pauses, fault, sent, message):
    made = service(faults=first(-1, fault, "podman", is_model_command))
    rollout = solve(load(made), bash("touch x"))
    assert (rollout["reward"], rollout["podman_failure_phase"]) == (-1.0, "execute")
    assert [body["command"] for body in made.bodies("podman")] == ["touch x"] * sent
    assert made.containers == []


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (400, "injected 400\n```\n\n[exit code 1]"),
        (413, "injected 413\n```\n\n[exit code 1]"),
        (422, "injected 422\n```\n\n[exit code 1]"),
        (408, "bash: the command ran out of time\n```\n\n[exit code 124; timed out after 60 s]"),
    ],
)
def test_what_the_command_itself_causes_is_told_and_the_rollout_goes_on(service, load, solve, status, shown):
    made = service(faults=first(1, http_error(status), "podman"))
    rollout = solve(load(made), bash("x"), bash(DONE))
    assert rollout.answers[0].endswith(shown)
    assert rollout["reward"] == pytest.approx(1.1)


def test_a_completion_that_timed_out_does_not_count(service, load, solve):
    made = service(faults=first(1, http_error(408), "podman"))
    rollout = solve(load(made, max_tool_calls=1), bash(DONE))
    assert (rollout["podman_terminal_complete"], rollout["reward"]) == (False, 0.0)


def test_a_session_that_is_lost_after_a_killed_command_looks_like_exhausted_memory(service, load, solve):
    def answer(container, command, stdin):
        return ("", 137) if command == "hog" else ("", 0)

    made = service(answer, faults=lambda route, body: http_error(404) if body.get("command") == "ls" else NO_FAULT)
    hog = solve(load(made), bash("hog"), bash("ls"))
    assert (hog["podman_failure_oom"], hog["metrics"]["podman_oom_metric"]) == (True, 1.0)
    calm = solve(load(made), bash("calm"), bash("ls"))
    assert (calm["podman_failure_oom"], calm["metrics"]["podman_oom_metric"]) == (False, 0.0)


# Commands of the grading.


@pytest.mark.parametrize(
    "fault", [http_error(503), http_error(500), http_error(429), http_error(408), DROPPED_BEFORE, DROPPED_AFTER]
)
def test_a_grading_command_is_safe_to_repeat(service, load, solve, no_pauses, fault):
    made = service(faults=first(2, fault, "podman", lambda body: not is_model_command(body)))
    assert solve(load(made), bash(DONE))["reward"] == pytest.approx(1.1)


def test_a_grading_that_fails_for_good_is_a_failure_of_the_phase_test(service, load, solve, no_pauses):
    made = service(faults=first(-1, http_error(503), "podman", lambda body: not is_model_command(body)))
    rollout = solve(load(made), bash(DONE))
    assert (rollout["reward"], rollout["podman_failure_phase"]) == (pytest.approx(-0.9), "test")
    assert len(made.bodies("podman")) == 1 + 3
    assert made.containers == []


# Clean-up.


def test_a_close_is_repeated_and_what_is_gone_already_is_a_success(service, load, solve, no_pauses):
    made = service(faults=first(2, http_error(503), "close"))
    env = load(made)
    rollout = solve(env, bash(DONE))
    assert rollout["podman_cleanup"]["removed"] is True
    assert (rollout["podman_cleanup_error"], env.containers.undeleted, made.containers) == (None, {}, [])
    gone = service(faults=first(1, http_error(404), "close"))
    assert solve(load(gone), bash(DONE))["podman_cleanup"]["removed"] is True


def test_a_close_that_fails_is_shown_and_tried_again_at_teardown(service, load, no_pauses, caplog):
    made = service(faults=first(3, http_error(503), "close"))
    env = load(made)

    async def run():
        output = await (await started(env, bash(DONE)))
        container = output["podman_container_id"]
        assert "HTTP 503" in output["podman_cleanup_error"] and output["podman_cleanup"] is None
        assert output["reward"] == pytest.approx(1.1)
        assert list(env.containers.undeleted) == [container] == made.containers
        warned = [record.message for record in caplog.records if "could not be deleted" in record.message]
        assert len(warned) == 1 and container[:12] in warned[0] and container not in warned[0]
        await env._teardown()
        assert (env.containers.undeleted, env.containers.live) == ({}, {})

    asyncio.run(run())
    assert made.containers == []


def test_what_cannot_be_deleted_at_teardown_either_is_listed(service, load, solve, no_pauses, caplog):
    made = service(faults=first(-1, http_error(503), "close"))
    env = load(made)
    rollout = solve(env, bash(DONE))
    assert list(env.containers.undeleted) == [rollout["podman_container_id"]]
    assert (
        f"1 containers could not be deleted and are left to the service's idle reaper: {rollout['podman_container_id'][:12]}"
        in caplog.text
    )
    made.faults = lambda route, body: NO_FAULT
    asyncio.run(env._teardown())
    assert (env.containers.undeleted, made.containers) == ({}, [])


@pytest.mark.parametrize("moment", ["handshake", "command", "grading"])
def test_a_cancelled_rollout_deletes_its_container(service, load, moment):
    def faults(route, body):
        slow = {
            "handshake": route == "handshake",
            "command": route == "podman" and is_model_command(body),
            "grading": route == "podman" and not is_model_command(body),
        }
        return Fault(seconds=0.7) if slow[moment] else NO_FAULT

    made = service(faults=faults)
    env = load(made)
    route = "handshake" if moment == "handshake" else "podman"

    async def run():
        rollout = await started(env, bash(DONE))
        await until(lambda: len(made.bodies(route)) == (2 if moment == "grading" else 1))
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        await until(lambda: len(made.bodies("close")) == 1, "the container is closed without a teardown")
        await until(lambda: len(asyncio.all_tasks()) == 1, "no task is left")
        assert env.behaviour.pool.session is None

    asyncio.run(run())
    assert made.containers == []
    eventually(lambda: made.connections == 0, "no connection is left")


def test_a_second_cancellation_does_not_stop_the_clean_up(service, load):
    made = service(faults=lambda route, body: Fault(seconds=0.5) if route == "close" else NO_FAULT)
    env = load(made)

    async def run():
        rollout = await started(env, bash("x"), bash(DONE))
        await until(lambda: made.bodies("close"))
        rollout.cancel()
        await asyncio.sleep(0.1)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout

    asyncio.run(run())
    assert made.containers == []


def test_the_end_of_the_event_loop_does_not_stop_the_clean_up(service, load):
    """`asyncio.run` cancels what is left, the closing included."""
    made = service(faults=lambda route, body: Fault(seconds=0.4) if route == "close" else NO_FAULT)
    env = load(made)

    async def run():
        await started(env, bash(DONE))
        await until(lambda: made.bodies("close"))

    asyncio.run(run())
    assert made.containers == []


def test_the_end_of_the_event_loop_counts_the_handshakes_it_cuts_off(service, load):
    made = service(faults=lambda route, body: Fault(seconds=1.0), session_idle_timeout=0.5, janitor_interval=0.2)
    env = load(made)

    async def run():
        for _ in range(5):
            await started(env, bash(DONE))
        await until(lambda: len(made.bodies("handshake")) == 5)

    asyncio.run(run())
    sent = {body["client_id"] for body in made.bodies("handshake")}
    assert set(env.containers.lost_handshakes) == sent
    assert env.containers.live == {}
    eventually(lambda: made.containers == [], "the reaper removes what they started")


def test_a_rollout_out_of_time_deletes_its_container(service, load):
    made = service(faults=lambda route, body: HANGING if body.get("command") == "slow" else NO_FAULT)
    env = load(made, timeout_seconds=4)

    async def run():
        output = await (await started(env, bash("slow")))
        assert output["stop_condition"] == "timeout_reached"
        assert output["podman_cleanup"]["removed"] is True
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert made.containers == []


def test_the_container_goes_even_when_another_clean_up_step_raises(service, load, monkeypatch):
    made = service()
    env = load(made)

    async def broken(state):
        raise RuntimeError("another step")

    monkeypatch.setattr(env, "_cleanup_handlers", [broken])

    async def run():
        rollout = await started(env, bash(DONE))
        with pytest.raises(RuntimeError, match="another step"):
            await rollout

    asyncio.run(run())
    assert made.containers == []


def test_a_cap_on_containers_is_kept_and_waited_for_in_order(service, load):
    alive, most = set(), [0]

    def faults(route, body):
        if route == "close":
            alive.discard(body["affinity_id"])
        elif route == "podman":
            alive.add(body["affinity_id"])
            most[0] = max(most[0], len(alive))
        return Fault(seconds=0.02)

    made = service(faults=faults)
    env = load(made, max_concurrent_sessions=3)

    async def run():
        rollouts = [await started(env, bash("x"), bash(DONE)) for _ in range(12)]
        rollouts[5].cancel()
        return await asyncio.gather(*rollouts, return_exceptions=True)

    outputs = asyncio.run(run())
    assert sum(isinstance(output, asyncio.CancelledError) for output in outputs) == 1
    assert sum(not isinstance(output, BaseException) and output["error"] is None for output in outputs) == 11
    assert most[0] == 3
    assert made.containers == []


def test_a_caller_can_bring_clients_of_its_own(load, solve):
    log = Counter()

    class Own:
        started = False
        container_id = affinity_id = None

        def __init__(self, image, client_id):
            self.image = image

        async def start(self):
            log["start", self.image] += 1
            self.started, self.container_id, self.affinity_id = True, "c", "c"

        async def execute(self, *, command, stdin, timeout, workdir):
            stdout, code = obedient("1")("c", command, stdin)
            return {"stdout": stdout, "stderr": "", "success": code == 0, "exit_code": code, "timed_out": False}

        async def close(self):
            log["close"] += 1
            return {"removed": True}

    rollout = solve(load("http://nowhere.invalid", podman_client_factory=Own), bash(DONE))
    assert rollout["reward"] == pytest.approx(1.1)
    assert log == {("start", "docker.io/library/ubuntu:24.04"): 1, "close": 1}


def test_an_outage_is_warned_about_once(service, load, caplog):
    caplog.set_level(logging.WARNING)
    made = service(faults=first(-1, http_error(500), "handshake"))
    env = load(made)

    async def run():
        return await asyncio.gather(*[await started(env) for _ in range(10)])

    assert [output["reward"] for output in asyncio.run(run())] == [-1.0] * 10
    assert sum("the Podman service fails" in record.message for record in caplog.records) == 1
