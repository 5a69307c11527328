"""From a child's pipe to its log file, the console and the memory of its last lines."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable

from primebeaker.supervision.child import ChildSpec
from primebeaker.supervision.output import Console, LineSplitter, LogFile

__all__ = ["ChildStream"]

_READ_BYTES = 64 * 1024
_TAIL_LINE_BYTES = 2000
# How long a child may be held up while its log catches up, before output is given up instead.
_MOST_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_FLUSH_SECONDS = 2.0
_TORCHRUN_PREFIX = re.compile(rb"^\[[A-Za-z]*[0-9]*\]:")


class ChildStream:
    """Reads in the event loop, and never waits for where the output goes.

    Args:
        spec: Says where that is.
        descriptor: The read end of the child's output; closed here.
        tail: Takes the last lines.
        console: Takes prefixed lines when the spec wants that.
        report: Takes one line about a log that cannot be written.
    """

    def __init__(
        self,
        spec: ChildSpec,
        descriptor: int,
        tail: deque[bytes],
        console: Console | None,
        report: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._descriptor = descriptor
        self._tail = tail
        self._console = console if spec.console_prefix is not None else None
        self._prefix = (spec.console_prefix or "").encode()
        self._log = None if spec.log is None else LogFile(spec.log, report=report)
        self._raw = spec.log is not None and spec.log.raw
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._paused_since: float | None = None
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def catch_up(self) -> None:
        """Take what the child has left in the pipe, as far as there is something now."""
        for _ in range(64):
            if not self._open or not self._read():
                return

    def close(self) -> Callable[[], object]:
        """Stop reading. Returns what is left to do in another thread: writing what is queued."""
        self.catch_up()
        self._end()
        log = self._log
        return (lambda: log.close(_FLUSH_SECONDS)) if log is not None else (lambda: None)

    def _readable(self) -> None:
        if self._log is not None and self._log.full and self._pause():
            return
        self._read()

    def _pause(self) -> bool:
        """Hold the child up for a moment while the log catches up. False when that took too long already."""
        now = self._loop.time()
        if self._paused_since is None:
            self._paused_since = now
        if now - self._paused_since > _MOST_PAUSE_SECONDS:
            return False
        self._loop.remove_reader(self._descriptor)
        self._loop.call_later(_LOOK_SECONDS, self._resume)
        return True

    def _resume(self) -> None:
        if self._open:
            if self._log is not None and not self._log.full:
                self._paused_since = None
            self._loop.add_reader(self._descriptor, self._readable)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._take(self._splitter.feed(data), data)
        return True

    def _take(self, lines: list[bytes], data: bytes) -> None:
        if self._log is not None:
            if self._raw:
                self._log.write(data)
            elif lines:
                self._log.write(b"\n".join(lines) + b"\n")
        self._tail.extend(line[:_TAIL_LINE_BYTES] for line in lines[-(self._tail.maxlen or 0) :])
        if self._console is not None:
            if self._spec.strip_torchrun_prefix:
                lines = [_TORCHRUN_PREFIX.sub(b"", line, count=1) for line in lines]
            self._console.lines([self._prefix + line for line in lines])

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._take(self._splitter.end(), b"")
            if self._log is not None:
                self._log.finish()
