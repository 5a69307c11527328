"""Search environments built from clients a caller already has, as JTC's rollout workflow does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.judging import JudgeAnswerRubric, JudgedSearchBehaviour
from primebeaker.environments._shared.search_answers import EXACT_MATCH_REWARDS, call_metrics
from primebeaker.environments._shared.search_declaration import JSON_FINAL_WARNING
from primebeaker.environments._shared.search_rewards import JUDGE_REWARDS, TERMINAL_JUDGE_REWARDS
from primebeaker.environments._shared.search_rollout import SearchBehaviour, SearchServices
from primebeaker.environments._shared.search_tools import SEARCH, VISIT, WEBTERMINAL
from primebeaker.environments._shared.services import ServicePool
from primebeaker.environments._shared.tool_setup import fetching
from primebeaker.environments._shared.verifiers_adapter import AdaptedEnvironment

__all__ = ["SearchAgentEnv", "SearchVisitAgentEnv", "WebTerminalJudgeSearchAgentEnv"]

_SETTINGS: Mapping[str, Any] = {
    "token_budget_warning_fraction": None,
    "turn_budget_warning_fraction": None,
    "max_consecutive_infrastructure_errors": 5,
    "visit_max_content_length": None,
    "tool_stderr_penalty": 0.05,
    "missing_final_answer_penalty": -1.0,
}


class _SearchEnv(AdaptedEnvironment):
    def __init__(
        self,
        *,
        dataset: Any,
        services: SearchServices,
        tools: Sequence[Mapping[str, Any]],
        rewards: Sequence[Any],
        judge: JudgeAnswerRubric | None,
        max_tool_calls: int,
        max_turns: int | None,
        final_tool_call_warning: str,
        **settings: Any,
    ) -> None:
        pool = ServicePool()
        keywords: dict[str, Any] = {
            "rewards": rewards,
            "services": services,
            "final_warning": final_tool_call_warning,
            "pool": pool,
        }
        name = type(self).__name__
        behaviour = JudgedSearchBehaviour(name, judge=judge, **keywords) if judge else SearchBehaviour(name, **keywords)
        if "example_id" not in dataset.column_names:
            dataset = dataset.add_column("example_id", list(range(len(dataset))))
        super().__init__(
            behaviour=behaviour,
            rows=dataset,
            tool_defs=tools,
            max_turns=max_turns or max_tool_calls + 1,
            settings={**_SETTINGS, **settings, "max_tool_calls": max_tool_calls},
        )


class SearchAgentEnv(_SearchEnv):
    """``search`` and ``webterminal``, scored by exact match.

    Args:
        dataset: A ``datasets.Dataset`` of rows.
        search_client: A LiteRegistry search client.
        webterminal_client: A LiteRegistry browsing terminal client.
        max_tool_calls: Tool calls of a rollout.
        max_turns: Assistant turns; null is one more than the calls.
        final_tool_call_warning: What comes with the answer to the last allowed call.
    """

    def __init__(
        self,
        *,
        dataset: Any,
        search_client: Any,
        webterminal_client: Any,
        max_tool_calls: int = 20,
        max_turns: int | None = None,
        final_tool_call_warning: str = JSON_FINAL_WARNING,
        **keywords: Any,
    ) -> None:
        given = {"rewards": (*EXACT_MATCH_REWARDS, *call_metrics("search", "webterminal")), "judge": None, **keywords}
        super().__init__(
            dataset=dataset,
            services=SearchServices(search_client, fetching(webterminal_client.fetch_client, 1), webterminal_client),
            tools=(SEARCH, WEBTERMINAL),
            max_tool_calls=max_tool_calls,
            max_turns=max_turns,
            final_tool_call_warning=final_tool_call_warning,
            **given,
        )


class WebTerminalJudgeSearchAgentEnv(SearchAgentEnv):
    """``search`` and ``webterminal``, scored by a judge, with warnings when a budget runs low.

    Args:
        judge_rubric: The judge.
        token_budget_warning_fraction: Share of the completion tokens left at which to warn.
        turn_budget_warning_fraction: Share of the turns left at which to warn.
        keywords: As for :class:`SearchAgentEnv`.
    """

    def __init__(
        self,
        *,
        judge_rubric: JudgeAnswerRubric,
        token_budget_warning_fraction: float | None = 0.1,
        turn_budget_warning_fraction: float | None = 0.1,
        **keywords: Any,
    ) -> None:
        super().__init__(
            rewards=(*TERMINAL_JUDGE_REWARDS, *call_metrics("search", "webterminal")),
            judge=judge_rubric,
            token_budget_warning_fraction=token_budget_warning_fraction,
            turn_budget_warning_fraction=turn_budget_warning_fraction,
            **keywords,
        )


class SearchVisitAgentEnv(_SearchEnv):
    """``search`` and ``visit``, scored by exact match, or by the judge that is given as ``rubric``.

    Args:
        dataset: A ``datasets.Dataset`` of rows.
        search_client: A LiteRegistry search client.
        fetch_client: A LiteRegistry fetch client; its ``max_content_length`` is what a visit shows.
        max_tool_calls: Tool calls of a rollout.
        max_turns: Assistant turns; null is one more than the calls.
        final_tool_call_warning: What comes with the answer to the last allowed call.
        rubric: The judge, if any.
    """

    def __init__(
        self,
        *,
        dataset: Any,
        search_client: Any,
        fetch_client: Any,
        max_tool_calls: int = 150,
        max_turns: int | None = None,
        final_tool_call_warning: str = JSON_FINAL_WARNING,
        rubric: JudgeAnswerRubric | None = None,
    ) -> None:
        super().__init__(
            dataset=dataset,
            services=SearchServices(search_client, fetching(fetch_client, 1)),
            tools=(SEARCH, VISIT),
            rewards=(*(JUDGE_REWARDS if rubric else EXACT_MATCH_REWARDS), *call_metrics("search", "visit")),
            judge=rubric,
            max_tool_calls=max_tool_calls,
            max_turns=max_turns,
            final_tool_call_warning=final_tool_call_warning,
            visit_max_content_length=fetch_client.max_content_length,
        )
