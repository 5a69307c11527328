"""The few replies a rehearsal's policy chooses from, derived from the rows of the data set.

The orchestrator writes them down once it has loaded the environments; inference reads them.  They are material of the
rehearsal, not weights: the weights say how likely each is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.fileio import atomic_write_json

__all__ = ["KINDS", "CandidateBook", "PromptText", "candidate_texts", "chosen_kind", "message_text", "prompt_key"]

#: The kinds of replies, in the order of the policy's columns. None is favoured at the start.
KINDS = (
    "verdict, right",
    "verdict, wrong",
    "JSON, right",
    "JSON, wrong",
    "bare answer",
    "malformed",
    "blank",
    "tool call, then verdict",
)
_TOOL = len(KINDS) - 1
_CODE = "<code>\n```python\nprint('A line of the rehearsal.')\n```\n</code>"
_FILE = "candidates.json"


class PromptText(NamedTuple):
    """A prompt, the answer of its row (None when it has none), and whether code in a reply is run."""

    messages: Sequence[Mapping[str, Any]]
    answer: str | None
    runs_code: bool = False


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a chat message whose content is a string, a list of parts, or null."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def prompt_key(messages: Iterable[Mapping[str, Any]]) -> str:
    """What names a prompt: its messages up to the first reply, whatever their form."""
    opening: list[list[str]] = []
    for message in messages:
        if message.get("role") in ("assistant", "tool"):
            break
        opening.append([str(message.get("role")), message_text(message)])
    return hashlib.sha256(json.dumps(opening).encode()).hexdigest()[:16]


def candidate_texts(answer: str | None, wrong: str, *, runs_code: bool = False) -> list[str]:
    """The candidate replies of a row, by kind, and after them what is said once a tool has answered.

    Args:
        answer: The row's answer; without one every kind but the malformed ones carries ``wrong``.
        wrong: Another answer.
        runs_code: Whether a block of code is how the environment's tool is called.
    """
    right = wrong if answer is None else answer
    reason = "A reply of the rehearsal."
    verdict = f"<feedback>{reason}</feedback><label>{right}</label>"
    return [
        verdict,
        f"<feedback>{reason}</feedback><label>{wrong}</label>",
        json.dumps({"feedback": reason, "label": right}, ensure_ascii=False),
        json.dumps({"feedback": reason, "label": wrong}, ensure_ascii=False),
        right,
        f"<label>{right}</label><label>{wrong}</label>",
        "\n",
        _CODE if runs_code else verdict,
        verdict,
    ]


def chosen_kind(texts: Sequence[str], reply: Mapping[str, Any]) -> int | None:
    """Which candidate an assistant message is, or None when it is none of them."""
    if reply.get("tool_calls"):
        return _TOOL
    text = message_text(reply)
    return next((kind for kind, candidate in enumerate(texts) if candidate == text), None)


@dataclass
class CandidateBook:
    """The candidates of every prompt, by prompt key, in a file that grows while the orchestrator loads environments."""

    directory: Path
    entries: dict[str, list[str]]
    answers: set[str] = field(default_factory=set)
    _seen: int = -1

    @classmethod
    def open(cls, directory: Path) -> CandidateBook:
        """The book of a rehearsal, as far as it has been written."""
        book = cls(directory, {})
        book.reload()
        return book

    def reload(self) -> None:
        """Read the file again if it changed."""
        path = self.directory / _FILE
        try:
            changed = path.stat().st_mtime_ns
            if changed != self._seen:
                self.entries = json.loads(path.read_text("utf-8"))
                self._seen = changed
        except FileNotFoundError:
            return

    def find(self, key: str) -> list[str] | None:
        """The candidates of a prompt, or None."""
        if key not in self.entries:
            self.reload()
        return self.entries.get(key)

    def add(self, prompts: Sequence[PromptText]) -> None:
        """Derive and store the candidates of ``prompts``; the wrong answer is another prompt's right one."""
        self.answers.update(prompt.answer for prompt in prompts if prompt.answer is not None)
        for prompt in prompts:
            others = sorted(answer for answer in self.answers if answer != prompt.answer)
            wrong = others[0] if others else f"not {prompt.answer}"
            self.entries[prompt_key(prompt.messages)] = candidate_texts(
                prompt.answer, wrong, runs_code=prompt.runs_code
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.directory / _FILE, self.entries)
