"""The final answer of a judge that speaks JSON: which text counts, and what is in it."""

from __future__ import annotations

from primebeaker.environments._shared.behaviour import Message, State, last_assistant
from primebeaker.environments._shared.rows import answer_text
from primebeaker.environments._shared.thinking import hidden_reasoning, visible_text
from primebeaker.environments._shared.tool_calls import said_text, without_call_blocks
from primebeaker.environments._shared.verdicts import Verdict, final_verdict, is_strict_verdict, normalize_label

__all__ = [
    "gold_label",
    "has_final_verdict",
    "is_reasoning_only",
    "message_verdict",
    "rollout_verdict",
    "says_strict_verdict",
]


def message_verdict(message: Message) -> Verdict | None:
    """The final verdict in the visible text; only when that is blank, the one in the hidden reasoning."""
    visible = visible_text(message)
    return _verdict(visible if visible.strip() else hidden_reasoning(message))


def has_final_verdict(message: Message) -> bool:
    """Whether a reply has a final verdict."""
    return message_verdict(message) is not None


def is_reasoning_only(message: Message) -> bool:
    """Whether the verdict stands in the hidden reasoning alone."""
    return not visible_text(message).strip() and _verdict(hidden_reasoning(message)) is not None


def says_strict_verdict(message: Message) -> bool:
    """Whether the whole visible text is one verdict object."""
    return is_strict_verdict(without_call_blocks(said_text(visible_text(message)), {}).strip())


def rollout_verdict(state: State) -> Verdict | None:
    """The final verdict of a rollout's last message."""
    message = last_assistant(state)
    return message_verdict(message) if message else None


def gold_label(state: State) -> str | None:
    """The normalised gold answer of a rollout's row."""
    return normalize_label(answer_text({"answer": state.get("answer")}))


def _verdict(text: str) -> Verdict | None:
    return final_verdict(without_call_blocks(said_text(text), {}))
