"""``terminal-tool-label``: one terminal call a message over the judged output, then a JSON verdict."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.arguments import Argument, flag, integer, number, text, url
from primebeaker.environments._shared.behaviour import Reward, State
from primebeaker.environments._shared.build import ContentsLimit, build_environment, resolved_max_turns, rows_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.tool_rewards import FINAL_ANSWER_REWARDS
from primebeaker.environments._shared.tool_specs import tool_definition
from primebeaker.runtime.templates import load_prompt_template

__all__ = ["SPEC", "load_environment"]

#: Reward of calling the terminal although no call is left.
OVER_LIMIT_PENALTY = -1.0


def _valid_turn(env: Any, state: State) -> float:
    return float(state.get("jtc_terminal_route") in ("terminal", "final"))


def _invalid_trace(env: Any, state: State) -> float:
    if state.get("jtc_terminal_route") == "over_limit":
        return OVER_LIMIT_PENALTY
    return float(env.invalid_trace_penalty) if state.get("jtc_terminal_route") == "invalid" else 0.0


SPEC = EnvironmentSpec(
    name="terminal-tool-label",
    summary="Judge an output with one terminal call a message, then answer with a JSON verdict.",
    arguments=(
        Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
        Argument("split", text(), "train", "Split to load."),
        Argument("terminal_server_url", url(), "http://127.0.0.1:1212/terminal", "Route of the terminal service."),
        Argument("timeout", number(above=0), 20, "Seconds of one terminal request."),
        Argument("max_retries", integer(least=1), 3, "Attempts of one terminal call in all."),
        Argument(
            "terminal_truncation",
            integer(least=1, decimal_text=True).or_null(),
            2000,
            "Characters of each stream the terminal shows; null is the service's own limit.",
        ),
        Argument("tool_role", flag(), True, "Whether results are tool messages; else user messages."),
        Argument("max_terminal_calls", integer(least=1), 4, "Terminal calls of a rollout."),
        Argument("max_turns", integer(least=0).or_null(), None, "Assistant turns; null or 0 is the calls plus one."),
        Argument(
            "final_warning_template_path",
            text().or_null(),
            "templates/multistep-final-warning-harmony.json",
            "Template of the warning that comes with the last answer; null is a built-in text.",
        ),
        Argument("reasoning_only_final_penalty", number(most=0), -4.0, "Reward of a verdict in hidden reasoning only."),
        Argument("invalid_trace_penalty", number(most=0), -4.0, "Reward of an invalid last message."),
        Argument(
            "max_consecutive_infrastructure_errors",
            integer(least=1).or_null(),
            5,
            "Service failures in a row that end a rollout with an error; null is never.",
        ),
    ),
    rewards=(
        Reward(
            "valid_terminal_or_final_turn",
            _valid_turn,
            "1 if the last message is a terminal call within the limit or a final answer",
        ),
        Reward(
            "invalid_trace_penalty_reward",
            _invalid_trace,
            "invalid_trace_penalty if the last message is invalid; -1.0 for a call over the limit",
        ),
        *FINAL_ANSWER_REWARDS,
    ),
    tools=(tool_definition("terminal"),),
)


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.live import MOST_CONTENTS
    from primebeaker.environments._shared.services import ServicePool
    from primebeaker.environments._shared.terminal_rollout import TerminalBehaviour, warning_renderer
    from primebeaker.environments._shared.tool_setup import terminal_client

    path = values["final_warning_template_path"]
    warning = warning_renderer(None if path is None else load_prompt_template(path), path)
    limit = ContentsLimit(SPEC.name, MOST_CONTENTS)
    rows = rows_of(SPEC.name, values, DatasetRules(check=limit.check))
    limit.warn()
    pool = ServicePool()
    return build_environment(
        TerminalBehaviour(SPEC.name, rewards=SPEC.rewards, pool=pool, warning=warning),
        rows,
        values,
        max_turns=resolved_max_turns(values["max_turns"], values["max_terminal_calls"]),
        tool_defs=[tool_definition("terminal")],
        settings={"tool_names": frozenset({"terminal"}), "tool_clients": {"terminal": terminal_client(values, pool)}},
    )


load_environment = factory(SPEC, _build)
