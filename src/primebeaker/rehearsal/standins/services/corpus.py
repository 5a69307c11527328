"""What the search stand-ins know: the first documents of the user's corpus, else three of their own; ranked by BM25."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError

__all__ = ["MOST_DOCUMENTS", "Ranking", "body_of", "documents_of", "own_documents"]

#: A rehearsal only needs enough to find something.
MOST_DOCUMENTS = 2000
# Pyserini's defaults, which the real service ranks with.
_K1, _B = 0.9, 0.4
_WORD = re.compile(r"\w+")


def own_documents() -> list[dict[str, Any]]:
    """Documents that say what they are."""
    texts = {
        "rehearsal": "This page is a stand-in of a rehearsal. The real service searches the corpus of the run.",
        "echo": "An echo of the rehearsal: whatever is asked here, the answer teaches nothing about the world.",
        "tools": "A rehearsal tries whether tools are reached and paid for. It cannot tell how good their answers are.",
    }
    return [
        {"docid": name, "url": f"https://rehearsal.invalid/{name}", "title": f"Stand-in: {name}", "contents": text}
        for name, text in texts.items()
    ]


def documents_of(corpus: Path | None) -> list[dict[str, Any]]:
    """The first documents of a JSONL corpus, or our own where there is none on this machine.

    Raises:
        UserError: The real service would refuse a line.
    """
    if corpus is None or not corpus.is_file():
        return own_documents()
    documents: list[dict[str, Any]] = []
    with corpus.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if len(documents) == MOST_DOCUMENTS:
                break
            if line.strip():
                documents.append(_document(line, corpus, number))
    return documents


def _document(line: bytes, corpus: Path, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise UserError("expected one JSON object a line", file=corpus, line=number) from error
    if not isinstance(document, dict) or not body_of(document):
        raise UserError("expected a JSON object with text under contents, text or content", file=corpus, line=number)
    # The name the real service gives a document.
    return {**document, "docid": str(document.get("docid") or document.get("id") or number)}


def body_of(document: Mapping[str, Any]) -> str:
    """A document's text, wherever the real service looks for it."""
    return str(document.get("contents") or document.get("text") or document.get("content") or "")


class Ranking:
    """BM25 over documents; stands where LiteRegistry's server asks Lucene."""

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self._counts = {
            str(one["docid"]): Counter(_words(f"{one.get('title', '')} {body_of(one)}")) for one in documents
        }
        self._lengths = {name: sum(counts.values()) for name, counts in self._counts.items()}
        self._mean = max(sum(self._lengths.values()) / max(len(self._lengths), 1), 1)
        self._holding = Counter(word for counts in self._counts.values() for word in counts)

    def search(self, query: str, topn: int) -> list[tuple[str, float]]:
        """The best documents and their scores; those that share no word with the query are left out."""
        words = set(_words(query))
        scores = {name: self._score(name, words) for name in self._counts}
        best = sorted(scores, key=lambda name: (-scores[name], name))[:topn]
        return [(name, scores[name]) for name in best if scores[name] > 0]

    def _score(self, name: str, words: set[str]) -> float:
        counts, total = self._counts[name], len(self._counts)
        norm = _K1 * (1 - _B + _B * self._lengths[name] / self._mean)
        score = 0.0
        for word in words & counts.keys():
            rarity = math.log(1 + (total - self._holding[word] + 0.5) / (self._holding[word] + 0.5))
            score += rarity * counts[word] * (_K1 + 1) / (counts[word] + norm)
        return score


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
