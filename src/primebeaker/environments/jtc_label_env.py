"""``label``: judge an output in one turn, with an XML verdict and no tools."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.arguments import Argument, text
from primebeaker.environments._shared.behaviour import Behaviour, Reward, State, last_assistant
from primebeaker.environments._shared.build import build_environment, rows_of
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.rows import answer_text
from primebeaker.environments._shared.thinking import visible_text
from primebeaker.environments._shared.tool_calls import said_text
from primebeaker.environments._shared.verdicts import Verdict, normalize_label, xml_verdict

__all__ = ["SPEC", "load_environment"]


def _verdict(state: State) -> Verdict | None:
    message = last_assistant(state)
    return xml_verdict(said_text(visible_text(message))) if message else None


def _valid_format(env: Any, state: State) -> float:
    return float(_verdict(state) is not None)


def _correct_label(env: Any, state: State) -> float:
    verdict = _verdict(state)
    gold = normalize_label(answer_text({"answer": state.get("answer")}))
    return float(verdict is not None and gold is not None and verdict.label == gold)


class LabelBehaviour(Behaviour):
    """One reply, scored by its form and its label."""

    rewards = (
        Reward("valid_format", _valid_format, "1 if the last assistant text is a well-formed XML verdict, else 0"),
        Reward("correct_label", _correct_label, "1 if it is well-formed and its label equals the answer, else 0"),
    )


SPEC = EnvironmentSpec(
    name="label",
    summary="Judge an output in one turn with <feedback> and <label>; no tools.",
    arguments=(
        Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
        Argument("split", text(), "train", "Split to load."),
    ),
    rewards=LabelBehaviour.rewards,
)


def _build(values: Values) -> Any:
    return build_environment(LabelBehaviour(), rows_of(SPEC.name, values), values)


load_environment = factory(SPEC, _build)
