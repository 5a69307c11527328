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


class Line(NamedTuple):
    """One line of a log, without its line end."""

    at: datetime | None
    data: bytes


class LogReader:
    """Reads a log from its start, as far as it has been written, again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""
        #: Offset of ``_rest`` in the file.
        self._offset = 0
        self._times: deque[tuple[int, float]] = deque()
        self._times_read = 0
        self._at: float | None = None

    def lines(self, *, final: bool = False) -> Iterator[Line]:
        """The lines that have come since the last call.

        Args:
            final: Nothing more will come: give the last line even without a line end.
        """
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
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
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _rest_of_file(self) -> Iterator[Line]:
        assert self._descriptor is not None
        while data := os.pread(self._descriptor, _READ_BYTES, self._offset + len(self._rest)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._read_times()
            for line in lines:
                yield self._line(line)
                self._offset += len(line) + 1
            if len(self._rest) > _MOST_LINE_BYTES:
                yield self._line(self._rest)
                self._offset += len(self._rest)
                self._rest = b""

    def _line(self, data: bytes) -> Line:
        while self._times and self._times[0][0] <= self._offset:
            self._at = self._times.popleft()[1]
        return Line(None if self._at is None else datetime.fromtimestamp(self._at, UTC), data)

    def _read_times(self) -> None:
        size = INDEX_RECORD.size
        try:
            with self._path.with_name(self._path.name + ".index").open("rb") as stream:
                stream.seek(self._times_read)
                data = stream.read()
        except OSError:
            return
        whole = len(data) // size * size
        self._times_read += whole
        self._times.extend(INDEX_RECORD.iter_unpack(data[:whole]))

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
        self._times.clear()
        self._times_read = 0


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
            reader = readers.setdefault(source.key, LogReader(source.path))
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
