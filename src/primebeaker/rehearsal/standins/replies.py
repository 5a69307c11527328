"""What a stand-in model says to a chat request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from primebeaker.rehearsal.candidates import KINDS, CandidateBook, chosen_kind, message_text, prompt_key
from primebeaker.rehearsal.policy import BanditPolicy, ScriptRule, first_match

__all__ = ["Bandit", "Reply", "Responder", "Script", "tokens_of"]

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_FILLERS: Mapping[str, Any] = {
    "string": "echo rehearsal",
    "integer": 1,
    "number": 1.0,
    "boolean": False,
    "array": [],
    "object": {},
}


@dataclass(frozen=True)
class Reply:
    """An assistant message: its text, or the tool calls it makes."""

    text: str
    tool_calls: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


class Responder(Protocol):
    """Answers one chat request; ``choice`` is the number of the answer within it (``n`` > 1)."""

    def reply(self, request: Mapping[str, Any], choice: int) -> Reply:
        """The answer."""
        ...


class Bandit:
    """Draws a candidate reply from the policy; the request's ``seed`` makes the draw repeatable."""

    def __init__(self, book: CandidateBook, seed: int) -> None:
        self.policy = BanditPolicy()
        self._book = book
        self._seed = seed
        self._asked: dict[str, int] = {}

    def reply(self, request: Mapping[str, Any], choice: int) -> Reply:
        """The drawn candidate; within a conversation, what its first reply goes on with."""
        messages = request["messages"]
        key = prompt_key(messages)
        texts = self._book.find(key)
        if texts is None:
            return Reply(f"The rehearsal knows no reply to: {message_text(messages[-1])[:200]}")
        tool = len(KINDS) - 1
        earlier = next((message for message in messages if message.get("role") == "assistant"), None)
        if earlier is not None:
            kind = chosen_kind(texts, earlier)
            return Reply(texts[-1] if kind in (None, tool) else texts[kind])
        kind = self._draw(request, key, choice)
        tools = request.get("tools")
        if kind == tool and tools:
            return Reply("", (_call(tools[0], key),))
        return Reply(texts[kind])

    def _draw(self, request: Mapping[str, Any], key: str, choice: int) -> int:
        if request.get("temperature") == 0:
            probabilities = self.policy.probabilities(key)
            return probabilities.index(max(probabilities))
        seed = request.get("seed")
        if seed is None:
            # Without a seed repeated questions must still be able to differ.
            self._asked[key] = self._asked.get(key, 0) + 1
            seed = f"asked {self._asked[key]}"
        return self.policy.choose(key, f"{self._seed}:{seed}:{choice}")


class Script:
    """Answers from a file of rules."""

    def __init__(self, rules: Sequence[ScriptRule]) -> None:
        self._rules = rules

    def reply(self, request: Mapping[str, Any], choice: int) -> Reply:
        """What the first matching rule says."""
        rule = first_match(self._rules, request["messages"])
        calls = [
            {
                "id": call.get("id", f"call_{number}"),
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))},
            }
            for number, call in enumerate(rule.tool_calls)
        ]
        return Reply(rule.reply or "", calls)


def tokens_of(text: str) -> list[str]:
    """The text cut into pieces that stand for tokens; joined they give the text."""
    return _TOKEN.findall(text)


def _call(tool: Mapping[str, Any], key: str) -> dict[str, Any]:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties", {})
    arguments = {name: _filler(properties.get(name, {})) for name in parameters.get("required", [])}
    return {
        "id": f"call_{key}",
        "type": "function",
        "function": {"name": function.get("name", ""), "arguments": json.dumps(arguments)},
    }


def _filler(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return _FILLERS.get(str(schema.get("type", "string")), "echo rehearsal")
