"""The search environment with a page terminal, for callers that bring their own clients."""

from __future__ import annotations

from primebeaker.environments._shared.search_classes import SearchAgentEnv

__all__ = ["SearchAgentEnv"]
