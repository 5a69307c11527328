"""The option (A to J) that an answer to a multiple-choice question names."""

from __future__ import annotations

import re

__all__ = ["option_of"]

_LETTER = re.compile(r"(?<![^\W])[A-J](?![^\W])")
_NEXT_WORD = re.compile(r" ([^\W\d_]+)")
_VERBS_OF_THE_OPTION = frozenset({"is", "and", "or"})


def option_of(text: str) -> str | None:
    """The last stand-alone capital letter A to J of a text; None when there is none.

    A stand-alone ``I`` is the pronoun, not an option, before an apostrophe or before one space and a lower-case word
    other than ``is``, ``and``, ``or``; a pronoun counts only when there is no other candidate.
    """
    option = pronoun = None
    for letter in _LETTER.finditer(text):
        if letter[0] == "I" and _is_pronoun(text, letter.end()):
            pronoun = "I"
        else:
            option = letter[0]
    return option or pronoun


def _is_pronoun(text: str, end: int) -> bool:
    if text[end : end + 1] in ("'", "’"):
        return True
    word = _NEXT_WORD.match(text, end)
    return word is not None and word[1][0].islower() and word[1] not in _VERBS_OF_THE_OPTION
