"""Helpers for scripts that make label-RL rows from judged conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.rows import judged_output
from primebeaker.environments._shared.thinking import content_text, visible_text
from primebeaker.environments._shared.tool_calls import said_text
from primebeaker.environments._shared.verdicts import normalize_label, only_element

__all__ = [
    "extract_feedback",
    "extract_label",
    "extract_task_output",
    "normalize_label",
    "split_sft_row_for_label_rl",
]

_FEEDBACK = re.compile(r"<(/?)feedback>", re.IGNORECASE)
_LABEL = re.compile(r"<(/?)label>", re.IGNORECASE)


def extract_label(text: str) -> str | None:
    """The content of the only ``<label>`` outside thinking, trimmed; None when there is none or more than one."""
    return only_element(_LABEL, said_text(text)) or None


def extract_feedback(text: str) -> str | None:
    """The content of the only ``<feedback>`` outside thinking, trimmed; None when there is none or more than one."""
    return only_element(_FEEDBACK, said_text(text)) or None


def extract_task_output(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The text between ``<output>`` tags of the first user message that has it."""
    plain = [{**message, "content": content_text(message.get("content"))} for message in messages]
    found = judged_output({"prompt": plain})
    return found if isinstance(found, str) else None


def split_sft_row_for_label_rl(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Turn a judged conversation into a label-RL row.

    Args:
        row: A row with ``messages``: the first two are the prompt, and an assistant message holds the label.

    Returns:
        ``{"prompt", "answer", "output"}`` with the label of the last assistant message that has one, or None when the
        row has no prompt or no label.
    """
    messages = row.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or len(messages) < 3:
        return None
    if not all(isinstance(message, Mapping) for message in messages):
        return None
    assistants = [message for message in messages if message.get("role") == "assistant"]
    labels = [label for message in assistants if (label := extract_label(visible_text(message)))]
    if not labels:
        return None
    prompt = [dict(message) for message in messages[:2]]
    return {"prompt": prompt, "answer": labels[-1], "output": extract_task_output(prompt)}
