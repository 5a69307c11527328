"""What a model said, as opposed to what it thought: visible text, thinking removal, hidden reasoning.

Nothing inside thinking is ever executed or scored, whether its tags are closed or not.  Every function here is linear
in the text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "LONG_TEXT",
    "content_text",
    "first_thinking",
    "hidden_reasoning",
    "off_the_loop",
    "strip_special_tokens",
    "visible_text",
    "without_thinking",
    "without_thinking_tags",
]

#: Above this many characters a reply is parsed in a thread, so that other rollouts keep going.
LONG_TEXT = 100_000

_TAG = re.compile(r"<(?P<close>/?)(?P<kind>think|redacted_thinking)>", re.IGNORECASE)
_OPENING = re.compile(r"<(?:think|redacted_thinking)>", re.IGNORECASE)
_THINK_CLOSING = re.compile(r"</think>", re.IGNORECASE)
_SPECIAL = re.compile(r"<\|(?:im_end|endoftext|return)\|>", re.IGNORECASE)


async def off_the_loop[Result](text: str, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do ``work`` on ``text``, in a thread when the text is so long that other rollouts would notice."""
    if len(text) > LONG_TEXT:
        return await asyncio.to_thread(work, *arguments)
    return work(*arguments)


def visible_text(message: Mapping[str, Any]) -> str:
    """The content of a message: text as it is, the text parts of a list joined, null as an empty text."""
    return content_text(message.get("content"))


def content_text(content: Any) -> str:
    """The text of one ``content`` value."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part if isinstance(part, Mapping) else {} for part in content)
    return "".join(str(part["text"]) for part in parts if part.get("type", "text") == "text" and "text" in part)


def hidden_reasoning(message: Mapping[str, Any]) -> str:
    """The reasoning a server returned beside the content: ``reasoning_content``, else ``reasoning``."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def without_thinking(text: str) -> str:
    """Remove thinking from visible text.

    Closed pairs go first (shortest match), then everything up to a left-over ``</think>``, then everything from an
    opening tag that is never closed, then end-of-turn tokens; the rest is trimmed.
    """
    return strip_special_tokens(without_thinking_tags(text))


def strip_special_tokens(text: str) -> str:
    """Remove end-of-turn tokens and trim."""
    return _SPECIAL.sub("", text).strip() if "<|" in text else text.strip()


def without_thinking_tags(text: str) -> str:
    """Remove thinking, leaving special tokens and white space alone."""
    if not _TAG.search(text):
        return text
    text = _without_pairs(text)
    closings = list(_THINK_CLOSING.finditer(text))
    if closings:
        text = text[closings[-1].end() :]
    opening = _OPENING.search(text)
    if opening:
        text = text[: opening.start()]
    return text


def _without_pairs(text: str) -> str:
    tags = list(_TAG.finditer(text))
    # For each tag, the index of the nearest closing tag of each kind at or after it: one backward pass.
    nearest: dict[str, int] = {}
    closing_after: list[int | None] = [None] * len(tags)
    for index in range(len(tags) - 1, -1, -1):
        kind = tags[index]["kind"].lower()
        if tags[index]["close"]:
            nearest[kind] = index
        else:
            closing_after[index] = nearest.get(kind)
    kept: list[str] = []
    position = index = 0
    while index < len(tags):
        closing = closing_after[index]
        if closing is None:
            index += 1
            continue
        kept.append(text[position : tags[index].start()])
        position = tags[closing].end()
        index = closing + 1
    kept.append(text[position:])
    return "".join(kept)


def first_thinking(text: str) -> str:
    """The content of the first closed thinking pair, trimmed; else what stands before ``</think>``; else nothing."""
    opened: dict[str, int] = {}
    for tag in _TAG.finditer(text):
        kind = tag["kind"].lower()
        if not tag["close"]:
            opened.setdefault(kind, tag.end())
        elif kind in opened:
            return text[opened[kind] : tag.start()].strip()
    closing = _THINK_CLOSING.search(text)
    return text[: closing.start()].strip() if closing else ""
