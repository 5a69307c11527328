"""``search-visit-agent-judge``: web search and page visits, scored by a judge."""

from __future__ import annotations

from primebeaker.environments._shared.search_declaration import search_environment

__all__ = ["SPEC", "load_environment"]

SPEC, load_environment = search_environment(
    "search-visit-agent-judge",
    "Answer a question by web search, visiting pages; scored by a judge.",
    visits=True,
    judged=True,
)
