"""``search-agent-webterminal-judge``: web search and a page terminal, scored by a judge."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.search_declaration import search_environment

__all__ = ["SPEC", "load_environment"]

SPEC, load_environment = search_environment(
    "search-agent-webterminal-judge",
    "Answer a question by web search, reading pages through a terminal; scored by a judge.",
    visits=False,
    judged=True,
)


def __getattr__(name: str) -> Any:
    """``WebTerminalJudgeSearchAgentEnv``, which needs Verifiers, at its first use."""
    if name == "WebTerminalJudgeSearchAgentEnv":
        from primebeaker.environments._shared.search_classes import WebTerminalJudgeSearchAgentEnv

        return WebTerminalJudgeSearchAgentEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
