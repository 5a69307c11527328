"""The search environment with page visits, for callers that bring their own clients."""

from __future__ import annotations

from primebeaker.environments._shared.search_classes import SearchVisitAgentEnv

__all__ = ["SearchVisitAgentEnv"]
