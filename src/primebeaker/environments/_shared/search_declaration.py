"""The four families of search environments: their arguments, checks and how they are built.

``search`` with ``webterminal`` or with ``visit``, scored by exact match or by a judge; several names share a family.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from primebeaker.environments._shared.arguments import (
    REQUIRED,
    Argument,
    anything,
    flag,
    integer,
    number,
    text,
    url,
)
from primebeaker.environments._shared.behaviour import Reward
from primebeaker.environments._shared.build import build_environment, resolved_max_turns, rows_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.rows import RowFault, answer_text
from primebeaker.environments._shared.search_answers import EXACT_MATCH_REWARDS, call_metrics
from primebeaker.environments._shared.search_rewards import JUDGE_REWARDS, TERMINAL_JUDGE_REWARDS
from primebeaker.environments._shared.search_tools import SEARCH, VISIT, WEBTERMINAL
from primebeaker.errors import UserError
from primebeaker.runtime.templates import load_prompt_template, render_chat_template, template_variables

__all__ = ["JSON_FINAL_WARNING", "JUDGE_FINAL_WARNING", "SearchEnvironment", "search_environment"]

logger = logging.getLogger("primebeaker.environments")

_JINA = "https://r.jina.ai"
_DEFAULT_RUBRIC = "The final answer the model concluded is: {answer}"
_TEMPLATE_VALUES = ("question", "max_tool_calls", "max_turns", "terminal_truncation", "max_content_length")

JSON_FINAL_WARNING = (
    "That was the last allowed tool call. Do not call a tool again. Answer now: a short report with inline source URLs"
    ' that ends with one fenced json block holding only {"answer": "…"}.'
)
JUDGE_FINAL_WARNING = (
    "That was the last allowed tool call. Do not call a tool again. Answer now in plain text, from the evidence you"
    " have seen, with source URLs and without a JSON block."
)


class SearchEnvironment(NamedTuple):
    """One declared search environment."""

    spec: EnvironmentSpec
    load_environment: Callable[..., Any]


def search_environment(name: str, summary: str, *, visits: bool, judged: bool) -> SearchEnvironment:
    """Declare a search environment.

    Args:
        name: The canonical name.
        summary: One sentence.
        visits: Whether pages are read with ``visit``; else with ``webterminal``.
        judged: Whether a judge scores the answer; else exact match does.
    """
    spec = EnvironmentSpec(
        name=name,
        summary=summary,
        arguments=tuple(_arguments(visits=visits, judged=judged)),
        rewards=_rewards(visits=visits, judged=judged),
        tools=(SEARCH, VISIT if visits else WEBTERMINAL),
        check=_checks(judged=judged),
    )

    def build(values: Values) -> Any:
        return _build(spec, values, visits=visits, judged=judged)

    return SearchEnvironment(spec, factory(spec, build))


def _rewards(*, visits: bool, judged: bool) -> tuple[Reward, ...]:
    own: tuple[Reward, ...] = EXACT_MATCH_REWARDS
    if judged:
        own = JUDGE_REWARDS if visits else TERMINAL_JUDGE_REWARDS
    return (*own, *call_metrics("search", "visit" if visits else "webterminal"))


def _arguments(*, visits: bool, judged: bool) -> Iterable[Argument]:
    seconds, attempts = number(above=0), integer(least=1)
    yield Argument("dataset", text(), REQUIRED, "Path of the rows, or a Hub dataset id.")
    yield Argument("split", text(), "train", "Split to load.")
    if judged:
        yield Argument("judge_model_path", text(), REQUIRED, "Model the judge must use.")
    yield Argument("search_server_url", url(), "http://127.0.0.1:1212/search", "Gateway route of search and pages.")
    if not visits:
        yield Argument("terminal_server_url", url(), "http://127.0.0.1:1212/terminal", "Route of the terminal service.")
        yield Argument("jina_reader_url", url(), _JINA, "Accepted for old files; unused.")
    corpus = "localsearch:bc-v2-72k" if visits else None
    yield Argument("local_search_model_path", text(blank=True).or_null(), corpus, "Corpus of the search service.")
    yield Argument("timeout", seconds, 65, "Seconds of one request.")
    yield Argument("max_retries", attempts, 3, "Attempts of one request in all.")
    if visits:
        limit = integer(least=1).or_null()
        yield Argument("visit_max_content_length", limit, 64000, "Characters of a visited page that are shown.")
    else:
        limit = integer(least=1, decimal_text=True).or_null()
        yield Argument("terminal_truncation", limit, 2000, "Characters of each stream the terminal shows.")
        yield Argument("webterminal_max_content_length", limit, 64000, "Characters of a page that are kept.")
    calls = 20 if not visits and not judged else 150
    yield Argument("max_tool_calls", integer(least=1), calls, "Tool calls of a rollout.")
    yield Argument("max_turns", integer(least=0).or_null(), None, "Assistant turns; null or 0 is max_tool_calls + 1.")
    yield Argument("template_path", text(), _template(visits=visits, judged=judged), "Prompt template for questions.")
    fraction, default = number(above=0, most=1).or_null(), 0.1 if judged and not visits else None
    yield Argument("token_budget_warning_fraction", fraction, default, "Share of tokens left at which to warn.")
    yield Argument("turn_budget_warning_fraction", fraction, default, "Share of turns left at which to warn.")
    if judged:
        yield Argument(
            "judge_server_url", url().or_null(), None, "Judge route; null is /judge beside the search route."
        )
        yield Argument("judge_service_model_path", text(), "judge", "Pool of the judge service.")
        yield Argument("judge_timeout", seconds, 240, "Seconds of one judge request.")
        yield Argument("judge_max_retries", attempts, 3, "Attempts of one judge request in all.")
        yield Argument("judge_rubric_template", text(), _DEFAULT_RUBRIC, "What the judge checks, with {answer} in it.")
        yield Argument("validate_judge_profile", flag(), False, "Whether judge_model_path is looked up while loading.")
        if visits:
            yield Argument("judge_registry", anything(), None, "Accepted for old files; ignored.")
        else:
            yield Argument("tool_stderr_penalty", number(least=0), 0.05, "Penalty of a webterminal error.")
            penalty = number(most=0)
            yield Argument("missing_final_answer_penalty", penalty, -1.0, "Reward of a rollout without an answer.")
    yield Argument(
        "max_consecutive_infrastructure_errors",
        integer(least=1).or_null(),
        5,
        "Service failures in a row that end a rollout with an error; null is never.",
    )


def _template(*, visits: bool, judged: bool) -> str:
    name = "search-agent-visit" if visits else "search-agent"
    return f"templates/{name}-judge.json" if visits and judged else f"templates/{name}.json"


def _checks(*, judged: bool) -> Callable[[Values], Iterable[tuple[str, str]]]:
    def check(values: Values) -> Iterable[tuple[str, str]]:
        least = values["max_tool_calls"] + 1
        if values["max_turns"] and values["max_turns"] < least:
            yield "max_turns", f"must be at least {least}: one turn is kept for the final answer"
        if not judged:
            return
        if values["validate_judge_profile"]:
            wanted = "no catalog of judge profiles is installed to look judge_model_path up in; set it to false"
            yield "validate_judge_profile", f"{wanted} (a judge that does not know the model shows as judge_error)"
        if values["judge_server_url"] is None and not values["search_server_url"].endswith("/search"):
            yield "search_server_url", "does not end in /search, so set judge_server_url"
        if re.findall(r"[{}]", values["judge_rubric_template"].replace("{answer}", "")) or (
            "{answer}" not in values["judge_rubric_template"]
        ):
            yield "judge_rubric_template", "must contain {answer} and no other placeholder"

    return check


def _prompt_maker(values: Values, max_turns: int) -> Callable[[str], list[dict[str, Any]]]:
    path = values["template_path"]
    template = load_prompt_template(path)
    used = template_variables(template, file=path)
    for name in used:
        if name not in _TEMPLATE_VALUES:
            raise UserError(f"placeholder {{{name}}}; allowed are {', '.join(_TEMPLATE_VALUES)}", file=path)
    if "question" not in used:
        raise UserError("no placeholder {question}, so the model would never see the question", file=path)
    lengths = [values.get("webterminal_max_content_length"), values.get("visit_max_content_length")]
    numbers = {
        "max_tool_calls": values["max_tool_calls"],
        "max_turns": max_turns,
        "terminal_truncation": _shown(values.get("terminal_truncation")),
        "max_content_length": _shown(next((length for length in lengths if length is not None), None)),
    }

    def make(question: str) -> list[dict[str, Any]]:
        return [dict(message) for message in render_chat_template(template, question=question, **numbers)]

    return make


def _shown(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _require_answer(row: dict[str, Any]) -> dict[str, Any]:
    answer = row.get("answer")
    if isinstance(answer, bool) or answer_text(row) is None:
        raise RowFault("answer", "expected text that is not blank, or a number")
    return row


def _build(spec: EnvironmentSpec, values: Values, *, visits: bool, judged: bool) -> Any:
    from primebeaker.environments._shared.judging import (
        GatewayJudgeClient,
        JudgeAnswerRubric,
        JudgedSearchBehaviour,
    )
    from primebeaker.environments._shared.search_rollout import SearchBehaviour, search_services
    from primebeaker.environments._shared.services import ServicePool

    max_turns = resolved_max_turns(values["max_turns"], values["max_tool_calls"])
    rules = DatasetRules(
        prompt_columns=("prompt", "question"),
        needs_answer=False,
        template=_prompt_maker(values, max_turns),
        check=_require_answer,
    )
    rows = rows_of(spec.name, values, rules)
    if values.get("jina_reader_url", _JINA) != _JINA:
        logger.warning("%s: jina_reader_url is unused; pages come from search_server_url", spec.name)
    pool = ServicePool()
    warning = JUDGE_FINAL_WARNING if visits and judged else JSON_FINAL_WARNING
    services = search_services(values, pool)
    behaviour: SearchBehaviour
    if judged:
        client = GatewayJudgeClient(
            values["judge_server_url"] or values["search_server_url"].removesuffix("/search") + "/judge",
            service_model_path=values["judge_service_model_path"],
            timeout=values["judge_timeout"],
            max_retries=values["judge_max_retries"],
            pool=pool,
        )
        judge = JudgeAnswerRubric(
            judge_client=client,
            judge_model_path=values["judge_model_path"],
            rubric_template=values["judge_rubric_template"],
        )
        behaviour = JudgedSearchBehaviour(
            spec.name, rewards=spec.rewards, services=services, final_warning=warning, pool=pool, judge=judge
        )
    else:
        behaviour = SearchBehaviour(
            spec.name, rewards=spec.rewards, services=services, final_warning=warning, pool=pool
        )
    return build_environment(behaviour, rows, values, max_turns=max_turns, tool_defs=spec.tools)
