"""The answers a judge model may give: an XML verdict, or a JSON verdict object."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

__all__ = ["Verdict", "normalize_label", "xml_verdict"]

_FEEDBACK = re.compile(r"<(/?)feedback>", re.IGNORECASE)
_LABEL = re.compile(r"<(/?)label>", re.IGNORECASE)


class Verdict(NamedTuple):
    """A judgment: the feedback, and the label normalised for comparison."""

    feedback: str
    label: str


def normalize_label(value: Any) -> str | None:
    """The text of ``value``, trimmed, in lower case, runs of whitespace as one space; None when nothing is left."""
    if value is None:
        return None
    return " ".join(str(value).split()).lower() or None


def xml_verdict(text: str) -> Verdict | None:
    """The verdict of a text without thinking, or None when it is not well-formed.

    Well-formed is exactly one ``<feedback>…</feedback>`` and exactly one ``<label>…</label>`` (any case, any order),
    both with content that is not blank.
    """
    feedback = _only_element(_FEEDBACK, text)
    label = normalize_label(_only_element(_LABEL, text))
    if not feedback or not label:
        return None
    return Verdict(feedback, label)


def _only_element(tags: re.Pattern[str], text: str) -> str | None:
    found = []
    for tag in tags.finditer(text):
        found.append(tag)
        if len(found) > 2:
            return None
    if len(found) != 2 or found[0][1] or not found[1][1]:
        return None
    return text[found[0].end() : found[1].start()].strip()
