"""The policies of a rehearsal: a bandit that learns from the environment's reward, and a script.

The bandit is a softmax over the candidate replies of each prompt.  What a kind of reply earned for one prompt also
moves a row shared by all prompts, so that a handful of steps is enough to see the reward work.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.errors import UserError
from primebeaker.json_keys import unique_keys
from primebeaker.rehearsal.candidates import KINDS, message_text
from primebeaker.rehearsal.safetensors import Table, decode, encode

__all__ = ["BanditPolicy", "Sample", "ScriptRule", "first_match", "load_script"]

_TENSOR = "policy.logits"
_SHARED = ""


class Sample(NamedTuple):
    """One rollout as the trainer sees it: the prompt, which candidate was said, and what it earned."""

    key: str
    kind: int
    reward: float


@dataclass
class BanditPolicy:
    """Logits of every candidate, by prompt key; the key ``""`` is shared by all prompts.

    Attributes:
        version: The training step this policy is the result of.
        logits: Prompt key to one number a kind of reply.
        baseline: Mean reward so far, what a reward is compared with.
        seen: Rollouts learnt from so far.
    """

    version: int = 0
    logits: dict[str, list[float]] = field(default_factory=dict)
    baseline: float = 0.0
    seen: int = 0

    def probabilities(self, key: str) -> list[float]:
        """How likely each kind of reply is for the prompt."""
        shared, own = self._row(_SHARED), self._row(key)
        scores = [first + second for first, second in zip(shared, own, strict=True)]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = sum(weights)
        return [weight / total for weight in weights]

    def choose(self, key: str, seed: str) -> int:
        """Draw one kind of reply; the same seed draws the same."""
        draw = random.Random(f"{self.version}:{key}:{seed}").random()  # noqa: S311  a seeded draw, not a secret
        probabilities = self.probabilities(key)
        for kind, probability in enumerate(probabilities):
            draw -= probability
            if draw < 0:
                return kind
        return len(probabilities) - 1

    def reinforce(self, samples: Sequence[Sample], *, learning_rate: float) -> BanditPolicy:
        """The policy after one REINFORCE step: ``logit += rate × (reward − baseline) × (chosen − probability)``."""
        logits = {key: list(row) for key, row in self.logits.items()}
        total = self.baseline * self.seen + sum(sample.reward for sample in samples)
        seen = self.seen + len(samples)
        baseline = total / seen if seen else 0.0
        for sample in samples:
            advantage = learning_rate * (sample.reward - baseline)
            for kind, probability in enumerate(self.probabilities(sample.key)):
                gradient = advantage * ((kind == sample.kind) - probability)
                for row in (_SHARED, sample.key):
                    logits.setdefault(row, [0.0] * len(KINDS))[kind] += gradient
        return BanditPolicy(self.version + 1, logits, baseline, seen)

    def entropy(self, keys: Iterable[str]) -> float:
        """Mean entropy of the choice over some prompts, in nats."""
        values = [-sum(p * math.log(p) for p in self.probabilities(key) if p > 0) for key in keys]
        return sum(values) / len(values) if values else 0.0

    def to_bytes(self) -> bytes:
        """The policy as a safetensors file."""
        keys = sorted({_SHARED, *self.logits})
        facts = {"version": self.version, "baseline": self.baseline, "seen": self.seen, "prompts": keys}
        return encode(
            _TENSOR,
            Table([self._row(key) for key in keys], {"rehearsal": json.dumps(facts), "kinds": json.dumps(KINDS)}),
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> BanditPolicy:
        """Read back a policy.

        Raises:
            ValueError: The content is damaged or of another kind.
        """
        table = decode(_TENSOR, content)
        try:
            facts = json.loads(table.metadata["rehearsal"])
            logits = dict(zip(facts["prompts"], table.rows, strict=True))
            return cls(facts["version"], logits, facts["baseline"], facts["seen"])
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"not a policy of a rehearsal: {error}") from error

    def _row(self, key: str) -> list[float]:
        return self.logits.get(key) or [0.0] * len(KINDS)


class ScriptRule(NamedTuple):
    """One rule of a script: a text to look for in the last message, and what to say or call then."""

    match: str
    reply: str | None
    tool_calls: Sequence[Mapping[str, Any]]


def load_script(path: Path) -> list[ScriptRule]:
    """The rules of a scripted policy: a JSON list of ``{"match", "reply" | "tool_calls"}``.

    Raises:
        UserError: The file is missing or a rule has another form.
    """
    try:
        values = json.loads(path.read_text("utf-8"), object_pairs_hook=unique_keys)
    except (OSError, ValueError) as error:
        raise UserError(f"not a readable script: {error}", file=path) from error
    rules = []
    for number, value in enumerate(values if isinstance(values, list) else [values], 1):
        known = isinstance(value, dict) and isinstance(value.get("match"), str)
        if not known or ("reply" in value) == ("tool_calls" in value):
            raise UserError(f"rule {number}: expected match and one of reply, tool_calls", file=path)
        rules.append(ScriptRule(value["match"], value.get("reply"), value.get("tool_calls", ())))
    return rules


def first_match(rules: Sequence[ScriptRule], messages: Sequence[Mapping[str, Any]]) -> ScriptRule:
    """The first rule whose text occurs in the last message; without one the last message is echoed."""
    text = message_text(messages[-1]) if messages else ""
    for rule in rules:
        if rule.match in text:
            return rule
    return ScriptRule("", text, ())
