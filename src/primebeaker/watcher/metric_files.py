"""Metric files of a run as series: Prime-RL's log and ``.wandb`` files, read on from where the last look ended."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, TypeGuard

from primebeaker.watcher.metric_cache import MetricStore
from primebeaker.watcher.wandb_log import read_log

__all__ = ["MetricCache", "Segments", "Series", "axis_of"]

_LINE_LIMIT = 2**20
_FILE_LIMIT = 256 * 2**20
#: Smaller files are parsed faster than they are looked up.
_WORTH_KEEPING = 2**20
_PLACES = frozenset({"step", "time", "_step", "_runtime", "_timestamp"})

FileSource = Literal["file", "wandb-local"]


@dataclass
class Series:
    """Values of one metric in one segment of one source.

    Attributes:
        source: ``file``, ``wandb-local`` or ``wandb``.
        points: x -> value; the last value of an x wins.
        non_finite: How many values were no finite numbers.
        truncated: The file is cut or damaged.
    """

    source: str
    points: dict[float, float] = field(default_factory=dict)
    non_finite: int = 0
    truncated: bool = False


#: Series by name, one table an attempt.
Segments = list[dict[str, Series]]


def axis_of(name: str) -> Literal["step", "time"]:
    """What a metric is plotted against: serving metrics do not know the trainer's steps."""
    return "time" if name.startswith("inference/") else "step"


@dataclass
class _Read:
    """How far one file has been read, and what it held so far."""

    inode: int
    size: int
    mtime_ns: int = 0
    offset: int = 0
    segments: Segments = field(default_factory=lambda: [{}])
    last: float = -math.inf

    def copy(self) -> _Read:
        """A copy that can grow while others still draw this one."""
        segments = [
            {name: Series(one.source, dict(one.points), one.non_finite, one.truncated) for name, one in segment.items()}
            for segment in self.segments
        ]
        return _Read(self.inode, self.size, self.mtime_ns, self.offset, segments, self.last)

    def to_json(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "offset": self.offset,
            "last": None if math.isinf(self.last) else self.last,
            "segments": [
                {
                    name: [one.source, list(one.points), list(one.points.values()), one.non_finite, one.truncated]
                    for name, one in segment.items()
                }
                for segment in self.segments
            ],
        }

    @classmethod
    def from_json(cls, inode: int, value: dict[str, Any]) -> _Read:
        segments = [
            {
                name: Series(row[0], dict(zip(row[1], row[2], strict=True)), row[3], row[4])
                for name, row in segment.items()
            }
            for segment in value["segments"]
        ]
        last = -math.inf if value["last"] is None else value["last"]
        return cls(inode, value["size"], 0, value["offset"], segments, last)


class MetricCache:
    """Parsed metric files, so that what was read once is not read again and a growing file is only read on.

    Args:
        store: Where large files are kept between two processes.
        most: Files held in memory.
    """

    def __init__(self, store: MetricStore | None = None, *, most: int = 64) -> None:
        self._store = store
        self._most = most
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _Read] = OrderedDict()

    def read(self, path: str, source: FileSource, *, keep: bool = False) -> Segments:
        """The segments of one file.

        Args:
            path: Where it is on this machine.
            source: What it is.
            keep: Put it into the store whatever its size.

        Raises:
            OSError: It cannot be read.
        """
        stat = os.stat(path)  # noqa: PTH116
        if stat.st_size > _FILE_LIMIT:
            raise OSError(f"{stat.st_size} bytes; expected at most {_FILE_LIMIT}")
        with self._lock:
            known = self._files.get(path)
        if known is not None and (known.inode, known.size, known.mtime_ns) == (
            stat.st_ino,
            stat.st_size,
            stat.st_mtime_ns,
        ):
            return known.segments
        large = stat.st_size >= _WORTH_KEEPING
        if known is None and self._store is not None and (large or keep):
            known = self._stored(path, stat.st_ino)
        if known is None or known.inode != stat.st_ino or stat.st_size < known.size:
            known = _Read(stat.st_ino, 0)
        grown = known.copy()
        with open(path, "rb") as stream:
            _READERS[source](stream, grown)
        news = grown.offset - known.offset
        grown.size, grown.mtime_ns = stat.st_size, stat.st_mtime_ns
        with self._lock:
            self._files[path] = grown
            self._files.move_to_end(path)
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        if self._store is not None and ((large and news >= _WORTH_KEEPING) or (keep and news)):
            self._store.put_file(path, str(stat.st_ino), grown.to_json())
        return grown.segments

    def _stored(self, path: str, inode: int) -> _Read | None:
        value = self._store.file(path, str(inode)) if self._store is not None else None
        try:
            return _Read.from_json(inode, value) if value is not None else None
        except (KeyError, TypeError, ValueError, IndexError):
            return None


def _read_metric_log(stream: BinaryIO, read: _Read) -> None:
    stream.seek(read.offset)
    for raw in stream:
        # A last line without its end is looked at, and again next time.
        if raw.endswith(b"\n"):
            read.offset += len(raw)
        if len(raw) > _LINE_LIMIT:
            continue
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        step = row.get("step") if isinstance(row, dict) else None
        if not _is_number(step) or not math.isfinite(step):
            continue
        if step < read.last:
            # The log is appended across attempts: a step back is a new attempt.
            read.segments.append({})
        read.last = step
        when = row.get("time")
        for name, value in row.items():
            if name not in _PLACES and _is_number(value):
                timed = axis_of(name) == "time" and _is_number(when) and math.isfinite(when)
                _add(read.segments[-1], name, "file", when if timed else step, value)


def _read_wandb(stream: BinaryIO, read: _Read) -> None:
    log = read_log(stream, offset=read.offset)
    read.offset = log.offset
    segment = read.segments[0]
    for row in log.rows:
        when = row.values.get("_timestamp")
        for name, value in row.values.items():
            if name not in _PLACES:
                timed = axis_of(name) == "time" and when is not None
                _add(segment, name, "wandb-local", when if timed and when is not None else row.step, value)
        for name in row.non_finite:
            segment.setdefault(name, Series("wandb-local")).non_finite += 1
    for series in segment.values():
        series.truncated = log.truncated


_READERS: dict[FileSource, Callable[[BinaryIO, _Read], None]] = {
    "file": _read_metric_log,
    "wandb-local": _read_wandb,
}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _add(segment: dict[str, Series], name: str, source: str, x: float, value: float) -> None:
    series = segment.setdefault(name, Series(source))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        series.points[x] = number
    else:
        series.non_finite += 1
