"""End a rehearsal by a signal as by Ctrl-C: what was started is stopped first, however impatient the sender is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from primebeaker.errors import Interrupted

__all__ = ["orderly_end"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(Interrupted):
    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}; nothing of the rehearsal is left running")
        self.exit_code = 128 + number


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Raise at the first INT, TERM or HUP; those that follow do not disturb the clean-up it leads to.

    Only in the main thread, where signals arrive.

    Raises:
        KeyboardInterrupt: INT came.
        Interrupted: TERM or HUP came; the exit code is 128 + the signal's number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for other in _NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _Ended(number)

    previous = {
        number: signal.signal(number, end)
        # What the caller ignores (nohup) stays ignored.
        for number in _NUMBERS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
