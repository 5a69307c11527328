"""Find JSON in what a model says."""

from __future__ import annotations

import json
import re
from typing import Any

from primebeaker.runtime.json_spans import json_spans

__all__ = ["extract_json_from_response"]

_FENCE = re.compile(r"```(?P<language>[A-Za-z0-9_+-]*)\s*(?P<body>.*?)```", re.DOTALL)


def extract_json_from_response(value: Any) -> Any:
    """The JSON object or array in a reply.

    A dict or list is returned as it is.  Of a text, the first fenced block (plain or ``json``) is taken when it is
    JSON, else the whole text, else the first balanced object or array in it that parses; None when there is none.
    """
    if isinstance(value, dict | list):
        return value
    if not isinstance(value, str):
        return None
    fenced = (fence["body"] for fence in _FENCE.finditer(value) if fence["language"].lower() in ("", "json"))
    for candidate in (next(fenced, ""), value):
        found = _decoded(candidate)
        if isinstance(found, dict | list):
            return found
    span = next(json_spans(value), None)
    return _decoded(value[span.start : span.end]) if span else None


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
