"""Stop signals as something to wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

__all__ = ["StopSignals"]


class StopSignals:
    """Turns TERM and INT (and HUP when asked) into an event; use it as a context manager in the main thread.

    The first signal is kept in :attr:`first` and ends :meth:`wait`; each later one calls ``again``, which usually is
    :meth:`~primebeaker.supervision.Supervisor.hurry`.

    Args:
        again: What a second signal does.
        hang_up: Take HUP as a stop signal too.
    """

    def __init__(self, again: Callable[[], None], *, hang_up: bool = False) -> None:
        self.first: signal.Signals | None = None
        self._again = again
        self._numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hang_up else [])]
        self._event = asyncio.Event()

    def __enter__(self) -> StopSignals:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *details: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)

    async def wait(self) -> signal.Signals:
        """The first stop signal, once it has come."""
        await self._event.wait()
        assert self.first is not None
        return self.first

    @property
    def exit_code(self) -> int:
        """128 + the first signal's number."""
        assert self.first is not None, "no stop signal has come"
        return 128 + self.first

    def _take(self, number: signal.Signals) -> None:
        if self.first is None:
            self.first = number
            self._event.set()
        else:
            self._again()
