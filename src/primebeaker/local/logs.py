"""Read and follow the logs of jobs, with the time each line arrived."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from primebeaker.supervision.output import INDEX_RECORD

__all__ = ["LogReader", "Source", "follow_logs", "read_logs"]

_LOOK_SECONDS = 0.1
_READ_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16
_RECORDS = 4096


class Line(NamedTuple):
    """One line of a log, without its line end."""

    at: datetime | None
    data: bytes


class LogReader:
    """Reads a log from its start, as far as it has been written, again and again.

    Args:
        path: The log; its arrival times are in ``<path>.index``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""
        #: Offset of ``_rest`` in the file.
        self._offset = 0
        self._times = _Times(path.with_name(path.name + ".index"))

    def begin(self, *, tail: int | None = None, since: datetime | None = None) -> None:
        """Skip to the last ``tail`` lines, or to about the time ``since``, without reading what is before."""
        if not self._open():
            return
        if since is not None:
            self._offset = self._line_start(self._times.offset_at(since.timestamp()))
        elif tail is not None:
            self._offset = self._tail_start(tail)

    def lines(self, *, final: bool = False) -> Iterator[Line]:
        """The lines that have come since the last call.

        Args:
            final: Nothing more will come: give the last line even without a line end.
        """
        if not self._open():
            return
        yield from self._rest_of_file()
        while self._was_replaced():
            yield from self._rest_of_file()
            self._go_on_in_new_file()
            yield from self._rest_of_file()
        if final and self._rest:
            yield self._line(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._times.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
                return False
        return True

    def _rest_of_file(self) -> Iterator[Line]:
        assert self._descriptor is not None
        while data := os.pread(self._descriptor, _READ_BYTES, self._offset + len(self._rest)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._times.refresh()
            for line in lines:
                yield self._line(line)
                self._offset += len(line) + 1
            if len(self._rest) > _MOST_LINE_BYTES:
                yield self._line(self._rest)
                self._offset += len(self._rest)
                self._rest = b""

    def _line(self, data: bytes) -> Line:
        at = self._times.at(self._offset)
        return Line(None if at is None else datetime.fromtimestamp(at, UTC), data)

    def _line_start(self, offset: int) -> int:
        """The start of the line that holds ``offset``."""
        return self._tail_start(1, end=offset) if offset else 0

    def _tail_start(self, lines: int, *, end: int | None = None) -> int:
        """Where the last ``lines`` lines before ``end`` (by default of the file) start."""
        assert self._descriptor is not None
        stop = os.fstat(self._descriptor).st_size if end is None else end
        # The end of the last line does not begin another one.
        position = stop - 1 if end is None and os.pread(self._descriptor, 1, max(stop - 1, 0)) == b"\n" else stop
        found = 0
        while position > 0:
            start = max(position - _BLOCK_BYTES, 0)
            block = os.pread(self._descriptor, position - start, start)
            while (index := block.rfind(b"\n")) >= 0:
                found += 1
                if found == lines:
                    return start + index + 1
                block = block[:index]
            position = start
        return 0

    def _was_replaced(self) -> bool:
        assert self._descriptor is not None
        try:
            return self._path.stat().st_ino != os.fstat(self._descriptor).st_ino
        except OSError:
            return False

    def _go_on_in_new_file(self) -> None:
        """The middle was cut out of the log: continue where the old file ended."""
        assert self._descriptor is not None
        old = os.fstat(self._descriptor).st_ino
        os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_RDONLY)
        end = os.fstat(self._descriptor).st_size
        try:
            inode, offset = map(int, self._path.with_name(self._path.name + ".cut").read_text().split())
            end = offset if inode == old else end
        except (OSError, ValueError):
            # Without the note the new lines are taken up from now.
            pass
        self._offset = end - len(self._rest)
        self._times.close()


class _Times:
    """The arrival times of a log's pieces, read a block at a time as the reader moves on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._position = 0
        self._block: deque[tuple[int, float]] = deque()
        self._at: float | None = None

    def close(self) -> None:
        """Forget everything; the next look starts anew."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._position, self._at = None, 0, None
        self._block.clear()

    def refresh(self) -> None:
        """Take up records that have been written since."""
        if not self._block:
            self._fill()

    def at(self, offset: int) -> float | None:
        """When the byte at ``offset`` arrived; offsets only grow from call to call."""
        while self._block and self._block[0][0] <= offset:
            self._at = self._block.popleft()[1]
            if not self._block:
                self._fill()
        return self._at

    def offset_at(self, time: float) -> int:
        """The offset of the last piece that arrived before ``time``; 0 when there is none."""
        if not self._open():
            return 0
        assert self._descriptor is not None
        low, high = 0, os.fstat(self._descriptor).st_size // INDEX_RECORD.size
        while low < high:
            middle = (low + high) // 2
            if self._record(middle)[1] < time:
                low = middle + 1
            else:
                high = middle
        return self._record(low - 1)[0] if low else 0

    def _record(self, number: int) -> tuple[int, float]:
        assert self._descriptor is not None
        offset, at = INDEX_RECORD.unpack(os.pread(self._descriptor, INDEX_RECORD.size, number * INDEX_RECORD.size))
        return offset, at

    def _open(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
                return False
        return True

    def _fill(self) -> None:
        if not self._open():
            return
        assert self._descriptor is not None
        data = os.pread(self._descriptor, _RECORDS * INDEX_RECORD.size, self._position)
        whole = len(data) // INDEX_RECORD.size * INDEX_RECORD.size
        self._position += whole
        self._block.extend(INDEX_RECORD.iter_unpack(data[:whole]))


class Source(NamedTuple):
    """A log to read."""

    key: str
    path: Path


def read_logs(
    sources: Sequence[Source], *, tail: int | None = None, since: datetime | None = None
) -> Iterator[tuple[str, Line]]:
    """The lines of several logs, one log after the other.

    Args:
        sources: The logs.
        tail: Only the last lines of each.
        since: Only lines that arrived at or after this time.
    """
    for source in sources:
        reader = LogReader(source.path)
        reader.begin(tail=tail, since=since)
        lines = (line for line in reader.lines(final=True) if _wanted(line, since))
        yield from ((source.key, line) for line in (lines if tail is None else deque(lines, maxlen=tail)))
        reader.close()


def follow_logs(
    current: Callable[[], tuple[Sequence[Source], bool]], *, tail: int | None = None, since: datetime | None = None
) -> Iterator[tuple[str, Line]]:
    """The lines of several logs as they come, until nothing more will.

    Args:
        current: Gives the logs there are now, and whether no more output will come.
        tail: Of what is there at the start, only the last lines of each log.
        since: Only lines that arrived at or after this time.
    """
    readers: dict[str, LogReader] = {}
    first = True
    while True:
        # Asked before the files are read: what is written before the end is read after it.
        sources, ended = current()
        idle = True
        for source in sources:
            reader = readers.get(source.key)
            if reader is None:
                reader = readers[source.key] = LogReader(source.path)
                if first:
                    reader.begin(tail=tail, since=since)
            lines: Iterator[Line] = (line for line in reader.lines(final=ended) if _wanted(line, since))
            for line in deque(lines, maxlen=tail) if first and tail is not None else lines:
                idle = False
                yield source.key, line
        first = False
        if ended:
            for reader in readers.values():
                reader.close()
            return
        if idle:
            time.sleep(_LOOK_SECONDS)


def _wanted(line: Line, since: datetime | None) -> bool:
    return since is None or line.at is None or line.at >= since
