"""The reward functions of the tool environments."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.behaviour import Reward, State, last_assistant
from primebeaker.environments._shared.counting import excess_fraction
from primebeaker.environments._shared.final_answer import (
    gold_label,
    is_reasoning_only,
    rollout_verdict,
    says_strict_verdict,
)

__all__ = ["FINAL_ANSWER_REWARDS", "TOOL_METRICS", "TOOL_REWARDS", "is_reasoning_only_rollout"]


def _valid_turn(env: Any, state: State) -> float:
    if state.get("jtc_infrastructure_failure"):
        return 0.0
    return float(state.get("jtc_tool_route") in ("tool", "final"))


def _invalid_trace(env: Any, state: State) -> float:
    if state.get("jtc_infrastructure_failure") or state.get("jtc_tool_route") != "invalid":
        return 0.0
    return float(env.invalid_trace_penalty)


def _tool_use(env: Any, state: State) -> float:
    most = env.max_tool_calls
    if most == 0:
        return 0.0
    return float(env.tool_use_reward_coef * min(state["jtc_tool_executed_count"], most) / most)


def _tool_stderr(env: Any, state: State) -> float:
    return float(-env.tool_stderr_penalty * state["jtc_tool_command_error_count"])


def _unknown_tool(env: Any, state: State) -> float:
    return float(-env.unknown_tool_penalty * state["jtc_unknown_tool_call_count"])


def _browse_not_in_output(env: Any, state: State) -> float:
    return float(-env.browse_url_not_in_output_penalty * state["jtc_browse_url_not_in_output_count"])


def _browse_success(env: Any, state: State) -> float:
    return float(env.browse_success_reward_coef if state["jtc_successful_browse_count"] else 0.0)


def _repeat(env: Any, state: State) -> float:
    fraction = excess_fraction(state, env.standalone_command_repeat_free_count)
    return float(-env.standalone_command_repeat_penalty * fraction)


#: Scores of how the tools were used; each is a sum over the whole rollout, taken once at its end.
TOOL_REWARDS = (
    Reward("valid_tool_or_final_turn", _valid_turn, "1 if the last message is a tool message or a final answer"),
    Reward("invalid_trace_penalty_reward", _invalid_trace, "invalid_trace_penalty if the last message is invalid"),
    Reward(
        "tool_use_reward",
        _tool_use,
        "tool_use_reward_coef * min(executed calls, max_tool_calls) / max_tool_calls; 0 when that is 0",
    ),
    Reward("tool_stderr_penalty_reward", _tool_stderr, "-tool_stderr_penalty * command errors"),
    Reward("unknown_tool_penalty_reward", _unknown_tool, "-unknown_tool_penalty * calls of unknown tools"),
    Reward(
        "browse_url_not_in_output_penalty_reward",
        _browse_not_in_output,
        "-browse_url_not_in_output_penalty * browsed URLs that the judged output does not cite",
    ),
    Reward("browse_success_reward", _browse_success, "browse_success_reward_coef once, if any browse succeeded"),
    Reward(
        "standalone_command_repeat_penalty_reward",
        _repeat,
        "-standalone_command_repeat_penalty * max(targeted - free, 0) / standalone; 0 when standalone is 0",
    ),
)


def _valid_final_format(env: Any, state: State) -> float:
    return float(rollout_verdict(state) is not None)


def _strict_final_json(env: Any, state: State) -> float:
    message = last_assistant(state)
    return float(message is not None and says_strict_verdict(message))


def is_reasoning_only_rollout(state: State) -> bool:
    """Whether the last message has its verdict in the hidden reasoning alone."""
    message = last_assistant(state)
    return message is not None and is_reasoning_only(message)


def _reasoning_only(env: Any, state: State) -> float:
    return float(env.reasoning_only_final_penalty) if is_reasoning_only_rollout(state) else 0.0


def _correct_final_label(env: Any, state: State) -> float:
    verdict, gold = rollout_verdict(state), gold_label(state)
    return float(verdict is not None and gold is not None and verdict.label == gold)


#: Scores of the final JSON answer.
FINAL_ANSWER_REWARDS = (
    Reward("valid_final_format", _valid_final_format, "1 if the last message has a final JSON verdict"),
    Reward("strict_final_json", _strict_final_json, "1 if its visible text is the verdict object and nothing else"),
    Reward(
        "reasoning_only_final_penalty_reward",
        _reasoning_only,
        "reasoning_only_final_penalty if the verdict stands in the hidden reasoning alone",
    ),
    Reward("correct_final_label", _correct_final_label, "1 if the final verdict's label equals the answer"),
)


def _count(key: str, name: str, formula: str) -> Reward:
    return Reward(name, lambda env, state: float(state[key]), formula, weight=0.0)


#: Counters shown as metrics.
TOOL_METRICS = (
    _count("jtc_browse_call_count", "browse_call_count", "browse calls"),
    _count(
        "jtc_browse_url_not_in_output_count",
        "browse_url_not_in_output_count",
        "browsed URLs that the judged output does not cite",
    ),
    _count("jtc_successful_browse_count", "successful_browse_count", "browse calls that succeeded"),
)
