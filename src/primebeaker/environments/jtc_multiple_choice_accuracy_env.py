"""``multiple-choice-accuracy``: one turn, no reward, and the accuracy of the option that was named."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.arguments import Argument, text
from primebeaker.environments._shared.behaviour import Behaviour, Reward, State, last_assistant
from primebeaker.environments._shared.build import build_environment, rows_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.options import option_of
from primebeaker.environments._shared.rows import RowFault, answer_text
from primebeaker.environments._shared.thinking import visible_text
from primebeaker.environments._shared.tool_calls import said_text

__all__ = ["SPEC", "load_environment", "option_accuracy", "require_option"]


def option_accuracy(env: Any, state: State) -> float:
    """1 when the option of the last assistant text and that of the answer exist and are equal."""
    message = last_assistant(state)
    named = option_of(said_text(visible_text(message))) if message else None
    gold = option_of(answer_text({"answer": state.get("answer")}) or "")
    return float(named is not None and named == gold)


def require_option(row: dict[str, Any]) -> dict[str, Any]:
    """Check that the answer of a row names an option; without one it could never be right."""
    answer = answer_text(row)
    if answer is not None and option_of(answer) is None:
        raise RowFault("answer", f"{answer[:60]!r} names no option from A to J")
    return row


SPEC = EnvironmentSpec(
    name="multiple-choice-accuracy",
    summary="Answer a multiple-choice question in one turn; measures accuracy, the reward is always 0.",
    arguments=(
        Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
        Argument("split", text(), "validation", "Split to load."),
    ),
    rewards=(
        Reward(
            "accuracy",
            option_accuracy,
            "1 if the option (A to J) of the last assistant text equals that of the answer",
            weight=0.0,
        ),
    ),
)


class MultipleChoiceBehaviour(Behaviour):
    """One reply, measured by the option it names."""

    rewards = SPEC.rewards


def _build(values: Values) -> Any:
    rows = rows_of(SPEC.name, values, DatasetRules(check=require_option))
    return build_environment(MultipleChoiceBehaviour(), rows, values)


load_environment = factory(SPEC, _build)
