"""Signals that are remembered instead of acted on, while two things must be created or none."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from primebeaker.errors import Interrupted

__all__ = ["Abandoned", "Signals", "remembered_signals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The third Ctrl-C ends even the clean-up.
_ABANDON = 3


class Abandoned(BaseException):
    """The user insisted on leaving while the clean-up ran."""


@dataclass
class Signals:
    """The signals so far, in order."""

    numbers: list[int] = field(default_factory=list)
    #: What is called when the user insists, before :class:`Abandoned` is raised.
    abandon: Callable[[], None] | None = None

    @property
    def pending(self) -> bool:
        """Whether we have been asked to end."""
        return bool(self.numbers)

    def raise_if_any(self) -> None:
        """Raise the first signal as an error with its exit code (130 for Ctrl-C, 143 for SIGTERM)."""
        if self.numbers:
            number = self.numbers[0]
            name = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
            error = Interrupted(name)
            error.exit_code = 128 + number
            raise error

    def remember(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.numbers.append(number)
        if self.numbers.count(signal.SIGINT) >= _ABANDON and self.abandon is not None:
            self.abandon()
            raise Abandoned


@contextlib.contextmanager
def remembered_signals() -> Iterator[Signals]:
    """Remember INT, TERM and HUP inside; outside the main thread signals stay as they are."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    previous = {number: signal.signal(number, signals.remember) for number in _NUMBERS}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
