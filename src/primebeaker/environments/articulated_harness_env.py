"""``articulated-harness``: judge an output by several rubrics, one submission each."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from primebeaker.environments import jtc_tool_label_env
from primebeaker.environments._shared.arguments import Argument, number, text_list
from primebeaker.environments._shared.behaviour import Reward, State
from primebeaker.environments._shared.build import ContentsLimit, build_environment, resolved_max_turns, rows_of
from primebeaker.environments._shared.dataset import AllOrNone, DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.gold import gold_labels
from primebeaker.environments._shared.submissions import expected_rubric_ids
from primebeaker.environments._shared.tool_rewards import TOOL_METRICS, TOOL_REWARDS
from primebeaker.environments._shared.tool_specs import tool_definition

__all__ = ["SPEC", "load_environment"]

logger = logging.getLogger("primebeaker.environments")


def _completion(env: Any, state: State) -> float:
    expected = expected_rubric_ids(state["input"])
    if not expected:
        return 0.0
    submitted = state.get("jtc_submit_submissions") or {}
    gold = gold_labels(state["input"])
    if gold.given:
        right = sum(
            id in submitted and submitted[id]["label"].strip().lower() == gold.labels.get(id) for id in expected
        )
    else:
        right = sum(id in submitted for id in expected)
    return float(env.rubric_completion_reward_coef * right / len(expected))


def _missing(env: Any, state: State) -> float:
    expected = expected_rubric_ids(state["input"])
    if not expected or not gold_labels(state["input"]).given:
        return 0.0
    submitted = state.get("jtc_submit_submissions") or {}
    missing = sum(id not in submitted for id in expected)
    return float(-env.missing_rubric_penalty_coef * missing / len(expected))


def _arguments() -> tuple[Argument, ...]:
    tools = Argument(
        "tools", text_list(of=("terminal", "submit")), ("terminal", "submit"), "Offered tools, with submit."
    )
    return (
        *(tools if argument.name == "tools" else argument for argument in jtc_tool_label_env.TOOL_ARGUMENTS),
        Argument("rubric_completion_reward_coef", number(least=0), 1.0, "Reward of submitting every rubric right."),
        Argument("missing_rubric_penalty_coef", number(least=0), 1.0, "Penalty of submitting no rubric."),
    )


def _check(values: Values) -> Iterable[tuple[str, str]]:
    if "submit" not in values["tools"] and not (values["tools"] == () and values["max_tool_calls"] == 0):
        yield "tools", "must contain 'submit'"
    if values["browser_aware_terminal"] and "terminal" not in values["tools"]:
        yield "browser_aware_terminal", "needs 'terminal' in tools"
    if values["local_search_model_path"] is not None and values["local_search_server_url"] is None:
        yield "local_search_model_path", "needs local_search_server_url"


SPEC = EnvironmentSpec(
    name="articulated-harness",
    summary="Judge an output by several rubrics with tools, submitting one judgment for each.",
    arguments=_arguments(),
    rewards=(
        *TOOL_REWARDS,
        Reward(
            "rubric_completion_reward",
            _completion,
            "rubric_completion_reward_coef * ids whose submitted label equals gold / ids; without gold, submitted ids",
        ),
        Reward(
            "missing_rubric_penalty",
            _missing,
            "-missing_rubric_penalty_coef * ids not submitted / ids; 0 without gold",
        ),
        *TOOL_METRICS,
    ),
    tools=(tool_definition("terminal"), tool_definition("submit")),
    check=_check,
)


class _GoldCheck:
    """Counts gold entries that cannot be used and rubrics that have no gold, and warns once a load."""

    def __init__(self) -> None:
        self._skipped = 0
        self._without = 0

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        expected, gold = expected_rubric_ids(row), gold_labels(row)
        self._skipped += gold.skipped
        if gold.given:
            self._without += sum(id not in gold.labels for id in expected)
        return row

    def warn(self) -> None:
        if self._skipped:
            logger.warning("%s: %d gold_submissions entries are not usable and are skipped", SPEC.name, self._skipped)
        if self._without:
            logger.warning("%s: %d rubric ids have no gold label and can never be right", SPEC.name, self._without)


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.harness_rollout import HarnessBehaviour
    from primebeaker.environments._shared.live import MOST_CONTENTS
    from primebeaker.environments._shared.services import ServicePool
    from primebeaker.environments._shared.tool_setup import build_tool_clients

    limit, gold = ContentsLimit(SPEC.name, MOST_CONTENTS), _GoldCheck()
    ids = AllOrNone(
        "expected_rubric_ids",
        lambda row: bool(expected_rubric_ids(row)),
        "no row has rubric ids; they must come with each rollout's input",
    )
    rules = DatasetRules(needs_answer=False, check=lambda row: gold.check(limit.check(row)), all_or_none=ids)
    rows = rows_of(SPEC.name, values, rules)
    limit.warn()
    gold.warn()
    jtc_tool_label_env.warn_without_page_service(SPEC.name, values)
    pool = ServicePool()
    behaviour = HarnessBehaviour(
        SPEC.name,
        rewards=SPEC.rewards,
        specs=jtc_tool_label_env.TOOL_SPECS,
        render=jtc_tool_label_env.render_tool_content,
        pool=pool,
    )
    tools = values["tools"]
    return build_environment(
        behaviour,
        rows,
        values,
        max_turns=resolved_max_turns(values["max_turns"], values["max_tool_calls"]),
        tool_defs=jtc_tool_label_env.offered_definitions(tools, browser_aware=values["browser_aware_terminal"]),
        settings={
            "tool_names": frozenset(tools),
            "tool_clients": build_tool_clients(tools, values, pool),
            "final_warning": values["final_warning"] or jtc_tool_label_env.FINAL_WARNING,
        },
    )


load_environment = factory(SPEC, _build)
