"""What a refusal of Beaker's says about the thing it was asked for.

The client has no codes for this, only text. A text about the way to Beaker (an address that cannot be resolved reads
``no such host``) or about a missing program says nothing about an experiment, and digits inside an ID are no HTTP code.
"""

from __future__ import annotations

import re

__all__ = ["is_over", "is_unknown"]

_UNKNOWN = re.compile(
    r"\b(?:404|not found|no such (?:experiment|job|image|resource)|does(?: not|n't) exist)\b", re.IGNORECASE
)
_OVER = re.compile(
    r"\b(?:409|already (?:been )?(?:stopped|finali[sz]ed|cancell?ed|ended|finished|completed|succeeded|failed)"
    r"|(?:is|was|been) finali[sz]ed)\b",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"\b(?:no such host|host not found|could not resolve|name resolution|dial (?:tcp|udp)"
    r"|(?:command|executable file) not found)\b",
    re.IGNORECASE,
)


def is_unknown(text: str) -> bool:
    """Whether Beaker said that it does not know the thing."""
    return _ELSEWHERE.search(text) is None and _UNKNOWN.search(text) is not None


def is_over(text: str) -> bool:
    """Whether there is nothing left to stop: the experiment has ended, or Beaker does not know it."""
    return is_unknown(text) or (_ELSEWHERE.search(text) is None and _OVER.search(text) is not None)
