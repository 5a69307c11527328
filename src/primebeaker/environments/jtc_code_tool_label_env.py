"""``code-tool-label``: judge an output, running Python first if need be, with an XML verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from primebeaker.environments._shared.arguments import Argument, flag, integer, number, text, url
from primebeaker.environments._shared.behaviour import Reward, State, last_assistant
from primebeaker.environments._shared.build import build_environment, rows_of
from primebeaker.environments._shared.code_block import code_route_verdict
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.final_answer import gold_label
from primebeaker.environments._shared.thinking import visible_text
from primebeaker.environments._shared.tool_calls import said_text
from primebeaker.environments._shared.verdicts import Verdict

__all__ = ["SPEC", "load_environment"]


def _verdict(state: State) -> Verdict | None:
    message = last_assistant(state)
    return code_route_verdict(said_text(visible_text(message))) if message else None


def _valid_first_turn(env: Any, state: State) -> float:
    return float(state.get("jtc_first_route") in ("code", "final"))


def _valid_final_format(env: Any, state: State) -> float:
    return float(_verdict(state) is not None)


def _correct_final_label(env: Any, state: State) -> float:
    verdict, gold = _verdict(state), gold_label(state)
    return float(verdict is not None and gold is not None and verdict.label == gold)


def _check(values: Values) -> Iterable[tuple[str, str]]:
    if values["timeout"] <= values["max_runtime"]:
        yield "timeout", f"must be above max_runtime, which is {values['max_runtime']}"


SPEC = EnvironmentSpec(
    name="code-tool-label",
    summary="Judge an output, running Python over it first if need be, with <feedback> and <label>.",
    arguments=(
        Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
        Argument("split", text(), "train", "Split to load."),
        Argument("code_server_url", url(), "http://127.0.0.1:1212/python", "Route of the Python service."),
        Argument("timeout", number(above=0), 20, "Seconds of one request; must be above max_runtime."),
        Argument("max_retries", integer(least=1), 3, "Attempts of one request in all."),
        Argument("max_runtime", number(above=0), 2, "Seconds the code may run inside the service."),
        Argument(
            "code_output_truncation",
            integer(least=1, decimal_text=True).or_null(),
            None,
            "Characters of each stream that are shown; null is 64000.",
        ),
        Argument("tool_role", flag(), True, "Whether results are tool messages; else user messages."),
        Argument("max_turns", integer(least=1), 2, "Assistant turns; the last one is for the answer."),
        Argument(
            "max_consecutive_infrastructure_errors",
            integer(least=1).or_null(),
            1,
            "Service failures in a row that end a rollout with an error; null is never.",
        ),
    ),
    rewards=(
        Reward("valid_first_turn", _valid_first_turn, "1 if the first message is a code block or a verdict"),
        Reward("valid_final_format", _valid_final_format, "1 if the last assistant message is a well-formed verdict"),
        Reward("correct_final_label", _correct_final_label, "1 if it is and its label equals the answer"),
    ),
    check=_check,
)


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.code_rollout import CodeBehaviour, code_client
    from primebeaker.environments._shared.services import ServicePool

    pool = ServicePool()
    return build_environment(
        CodeBehaviour(SPEC.name, rewards=SPEC.rewards, pool=pool),
        rows_of(SPEC.name, values),
        values,
        max_turns=values["max_turns"],
        settings={"tool_clients": {"python": code_client(values, pool)}},
    )


load_environment = factory(SPEC, _build)
