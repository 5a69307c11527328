"""Rewards of the search environments that a judge scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.behaviour import Reward, State
from primebeaker.environments._shared.search_answers import final_text

__all__ = ["JUDGE_REWARDS", "TERMINAL_JUDGE_REWARDS"]


def _judge_answer(env: Any, state: State) -> float:
    return float(state.get("primebeaker_judge_label") == "pass")


def _judge_error(env: Any, state: State) -> float:
    info = state.get("info")
    record = info.get("judge") if isinstance(info, Mapping) else None
    return float(isinstance(record, Mapping) and "error" in record)


def _tool_stderr(env: Any, state: State) -> float:
    return float(-env.tool_stderr_penalty * state["search_agent_model_caused_terminal_stderr_count"])


def _missing_final_answer(env: Any, state: State) -> float:
    return float(env.missing_final_answer_penalty) if final_text(state) is None else 0.0


_JUDGE_ANSWER = Reward("judge_answer", _judge_answer, "1 if the judge passes the final answer, 0 if not or without one")
_JUDGE_ERROR = Reward("judge_error", _judge_error, "1 if the judge failed", weight=0.0, despite_error=True)

JUDGE_REWARDS = (_JUDGE_ANSWER, _JUDGE_ERROR)
TERMINAL_JUDGE_REWARDS = (
    _JUDGE_ANSWER,
    Reward("tool_stderr_penalty_reward", _tool_stderr, "-tool_stderr_penalty * webterminal errors the model caused"),
    Reward(
        "missing_final_answer_penalty_reward",
        _missing_final_answer,
        "missing_final_answer_penalty when there is no final answer",
    ),
    _JUDGE_ERROR,
)
