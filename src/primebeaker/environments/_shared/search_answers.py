"""Final answers of the search environments: when there is one, the JSON block, and the exact match."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from primebeaker.environments._shared.behaviour import Reward, State, last_assistant
from primebeaker.environments._shared.rows import answer_text
from primebeaker.environments._shared.thinking import visible_text
from primebeaker.environments._shared.tool_calls import message_calls, said_text
from primebeaker.json_keys import RepeatedKey, unique_keys
from primebeaker.runtime.json_spans import ValueReader

__all__ = ["EXACT_MATCH_REWARDS", "call_metrics", "extracted_answer", "final_text"]

_OPENING = re.compile(r"```json\s*(?=\{)", re.IGNORECASE)
_SPACE = re.compile(r"\s*")
_FENCE = "```"


def final_text(state: State) -> str | None:
    """The final answer of a rollout as text without thinking; None when it has none.

    There is none when the completion is empty, its last message is not the assistant's, still calls tools, or says
    nothing.
    """
    message = last_assistant(state)
    if message is None or message_calls(message, {}):
        return None
    return said_text(visible_text(message)) or None


def extracted_answer(text: str) -> str | None:
    """The answer in the fenced JSON block that ends a text; None unless it is an object with the one key ``answer``."""
    text = text.rstrip()
    if not text.endswith(_FENCE):
        return None
    body_end = len(text) - len(_FENCE)
    reader = ValueReader(text)
    for opening in reversed(list(_OPENING.finditer(text, 0, body_end))):
        try:
            found, end = reader.decode(opening.end())
        except ValueError:
            continue
        rest = _SPACE.match(text, end)
        if rest is None or rest.end() != body_end:
            continue
        answer = found.get("answer")
        if list(found) != ["answer"] or not isinstance(answer, str) or _repeats_a_key(text[opening.end() : end]):
            return None
        return answer.strip() or None
    return None


def _repeats_a_key(value: str) -> bool:
    try:
        json.loads(value, object_pairs_hook=unique_keys)
    except RepeatedKey:
        return True
    return False


def _answer(state: State) -> str | None:
    text = final_text(state)
    return extracted_answer(text) if text else None


def _final_json_format(env: Any, state: State) -> float:
    return float(_answer(state) is not None)


def _answer_exact_match(env: Any, state: State) -> float:
    answer, gold = _answer(state), answer_text({"answer": state.get("answer")})
    return float(answer is not None and gold is not None and _comparable(answer) == _comparable(gold))


def _comparable(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip()).casefold()


EXACT_MATCH_REWARDS = (
    Reward("final_json_format", _final_json_format, "1 if the last message is an answer that ends with its JSON block"),
    Reward(
        "answer_exact_match",
        _answer_exact_match,
        "1 if that answer equals the gold answer after trimming, Unicode NFC and casefold",
    ),
)


def _structured_calls(state: State, name: str | None) -> float:
    calls = (
        call
        for step in state["trajectory"]
        for message in step["completion"]
        for call in getattr(message, "tool_calls", None) or ()
    )
    return float(sum(name is None or call.name == name for call in calls))


def _infrastructure_errors(env: Any, state: State) -> float:
    return float(state.get("search_agent_infrastructure_error_count", 0))


def _call_counter(tool: str) -> Reward:
    return Reward(f"{tool}_calls", lambda env, state: _structured_calls(state, tool), f"{tool} calls", weight=0.0)


def call_metrics(*tools: str) -> tuple[Reward, ...]:
    """Counters shown as metrics."""
    return (
        Reward("total_tool_calls", lambda env, state: _structured_calls(state, None), "tool calls", weight=0.0),
        *map(_call_counter, tools),
        Reward(
            "tool_infrastructure_errors",
            _infrastructure_errors,
            "service failures of the rollout",
            weight=0.0,
            despite_error=True,
        ),
    )
