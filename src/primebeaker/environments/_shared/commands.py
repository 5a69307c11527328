"""Reading the commands a model gives to a terminal: pipeline stages, page reads, and cited URLs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Browse", "browse_of", "cat_of", "is_fetchable", "stage_names", "url_is_in_output"]

_SEPARATORS = frozenset("|;&()")
_BROWSE = re.compile(r"\s*browse\s+(?P<url>[^\s|]+)\s*(?:\|(?P<pipe>.*))?", re.DOTALL)
_CAT = re.compile(r"\s*cat\s+(?P<words>[^|]*)(?:\|(?P<pipe>.*))?", re.DOTALL)
_URL_RUN = re.compile(r"https?://[^\s<>\"'\[\]{}|\\`]+", re.IGNORECASE)
_FETCHABLE = re.compile(r"https?://(?P<authority>[^/?#\s]+)[^\s]*", re.IGNORECASE)
_PUNCTUATION = ".,;:!?*"


def stage_names(command: str) -> list[str]:
    """The names of the pipeline stages of a command, by shell quoting rules.

    Stages end at unquoted runs of ``|``, ``;``, ``&``, ``(`` and ``)``; a stage is called after the last path part of
    its first word.  A command with unbalanced quotes is one stage, called after its first word.
    """
    stages = _stages(command)
    if stages is None:
        words = command.split()
        return [_base_name(words[0])] if words else []
    return [_base_name(words[0]) for words in stages if words]


def _stages(command: str) -> list[list[str]] | None:
    """The words of each stage, or None when a quote is never closed."""
    stages: list[list[str]] = [[]]
    word: list[str] | None = None
    quote = ""
    characters = iter(command)
    for character in characters:
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"':
                following = next(characters, "")
                word = word if word is not None else []
                word.append(following if following in '"\\$`' else character + following)
            elif word is not None:
                word.append(character)
        elif character in "'\"":
            quote = character
            word = word if word is not None else []
        elif character == "\\":
            word = word if word is not None else []
            word.append(next(characters, ""))
        elif character.isspace() or character in _SEPARATORS:
            if word is not None:
                stages[-1].append("".join(word))
                word = None
            if character in _SEPARATORS and stages[-1]:
                stages.append([])
        else:
            word = word if word is not None else []
            word.append(character)
    if quote:
        return None
    if word is not None:
        stages[-1].append("".join(word))
    return stages


def _base_name(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


class Browse(NamedTuple):
    """A well-formed ``browse URL [| PIPE]``: the page, and the pipeline that reads it."""

    url: str
    pipeline: str


def browse_of(command: str) -> Browse | None:
    """The page read that ``command`` asks for; None when it is no well-formed ``browse URL``."""
    match = _BROWSE.fullmatch(command)
    if match is None:
        return None
    url = match["url"]
    if len(url) > 1 and url[0] in "'\"" and url[-1] == url[0]:
        url = url[1:-1]
    return Browse(url, (match["pipe"] or "").strip() or "cat")


def cat_of(command: str) -> tuple[list[str], str] | None:
    """The words and the pipeline of ``cat WORD… [| PIPE]``; None for other commands and a bare ``cat``."""
    match = _CAT.fullmatch(command)
    words = match["words"].split() if match else []
    if match is None or not words:
        return None
    return words, (match["pipe"] or "").strip() or "cat"


def is_fetchable(url: str) -> bool:
    """Whether a page may be fetched: ``http`` or ``https``, a host, no user info, no white space."""
    match = _FETCHABLE.fullmatch(url)
    return match is not None and "@" not in match["authority"] and not match["authority"].startswith(":")


def url_is_in_output(url: str, output: Any) -> bool:
    """Whether the judged output cites ``url`` exactly; other schemes than ``http(s)`` never are."""
    if not url.lower().startswith(("http://", "https://")) or output is None:
        return False
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, sort_keys=True)
    return any(url == candidate for candidate in _cited_urls(text))


def _cited_urls(text: str) -> Iterator[str]:
    for match in _URL_RUN.finditer(text):
        run = match[0]
        yield re.split(r"[()]", run, maxsplit=1)[0].rstrip(_PUNCTUATION)
        yield _without_stray_closings(run).rstrip(_PUNCTUATION)


def _without_stray_closings(run: str) -> str:
    """Drop closing brackets at the end that have no opening one."""
    # Punctuation may stand between them, as in "(see http://x/a.)".
    surplus = run.count(")") - run.count("(")
    end = kept = len(run)
    while surplus > 0 and end > 0 and run[end - 1] in _PUNCTUATION + ")":
        end -= 1
        if run[end] == ")":
            surplus -= 1
            kept = end
    return run[:kept]
