"""What a role tells: readable lines on stdout, and one JSON line an event beside the run's logs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from primebeaker.redaction import Redactor
from primebeaker.roles.clock import utc_now

__all__ = ["EventLog"]

_MOST_BUFFERED = 2000
_CLOSE_SECONDS = 2.0


class EventLog:
    """Events are kept in memory until the output directory may be written to.

    Args:
        rank: This rank.
        kind: ``rl`` or ``sft``.
        show: Takes one line for stdout.
        redact: Masks credentials; environment values never get here in the first place.
    """

    def __init__(self, rank: int, kind: str, show: Callable[[str], None], redact: Redactor) -> None:
        self._rank = rank
        self._kind = kind
        self._show = show
        self.redact = redact
        self._buffer: list[str] = []
        self._path: Path | None = None
        self._closed = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self.epoch: str | None = None
        self.last = ""

    def say(self, line: str) -> None:
        """A readable line."""
        for part in self.redact(line).splitlines() or [""]:
            self.last = part
            self._show(f"[primebeaker {self._kind} {self._rank}] {time.strftime('%H:%M:%S')} {part}")

    def event(self, event: str, **details: Any) -> None:
        """One event; ``details`` hold names, codes and times, never values of the environment."""
        if self._closed:
            return
        record = {"ts": utc_now(), "epoch": self.epoch, "rank": self._rank, "event": event, **details}
        self._buffer.append(self.redact(json.dumps(record)))
        del self._buffer[:-_MOST_BUFFERED]
        self._flush()

    def open(self, path: Path) -> None:
        """Write there from now on, what was kept first."""
        self._path = path
        # A thread of its own: a file system that hangs must hold up neither the run nor its end.
        self._writer = threading.Thread(target=self._write, args=(path,), name="events", daemon=True)
        self._writer.start()
        self._flush()

    def close(self, fallback: Path) -> None:
        """Write what is still kept to ``fallback`` when no other place was ever opened."""
        if self._path is None:
            self.open(fallback)
        self._closed = True
        self._lines.put(None)
        if self._writer is not None:
            self._writer.join(_CLOSE_SECONDS)

    def discard(self) -> None:
        """Write nothing more: this process was superseded."""
        self._closed = True
        self._buffer.clear()

    def _flush(self) -> None:
        if self._path is None:
            return
        for line in self._buffer:
            self._lines.put(line)
        self._buffer.clear()

    def _write(self, path: Path) -> None:
        while (line := self._lines.get()) is not None:
            # The log explains a run; it must never stop one.
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                try:
                    os.write(descriptor, f"{line}\n".encode())
                finally:
                    os.close(descriptor)
