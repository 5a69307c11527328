"""The reward functions of ``podman-terminal``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from primebeaker.environments._shared.behaviour import Reward, State

__all__ = ["REWARDS", "weighted"]


def _reward_file(env: Any, state: State) -> float:
    score = state.get("podman_reward_file_score")
    usable = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    return float(score) if usable and score is not None else 0.0


def _terminated(env: Any, state: State) -> float:
    return float(bool(state.get("podman_terminal_complete")))


def _failed(env: Any, state: State) -> float:
    return -float(bool(state.get("podman_failure")))


def _fake_tools(env: Any, state: State) -> float:
    return -float(state.get("jtc_unknown_tool_call_count") or 0)


def _tests_passed(env: Any, state: State) -> float:
    output = state.get("podman_test_output") or {}
    return float(output.get("success") is True)


def _metric(name: str, compute: Callable[[Any, State], float], formula: str) -> Reward:
    return Reward(name, compute, formula, weight=0.0, despite_error=True)


#: With the default weights.
REWARDS = (
    Reward("task_reward_file", _reward_file, "the number in the reward file, 0 to 1; 0 when there is none"),
    Reward("episode_terminated", _terminated, "1 if the task was ended with the completion command", weight=0.1),
    Reward("podman_failed_reward", _failed, "-1 if the container could not be used"),
    Reward("fake_tool_penalty", _fake_tools, "-(attempts to call a tool that does not exist)", weight=0.1),
    _metric("terminal_completion_metric", _terminated, "1 if completed"),
    _metric(
        "reward_file_present_metric",
        lambda env, state: float(bool(state.get("podman_reward_file_present"))),
        "1 if something was at the path of the reward file after the tests",
    ),
    _metric("podman_test_success_metric", _tests_passed, "1 if the tests exited with 0"),
    _metric("podman_failure_metric", lambda env, state: -_failed(env, state), "1 if the container could not be used"),
    _metric(
        "podman_oom_metric",
        lambda env, state: float(bool(state.get("podman_failure_oom"))),
        "1 if that failure speaks of exhausted memory",
    ),
    _metric("fake_tool_count_metric", lambda env, state: -_fake_tools(env, state), "calls of tools that do not exist"),
)


def weighted(weights: dict[str, float]) -> tuple[Reward, ...]:
    """The reward functions with other weights, by name."""
    return tuple(replace(reward, weight=weights.get(reward.name, reward.weight)) for reward in REWARDS)
