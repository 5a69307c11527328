"""The answers a judge model may give: an XML verdict, or a JSON verdict object."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from primebeaker.runtime.json_spans import STRING_PATTERN, WHITE_SPACE_PATTERN, json_spans

__all__ = ["Verdict", "final_verdict", "is_strict_verdict", "normalize_label", "only_element", "xml_verdict"]

_FEEDBACK = re.compile(r"<(/?)feedback>", re.IGNORECASE)
_LABEL = re.compile(r"<(/?)label>", re.IGNORECASE)
_TEXT = f"{WHITE_SPACE_PATTERN}{STRING_PATTERN}{WHITE_SPACE_PATTERN}"
_MEMBER = f"{_TEXT}:{_TEXT}"
# The form of a verdict object, whatever its keys are called.
_TWO_TEXTS = re.compile(rf"\{{{_MEMBER},{_MEMBER}\}}")
_SHORTEST = len('{"feedback":"f","label":"l"}')


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
    feedback = only_element(_FEEDBACK, text)
    label = normalize_label(only_element(_LABEL, text))
    if not feedback or not label:
        return None
    return Verdict(feedback, label)


def only_element(tags: re.Pattern[str], text: str) -> str | None:
    """The trimmed content of the only element of a kind; None when its tags do not occur exactly once, in order.

    Args:
        tags: Matches the opening and closing tag; its first group is ``/`` for the closing one.
        text: A text without thinking.
    """
    found = []
    for tag in tags.finditer(text):
        found.append(tag)
        if len(found) > 2:
            return None
    if len(found) != 2 or found[0][1] or not found[1][1]:
        return None
    return text[found[0].end() : found[1].start()].strip()


def final_verdict(text: str) -> Verdict | None:
    """The JSON verdict of a text without thinking and tool calls.

    Of the JSON values that stand in the text, those count that are verdict objects: exactly the keys ``feedback`` and
    ``label``, both strings that are not blank.  Several whose labels differ are no verdict, so that hedging does not
    pay; otherwise the last one is taken.
    """
    if _TWO_TEXTS.search(text) is None:
        return None
    verdicts = []
    for start, end in json_spans(text):
        if end - start < _SHORTEST:
            continue
        candidate = _TWO_TEXTS.fullmatch(text, start, end)
        if candidate and (verdict := _verdict_object(candidate[0])):
            verdicts.append(verdict)
    if len({verdict.label for verdict in verdicts}) != 1:
        return None
    return verdicts[-1]


def is_strict_verdict(text: str) -> bool:
    """Whether the whole text is one verdict object."""
    return text.startswith("{") and _verdict_object(text) is not None


def _verdict_object(text: str) -> Verdict | None:
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, _Pairs) or sorted(key for key, _ in pairs) != ["feedback", "label"]:
        return None
    values = dict(pairs)
    feedback, label = values["feedback"], normalize_label(values["label"])
    if not isinstance(feedback, str) or not isinstance(values["label"], str) or not feedback.strip() or not label:
        return None
    return Verdict(feedback.strip(), label)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in order, repeated keys included."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
