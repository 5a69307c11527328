"""When a command of the model counts as "the task is finished"."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["is_completion_command", "shows_completion"]

_BLANKS = re.compile(r"[ \t]+")
#: Characters a spelling with quotes and backslashes may have for each one of the command.
_LONGEST_SPELLING = 8


def is_completion_command(command: str, marker: str) -> bool:
    """Whether a command is ``echo`` and the marker, and nothing else, by the rules of a POSIX shell."""
    text = _BLANKS.sub(" ", command.strip())
    # The shell's rules are read character by character, so only what could be the command is.
    if "\n" in text or "\r" in text or len(text) > _LONGEST_SPELLING * (len(marker) + 5):
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
