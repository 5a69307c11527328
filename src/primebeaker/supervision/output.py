"""Where children's output goes: a log file and a console, neither of which can hold a child up.

Both take bytes from the event loop into a bounded queue and write them from a thread of their own, so that a slow
terminal, a full disk or a hanging network file system costs lines (counted and reported), never a stalled child.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["INDEX_RECORD", "MOST_LINE_BYTES", "Console", "LineSplitter", "LogFile", "LogOptions"]

#: A longer line is split, so that a child that never ends a line costs constant memory.
MOST_LINE_BYTES = 64 * 1024
#: One record of a log's side index: byte offset of a piece of output, seconds since the epoch when it arrived.
INDEX_RECORD = struct.Struct("<Qd")

_REPORT_EVERY_SECONDS = 60.0
# Arrival times are kept to this accuracy, so that a log of short lines does not get an index of its own size.
_RECORD_EVERY_SECONDS = 0.05


class LineSplitter:
    """Cuts a byte stream into lines of at most :data:`MOST_LINE_BYTES`, line ends removed."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= MOST_LINE_BYTES or any(len(line) > MOST_LINE_BYTES for line in lines):
            pieces = [piece for line in lines for piece in _pieces(line)]
            full, rest = divmod(len(self._rest), MOST_LINE_BYTES)
            pieces += [self._rest[index * MOST_LINE_BYTES : (index + 1) * MOST_LINE_BYTES] for index in range(full)]
            self._rest = self._rest[len(self._rest) - rest :]
            return pieces
        return lines

    def end(self) -> list[bytes]:
        """The last line when the stream ended without a line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    return [line[index : index + MOST_LINE_BYTES] for index in range(0, len(line), MOST_LINE_BYTES)] or [b""]


class LogOptions(NamedTuple):
    """How a child's log file is kept.

    Attributes:
        path: The file; its folder is made, output is appended.
        header: A first line, without its line end.
        raw: Keep the bytes exactly as written; otherwise lines longer than 64 KiB are split and a line reaches the
            file when it is complete.
        times: Keep arrival times of the output in ``<path>.index`` (:data:`INDEX_RECORD` records).
        most_bytes: Cut the middle out of the file whenever it grows beyond this size.
    """

    path: Path
    header: str | None = None
    raw: bool = False
    times: bool = False
    most_bytes: int | None = None


class LogFile:
    """A log that is written from a thread of its own.

    Args:
        options: See :class:`LogOptions`.
        report: Called from that thread with one line when the file cannot be written; at most once a minute.
        most_queued: Bytes that may wait for the disk before output is given up.
    """

    def __init__(
        self, options: LogOptions, *, report: Callable[[str], None], most_queued: int = 2 * 1024 * 1024
    ) -> None:
        self._options = options
        self._report = report
        self._most_queued = most_queued
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued = 0
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._stream: int | None = None
        self._index: int | None = None
        self._reported_at = -_REPORT_EVERY_SECONDS
        self._recorded_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name=f"log {options.path.name}", daemon=True)
        if options.header is not None:
            self.write(options.header.encode() + b"\n")
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the disk is behind by a whole queue."""
        return self._queued >= self._most_queued

    def write(self, data: bytes) -> None:
        """Queue ``data``; when the queue is full it is dropped and counted."""
        with self._changed:
            if self._queued >= self._most_queued:
                self._lost += len(data)
                return
            self._queue.append((time.time(), data))
            self._queued += len(data)
            self._changed.notify()

    def finish(self) -> None:
        """Nothing more will come: write what is queued and close the file, without waiting for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, timeout: float) -> bool:
        """:meth:`finish`, and wait until it is done, at most ``timeout`` seconds.

        Returns:
            Whether everything was written or given up, and the file closed.
        """
        self.finish()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                batch, self._queue = self._queue, deque()
                lost, self._lost = self._lost, 0
                closing = self._closing
            if not batch and not lost:
                break
            size = sum(len(data) for _, data in batch)
            try:
                self._open()
                if lost:
                    self._append(b"[%d bytes of output are missing here: the log could not be written]\n" % lost)
                self._write_batch(batch)
            except OSError as error:
                self._give_up(error)
                lost += size
                failed = True
            else:
                lost, failed = 0, False
            with self._changed:
                self._queued -= size
                self._lost += lost
            if failed and closing:
                break
        self._close_descriptors()

    def _open(self) -> None:
        if self._stream is not None:
            return
        path = self._options.path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self._stream = os.open(path, flags, 0o644)
        if self._options.times:
            self._index = os.open(path.with_name(path.name + ".index"), flags, 0o644)

    def _write_batch(self, batch: deque[tuple[float, bytes]]) -> None:
        if self._index is not None and self._stream is not None:
            offset = os.fstat(self._stream).st_size
            records = []
            for at, data in batch:
                if abs(at - self._recorded_at) >= _RECORD_EVERY_SECONDS:
                    records.append(INDEX_RECORD.pack(offset, at))
                    self._recorded_at = at
                offset += len(data)
            # The index goes first: a reader never meets output without a time.
            os.write(self._index, b"".join(records))
        self._append(b"".join(data for _, data in batch))
        if self._options.most_bytes is not None:
            self._cut_middle(self._options.most_bytes)

    def _append(self, data: bytes) -> None:
        assert self._stream is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._stream, view) :]

    def _cut_middle(self, most: int) -> None:
        """Rewrite the file as its first half, a marker line and its last quarter (of ``most``)."""
        assert self._stream is not None
        size = os.fstat(self._stream).st_size
        if size <= most:
            return
        head_end = _line_end(self._stream, most // 2)
        tail_start = max(_line_end(self._stream, size - most // 4), head_end)
        marker = b"[... %d bytes were cut from the middle of this log ...]\n" % (tail_start - head_end)
        path = self._options.path
        temporary = path.with_name(f".{path.name}.cut")
        # Read-write and append: it becomes the log that is written on.
        target = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _copy(self._stream, 0, head_end, target)
            os.write(target, marker)
            _copy(self._stream, tail_start, size, target)
            if self._index is not None:
                self._cut_index(head_end, tail_start, head_end + len(marker))
            # A follower that has read the old file to its end goes on here in the new one.
            end = head_end + len(marker) + size - tail_start
            path.with_name(path.name + ".cut").write_text(f"{os.fstat(self._stream).st_ino} {end}\n")
            temporary.replace(path)
        except OSError:
            os.close(target)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._stream)
        self._stream = target

    def _cut_index(self, head_end: int, tail_start: int, tail_at: int) -> None:
        assert self._index is not None
        records = os.pread(self._index, os.fstat(self._index).st_size, 0)
        kept = []
        for offset, at in INDEX_RECORD.iter_unpack(records[: len(records) // INDEX_RECORD.size * INDEX_RECORD.size]):
            if offset < head_end:
                kept.append(INDEX_RECORD.pack(offset, at))
            elif offset >= tail_start:
                kept.append(INDEX_RECORD.pack(offset - tail_start + tail_at, at))
        os.ftruncate(self._index, 0)
        os.write(self._index, b"".join(kept))

    def _give_up(self, error: OSError) -> None:
        self._close_descriptors()
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_EVERY_SECONDS:
            self._reported_at = now
            self._report(f"{self._options.path}: cannot write the log: {error.strerror or error}")

    def _close_descriptors(self) -> None:
        for descriptor in (self._stream, self._index):
            if descriptor is not None:
                try:
                    os.close(descriptor)
                except OSError as error:
                    # A network file system reports a failed write-back here.
                    self._report(f"{self._options.path}: cannot write the log: {error.strerror or error}")
        self._stream = self._index = None


def _line_end(descriptor: int, position: int) -> int:
    """The first start of a line at or after ``position``, or ``position`` when none is near."""
    found = os.pread(descriptor, MOST_LINE_BYTES, position).find(b"\n")
    return position if found < 0 else position + found + 1


def _copy(source: int, start: int, end: int, target: int) -> None:
    while start < end:
        data = os.pread(source, min(1 << 20, end - start), start)
        if not data:
            return
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        start += len(data)


class Console:
    """Lines for a terminal or a task's own log, written from a thread; a slow reader costs lines, not time.

    Args:
        descriptor: Where lines go; by default this process's stdout.
        most_queued: Bytes that may wait before lines are dropped and counted.
    """

    def __init__(self, descriptor: int | None = None, *, most_queued: int = 512 * 1024) -> None:
        self._descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self._most_queued = most_queued
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._dropped = 0
        self._closing = False
        self._broken = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def line(self, line: bytes | str) -> None:
        """Queue one line (without its line end)."""
        self.lines([line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line])

    def lines(self, lines: list[bytes]) -> None:
        """Queue several lines that belong together."""
        if not lines:
            return
        data = b"\n".join(lines) + b"\n"
        with self._changed:
            if self._queued >= self._most_queued:
                self._dropped += len(lines)
                return
            self._queue.append(data)
            self._queued += len(data)
            self._changed.notify()

    def close(self, timeout: float = 1.0) -> bool:
        """Write what is queued; give up after ``timeout`` seconds. Returns whether all was written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._dropped and not self._closing:
                    self._changed.wait()
                batch, self._queue = self._queue, deque()
                dropped, self._dropped = self._dropped, 0
            if not batch and not dropped:
                return
            size = 0
            for data in batch:
                self._write(data)
                size += len(data)
            if dropped:
                self._write(b"[%d lines were not shown: the console is too slow]\n" % dropped)
            with self._changed:
                self._queued -= size

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._broken:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                # The reader is gone; output goes on into the log files.
                self._broken = True
