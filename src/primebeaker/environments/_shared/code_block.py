"""The ``<code>`` block of ``code-tool-label``: a message that is one Python block and nothing else."""

from __future__ import annotations

import re

from primebeaker.environments._shared.verdicts import Verdict, xml_verdict

__all__ = ["code_of", "code_route_verdict"]

_OPENING = re.compile(r"<code>\s*```(?:python|py)[ \t]*\r?\n", re.IGNORECASE)
_ANY_BLOCK = re.compile(r"<code>\s*```", re.IGNORECASE)
_TAG = re.compile(r"<(/?)code>", re.IGNORECASE)
_CLOSING_TAG = "</code>"


def code_of(text: str) -> str | None:
    """The Python code of a text that is exactly one code block, else None.

    The block is ``<code>``, a ``python`` or ``py`` fence on its own line, the code, a fence on its own line and
    ``</code>`` (tags and language in any case).  The code reaches to the last fence, so that triple backticks inside
    Python strings survive.
    """
    opening = _OPENING.match(text)
    if opening is None or not text.lower().endswith(_CLOSING_TAG):
        return None
    if [tag[1] for tag in _TAG.finditer(text)] != ["", "/"]:
        return None
    inner = text[opening.end() - 1 : -len(_CLOSING_TAG)].rstrip()
    if not inner.endswith("\n```"):
        return None
    body = inner[1:-4].removesuffix("\r")
    return body if body.strip() else None


def code_route_verdict(text: str) -> Verdict | None:
    """The XML verdict of a text without thinking; a text with a code block in it is no verdict."""
    return None if _ANY_BLOCK.search(text) else xml_verdict(text)
