"""The number in a reward file, read strictly: what is not a plain finite number scores 0."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

__all__ = ["LARGEST_REWARD_FILE", "FileKind", "RewardFile", "score_reward_file"]

#: Bytes of a reward file; a larger one scores 0.
LARGEST_REWARD_FILE = 4096

FileKind = Literal["absent", "irregular", "regular"]

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ASCII_SPACE = " \t\n\r\v\f"
_LONGEST_QUOTE = 100


class RewardFile(NamedTuple):
    """What a reward file is worth.

    Args:
        score: From 0 to 1.
        present: Whether there was anything at its path.
        error: Why it scores 0, when that is not plain absence.
    """

    score: float = 0.0
    present: bool = False
    error: str | None = None


def score_reward_file(kind: FileKind, content: bytes) -> RewardFile:
    """Score what was found at the path of the reward file.

    Args:
        kind: Nothing, a regular file that is no link, or something else.
        content: The first bytes of a regular file, at least one more than :data:`LARGEST_REWARD_FILE` if it has them.
    """
    if kind == "absent":
        return RewardFile()
    if kind == "irregular":
        return RewardFile(0.0, True, "reward file is not a regular file")
    if len(content) > LARGEST_REWARD_FILE:
        return RewardFile(0.0, True, f"reward file is larger than {LARGEST_REWARD_FILE} bytes")
    text = content.decode("utf-8", "backslashreplace")
    number = text.strip(_ASCII_SPACE)
    value = float(number) if _NUMBER.fullmatch(number) else math.nan
    if not math.isfinite(value):
        quoted = repr(text)
        quoted = quoted if len(quoted) <= _LONGEST_QUOTE else quoted[:_LONGEST_QUOTE]
        return RewardFile(0.0, True, f"invalid reward file value: {quoted}")
    return RewardFile(min(max(value, 0.0), 1.0) + 0.0, True, None)
