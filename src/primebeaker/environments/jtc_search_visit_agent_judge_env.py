"""``search-visit-agent-judge``: web search and page visits, scored by a judge."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.search_declaration import JUDGE_FINAL_WARNING, search_environment

__all__ = ["JUDGE_FINAL_TOOL_CALL_WARNING", "SPEC", "load_environment"]

#: What comes with the answer to the last allowed tool call.
JUDGE_FINAL_TOOL_CALL_WARNING = JUDGE_FINAL_WARNING

SPEC, load_environment = search_environment(
    "search-visit-agent-judge",
    "Answer a question by web search, visiting pages; scored by a judge.",
    visits=True,
    judged=True,
)


def __getattr__(name: str) -> Any:
    """``GatewayJudgeClient`` and ``JudgeAnswerRubric``, which need the tool clients, at their first use."""
    if name in ("GatewayJudgeClient", "JudgeAnswerRubric"):
        from primebeaker.environments._shared import judging

        return getattr(judging, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
