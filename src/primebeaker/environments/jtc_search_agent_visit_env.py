"""``search-agent-visit``: web search and page visits, scored by exact match."""

from __future__ import annotations

from primebeaker.environments._shared.search_declaration import search_environment

__all__ = ["SPEC", "load_environment"]

SPEC, load_environment = search_environment(
    "search-agent-visit",
    "Answer a question by web search, visiting pages; scored by exact match.",
    visits=True,
    judged=False,
)
