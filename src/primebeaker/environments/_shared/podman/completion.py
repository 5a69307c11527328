"""When a command of the model counts as "the task is finished"."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["is_completion_command", "shows_completion"]


def is_completion_command(command: str, marker: str) -> bool:
    """Whether a command is ``echo`` and the marker, and nothing else, by the rules of a POSIX shell."""
    text = command.strip()
    if "\n" in text or "\r" in text:
        return False
    try:
        return shlex.split(text) == ["echo", marker]
    except ValueError:
        return False


def shows_completion(reply: Mapping[str, Any], marker: str) -> bool:
    """Whether the reply to that command shows that it ran: success in time, and the marker on a line of its own."""
    if reply.get("success") is not True or reply.get("timed_out"):
        return False
    return marker in str(reply.get("stdout") or "").splitlines()
