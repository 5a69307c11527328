"""``search-agent-dataset``: web search and a page terminal, scored by exact match."""

from __future__ import annotations

from primebeaker.environments._shared.search_declaration import search_environment

__all__ = ["SPEC", "load_environment"]

SPEC, load_environment = search_environment(
    "search-agent-dataset",
    "Answer a question by web search, reading pages through a terminal; scored by exact match.",
    visits=False,
    judged=False,
)
