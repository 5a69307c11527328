"""What an environment does in a rollout, in plain data: the seam between our environments and Verifiers.

A :class:`Behaviour` knows messages as plain dicts and the rollout's state as a mapping.  The adapter
(``verifiers_adapter``) runs it inside Verifiers' classic API; nothing here knows that API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "Behaviour",
    "InfrastructureFault",
    "Message",
    "Reward",
    "RolloutFault",
    "State",
    "StopRule",
    "last_assistant",
    "plain_message",
]

#: One chat message: ``role``, ``content``, and what else it carries.
Message = dict[str, Any]

#: The state of one rollout, as Verifiers keeps it.
State = MutableMapping[str, Any]


class RolloutFault(Exception):
    """This rollout cannot go on (a bad row, a misconfiguration); other rollouts are not touched."""


class InfrastructureFault(RolloutFault):
    """A service failed: the rollout is dropped or retried, and never scored as if the model had failed."""


@dataclass(frozen=True)
class Reward:
    """One reward function or metric.

    Args:
        name: Its metric name.
        compute: From the environment object and the finished state to the value.
        formula: The rule in words, for listings.
        weight: Its share in the reward; 0 makes it a plain metric.
        despite_error: Whether it is computed for a rollout that ended in an error too (others are 0.0 then).
    """

    name: str
    compute: Callable[[Any, State], float]
    formula: str
    weight: float = 1.0
    despite_error: bool = False


class StopRule(NamedTuple):
    """A reason to end a rollout, checked before every model request.

    Args:
        name: What ``state["stop_condition"]`` says.
        check: From the environment object and the state to whether the rollout ends.
        priority: Rules with a higher one are asked first; Verifiers' own are 0, its error check is 100.
    """

    name: str
    check: Callable[[Any, State], bool]
    priority: int = 0


class Behaviour:
    """The rollout logic of one environment; the default is a single turn without tools.

    One object serves all rollouts of an environment at once, so whatever belongs to a rollout lives in its state.
    ``env`` is the environment object: settings are read from it at each use, since callers may change them.
    """

    rewards: Sequence[Reward] = ()
    stops: Sequence[StopRule] = ()

    async def setup(self, env: Any, state: State) -> None:
        """Prepare the state of a rollout."""

    async def observe(self, env: Any, state: State, message: Message) -> None:
        """Take note of a reply of the model, before the stop rules are asked."""

    def answers_last_turn(self, env: Any, state: State) -> bool:
        """Whether the reply of the last allowed turn is answered still; by default the turn limit ends the rollout."""
        return False

    async def respond(self, env: Any, state: State) -> list[Message]:
        """The messages that answer the last reply."""
        raise RolloutFault("a single-turn environment has no second turn")

    async def score(self, env: Any, state: State) -> None:
        """Ask services for what the rewards need; raises :class:`InfrastructureFault` when one fails."""

    async def cleanup(self, env: Any, state: State) -> None:
        """Drop what a finished, cancelled or timed-out rollout held."""

    async def teardown(self, env: Any) -> None:
        """Close what the environment holds open."""


def last_assistant(state: Mapping[str, Any]) -> Message | None:
    """The last message of the completion when it comes from the assistant, as a plain dict."""
    completion = state.get("completion") or []
    message = plain_message(completion[-1]) if completion else {}
    return message if message.get("role") == "assistant" else None


def plain_message(message: Any) -> Message:
    """A message object or mapping as a plain dict without null values."""
    data = message.model_dump() if hasattr(message, "model_dump") else dict(message)
    return {key: value for key, value in data.items() if value is not None}
