"""How often a role looks: quickly at first, then up to a ceiling, never in step with its peers."""

from __future__ import annotations

import asyncio
import random

__all__ = ["Poll"]

_FIRST_SECONDS = 0.1
_GROWTH = 1.5
_JITTER = 0.2


class Poll:
    """Sleeps between looks.

    Args:
        ceiling: The longest pause in seconds.
    """

    def __init__(self, ceiling: float) -> None:
        self._ceiling = ceiling
        self._next = min(_FIRST_SECONDS, ceiling)

    async def sleep(self) -> None:
        """Sleep the next pause."""
        await asyncio.sleep(self.pause())

    def pause(self) -> float:
        """Seconds of the next pause, with 20 % jitter."""
        pause = self._next * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311  not for secrets
        self._next = min(self._next * _GROWTH, self._ceiling)
        return pause

    def reset(self) -> None:
        """Look quickly again: something has just changed."""
        self._next = min(_FIRST_SECONDS, self._ceiling)
