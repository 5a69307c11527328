"""GPT-OSS replies in the Harmony format, when a server hands the raw text through.

A reply is a row of messages: a header up to ``<|message|>``, then a body up to the next end mark.  The channel
``analysis`` is thinking, the body of ``final`` is what was said, and a recipient (``to=``) makes a message a tool call.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["HarmonyMessage", "harmony_messages"]

_MARK = re.compile(r"<\|(start|message|call|end|return)\|>")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)")


class HarmonyMessage(NamedTuple):
    """One message of a Harmony reply.

    Args:
        channel: ``analysis``, ``commentary``, ``final``, or None when the header names none.
        recipient: The tool that is called, without the ``functions.`` prefix; None for plain text.
        body: The text of the message.
    """

    channel: str | None
    recipient: str | None
    body: str


def harmony_messages(text: str) -> list[HarmonyMessage] | None:
    """The messages of a Harmony reply, or None when ``text`` is not in that format."""
    if "<|channel|>" not in text and "<|message|>" not in text:
        return None
    messages: list[HarmonyMessage] = []
    header_start, header, body_start = 0, "", None
    for mark in _MARK.finditer(text):
        kind = mark[1]
        if body_start is None:
            if kind == "message":
                header, body_start = text[header_start : mark.start()], mark.end()
            else:
                header_start = mark.end()
        elif kind != "message":
            messages.append(_message(header, text[body_start : mark.start()]))
            header_start, body_start = mark.end(), None
    if body_start is not None:
        messages.append(_message(header, text[body_start:]))
    return messages or None


def _message(header: str, body: str) -> HarmonyMessage:
    channel = _CHANNEL.search(header)
    recipient = _RECIPIENT.search(header)
    return HarmonyMessage(channel[1].lower() if channel else None, recipient[1] if recipient else None, body)
