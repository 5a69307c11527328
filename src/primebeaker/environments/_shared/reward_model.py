"""Scoring a reply with a sequence classifier behind the gateway."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from literegistry_tool_client import RewardModelClient

from primebeaker.environments._shared.behaviour import (
    Behaviour,
    InfrastructureFault,
    Reward,
    State,
    last_assistant,
    plain_message,
)
from primebeaker.environments._shared.calibration import calibration_of
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.math_answers import MathGrader
from primebeaker.environments._shared.services import OutageLog, ServicePool, call_service, pooled
from primebeaker.environments._shared.thinking import visible_text

__all__ = ["RewardModelBehaviour", "Scale", "UnusableReply", "probability_of", "scale_of"]


class UnusableReply(Exception):
    """A reply of the classifier that breaks its rules; the text says how."""


@dataclass(frozen=True)
class Scale:
    """From the probability of the positive class to the score.

    Args:
        transform: ``identity``, or ``logit`` for log-odds.
        epsilon: Probabilities are kept this far from 0 and 1 for log-odds.
        mean: What is subtracted, 0 unless scores are centred.
        std: What the difference is divided by.
        centered: Whether scores are centred.
    """

    transform: str
    epsilon: float
    mean: float
    std: float
    centered: bool

    def raw(self, probability: float) -> float:
        """The score before standardisation."""
        if self.transform == "identity":
            return float(probability)
        clipped = min(max(probability, self.epsilon), 1 - self.epsilon)
        return math.log(clipped) - math.log(1 - clipped)

    def score(self, probability: float) -> float:
        """The standardised score."""
        return (self.raw(probability) - self.mean) / self.std


def scale_of(values: Values) -> Scale:
    """The scale that the arguments ask for: given numbers, else those of the calibration table, else 0 and 1."""
    known = calibration_of(values["reward_model_path"])
    mean, std = values["standardization_mean"], values["standardization_std"]
    if mean is None:
        mean = known.mean if known else 0.0
    if std is None:
        std = known.std if known else 1.0
    centered = values["center_rewards"]
    return Scale(
        values["score_transform"], values["logit_epsilon"], float(mean) if centered else 0.0, float(std), centered
    )


def probability_of(reply: Any, positive_class_index: int) -> float:
    """The probability of the positive class in a classifier's reply.

    Raises:
        UnusableReply: The reply has another shape.
    """
    data = reply.get("data") if isinstance(reply, Mapping) else None
    if not isinstance(data, list) or len(data) != 1 or not isinstance(data[0], Mapping):
        raise UnusableReply("data is not a list of exactly one object")
    classes = data[0].get("probs")
    if not isinstance(classes, list) or not classes:
        raise UnusableReply("data[0].probs is not a list of probabilities")
    if positive_class_index >= len(classes):
        raise UnusableReply(
            f"positive_class_index {positive_class_index} is outside the {len(classes)} returned classes"
        )
    value = classes[positive_class_index]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UnusableReply(f"probs[{positive_class_index}] is {value!r}, which is no number from 0 to 1")
    return float(value)


class RewardModelBehaviour(Behaviour):
    """One reply, scored by the classifier.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        values: The checked arguments.
    """

    def __init__(self, environment: str, *, rewards: Sequence[Reward], values: Values) -> None:
        self.environment = environment
        self.rewards = rewards
        self.scale = scale_of(values)
        self.pool = ServicePool()
        self.outages = OutageLog(environment)
        self.grader = MathGrader() if values["log_math_accuracy"] else None
        self.client = pooled(
            RewardModelClient,
            self.pool,
            values["reward_model_path"],
            values["reward_server_url"],
            timeout=values["reward_timeout"],
        )

    async def score(self, env: Any, state: State) -> None:
        """Ask the classifier, and keep what was asked and answered in ``state["info"]["reward_model"]``."""
        messages = _conversation(state)
        kwargs = env.chat_template_kwargs
        request: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": False,
            "model": env.reward_model_path.strip(),
        }
        if kwargs is not None:
            request["chat_template_kwargs"] = kwargs
        try:
            reply, probability = await self._probability(env, messages, kwargs)
        except UnusableReply as fault:
            _record(state, {"request": request, "error": str(fault)})
            self.outages.note("reward model", state["trajectory_id"])
            raise InfrastructureFault(f"the reward model failed: {fault}") from None
        scale = self.scale
        _record(
            state,
            {
                "request": request,
                "response": reply,
                "positive_class_index": env.positive_class_index,
                "probability": probability,
                "score_transform": scale.transform,
                "raw_score": scale.raw(probability),
                "standardization": {"mean": scale.mean, "std": scale.std, "centered": scale.centered},
                "score": scale.score(probability),
            },
        )
        if self.grader is not None:
            state["primebeaker_math_accuracy"] = await self.grader.accuracy(_reply_text(state), state.get("answer"))

    async def _probability(
        self, env: Any, messages: list[dict[str, Any]], kwargs: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], float]:
        """The reply and the probability in it; a reply that breaks the rules is asked for again."""

        class Again(RuntimeError):
            pass

        broken: list[str] = []

        async def request() -> Any:
            reply = await self.client.execute(messages=messages, chat_template_kwargs=kwargs)
            try:
                probability_of(reply, env.positive_class_index)
            except UnusableReply as fault:
                broken.append(str(fault))
                raise Again(str(fault)) from None
            broken.clear()
            return reply

        async with self.pool.held():
            outcome = await call_service(
                "reward model", request, slot=self.pool.scorer_slot(), attempts=env.reward_max_retries
            )
        if outcome.kind != "result":
            raise UnusableReply(broken[-1] if broken else str(outcome.output["stderr"]))
        return outcome.output, probability_of(outcome.output, env.positive_class_index)

    async def teardown(self, env: Any) -> None:
        """Close the connections and end the workers."""
        await self.pool.close()
        if self.grader is not None:
            self.grader.close()


def _conversation(state: State) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for message in map(plain_message, state["prompt"]):
        kept = {key: value for key, value in message.items() if key in ("role", "content", "name")}
        messages.append({"content": "", **kept})
    reply = last_assistant(state) or {}
    content = reply.get("content")
    messages.append({"role": "assistant", "content": "" if content is None else content})
    return messages


def _reply_text(state: State) -> str:
    return visible_text(last_assistant(state) or {})


def _record(state: State, record: dict[str, Any]) -> None:
    info = state.get("info")
    state["info"] = {**(info if isinstance(info, Mapping) else {}), "reward_model": record}
