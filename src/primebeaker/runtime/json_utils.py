"""Find JSON in what a model says."""

from __future__ import annotations

import json
import re
from typing import Any

from primebeaker.runtime.json_spans import json_spans

__all__ = ["extract_json_from_response"]

_FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z0-9_+-]*")


def extract_json_from_response(value: Any) -> Any:
    """The JSON object or array in a reply.

    A dict or list is returned as it is.  Of a text, the first fenced block (plain or ``json``) is taken when it is
    JSON, else the whole text, else the first balanced object or array in it that parses; None when there is none.
    """
    if isinstance(value, dict | list):
        return value
    if not isinstance(value, str):
        return None
    for candidate in (_first_fenced(value), value):
        found = _decoded(candidate)
        if isinstance(found, dict | list):
            return found
    span = next(json_spans(value), None)
    return _decoded(value[span.start : span.end]) if span else None


def _first_fenced(text: str) -> str:
    """The content of the first fenced block that is plain or ``json``; empty when there is none."""
    position = 0
    while (start := text.find(_FENCE, position)) >= 0:
        language = _LANGUAGE.match(text, start + len(_FENCE))
        body = language.end() if language else start + len(_FENCE)
        end = text.find(_FENCE, body)
        if end < 0:
            break
        if language is None or language[0].lower() in ("", "json"):
            return text[body:end].strip()
        position = end + len(_FENCE)
    return ""


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
