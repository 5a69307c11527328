"""Every formula of the rewards with its number, through both scoring paths."""

import pytest

from ...podman_service.answers import obedient
from ...podman_service.service import NO_FAULT, http_error
from .conftest import DONE, bash, calls

WRITE = "make"


@pytest.mark.parametrize(
    ("reward", "replies", "expected", "stop"),
    [
        ("0.5", [bash(DONE)], 0.6, "terminal_complete"),
        ("0.5", [bash(WRITE), bash(DONE)], 0.6, "terminal_complete"),
        (None, [bash(DONE)], 0.1, "terminal_complete"),
        ("1", [bash(DONE)], 1.1, "terminal_complete"),
        ("1", [calls(("python", {"code": "1"})), bash(DONE)], 1.0, "terminal_complete"),
        ("nan", [bash(DONE)], 0.1, "terminal_complete"),
        ("-1", [bash(DONE)], 0.1, "terminal_complete"),
        ("7", [bash(DONE)], 1.1, "terminal_complete"),
        ("1", [bash(WRITE), "I am done."], 0.0, "stop_after_final_or_invalid"),
        ("1", ["I am done."], 0.0, "stop_after_final_or_invalid"),
        ("1", [bash("")], 0.0, "stop_after_final_or_invalid"),
        ("1", [calls(("a", {}), ("b", {})), "done"], -0.2, "stop_after_final_or_invalid"),
        ("1", [calls(("bash", {"command": DONE}), ("ls", {}))], 1.0, "terminal_complete"),
    ],
)
def test_rewards(service, load, play, reward, replies, expected, stop):
    env = load(service(obedient(reward)))
    played = play(env, replies)
    assert played.output["error"] is None
    assert (played.reward, played.output["stop_condition"]) == (pytest.approx(expected), stop), played.metrics
    assert not any(str(value) == "-0.0" for value in played.metrics.values())


def test_a_task_finished_on_the_last_turn_is_graded(service, load, play):
    played = play(load(service(obedient("1")), max_turns=2), [bash(WRITE), bash(DONE)])
    assert (played.reward, played.output["stop_condition"]) == (pytest.approx(1.1), "terminal_complete")
    played = play(load(service(obedient("1")), max_turns=2), [bash(WRITE), bash("ls")])
    assert (played.reward, played.output["stop_condition"]) == (0.0, "max_turns_reached")
    assert len(played.prompts) == 2


def test_a_setup_failure_costs_one(service, load, play):
    env = load(service(faults=lambda route, body: http_error(500)))
    played = play(env, [])
    assert (played.reward, played.output["stop_condition"]) == (-1.0, "podman_failed")
    assert played.output["error"] is None, "a setup failure is never raised out of the rollout"
    assert played.prompts == [], "the model is not asked"
    assert played.state["podman_failure_phase"] == "setup"
    assert played.metrics["podman_failure_metric"] == 1.0
    assert played.state["jtc_infrastructure_failure"] is True


def test_a_failure_during_grading_costs_one_and_completion_counts(service, load, play):
    def faults(route, body):
        return http_error(404) if "shell" not in body and len(body.get("command", "")) > 100 else NO_FAULT

    played = play(load(service(faults=faults)), [bash(DONE)])
    assert played.reward == pytest.approx(-0.9)
    assert played.state["podman_failure_phase"] == "test"
    assert played.output["stop_condition"] == "podman_failed"


def test_a_failure_while_working_ends_the_rollout_and_tells_the_model_no_url(service, load, play):
    made = service(faults=lambda route, body: http_error(503) if body.get("command") == "boom" else NO_FAULT)
    played = play(load(made), [bash("echo a", "boom", "echo b")])
    assert (played.reward, played.output["stop_condition"]) == (-1.0, "podman_failed")
    assert played.state["podman_failure_phase"] == "execute"
    answers = [message["content"] for message in played.output["completion"] if message["role"] == "tool"]
    assert len(answers) == 3
    assert all("the container is unavailable" in answer and "http" not in answer for answer in answers[1:])
    commands = [body["command"] for body in made.bodies("podman")]
    assert commands.count("boom") == 3, "once in each of the three rollouts that play runs"
    assert "echo b" not in commands


def test_with_the_policy_error_the_trainer_drops_the_rollout(service, load, play):
    env = load(service(faults=lambda route, body: http_error(500)), podman_failure_policy="error")
    played = play(env, [])
    assert played.output["error"]["error"] == "InfraError"
    assert played.reward == 0.0
    assert played.metrics["podman_failure_metric"] == 1.0
    assert (
        "127.0.0.1" in played.state["podman_failure_message"] and "/affinity" not in played.output["error"]["message"]
    )


def test_the_four_weights(service, load, play):
    weights = {"reward_file_weight": 2, "termination_reward_weight": 0.5, "fake_tool_penalty_weight": 0.25}
    env = load(service(obedient("0.5")), **weights)
    assert play(env, [calls(("x", {})), bash(DONE)]).reward == pytest.approx(2 * 0.5 + 0.5 - 0.25)
    old = load(service(obedient("0.5")), verifier_reward_weight=3)
    assert play(old, [bash(DONE)]).reward == pytest.approx(3 * 0.5 + 0.1)
    failing = load(service(faults=lambda route, body: http_error(500)), podman_failure_penalty_weight=4)
    assert play(failing, []).reward == -4.0


def test_metrics_are_the_documented_ones(service, load, play):
    played = play(load(service(obedient("1"))), [bash(DONE)])
    assert list(played.metrics) == [
        "task_reward_file",
        "episode_terminated",
        "podman_failed_reward",
        "fake_tool_penalty",
        "terminal_completion_metric",
        "reward_file_present_metric",
        "podman_test_success_metric",
        "podman_failure_metric",
        "podman_oom_metric",
        "fake_tool_count_metric",
        "num_turns",
    ]
    assert played.metrics["podman_test_success_metric"] == 1.0
    assert played.metrics["reward_file_present_metric"] == 1.0
