"""Metric curves of a run from what lies on disk: Prime-RL's metric logs and ``.wandb`` files; merging and thinning."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from primebeaker.watcher.lists import generation_of
from primebeaker.watcher.paths import PathMap
from primebeaker.watcher.references import Entity
from primebeaker.watcher.roots import stored_roots
from primebeaker.watcher.wandb_log import read_log

__all__ = ["MetricCache", "Point", "Series", "default_metrics", "run_metrics", "thin"]

_LINE_LIMIT = 2**20
_FILE_LIMIT = 256 * 2**20
_EVAL_FIRST = (
    "val/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
    "eval/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
)


class Point(NamedTuple):
    """One plotted value with the range and number of values it stands for."""

    step: float
    value: float
    least: float
    most: float
    samples: int


@dataclass
class Series:
    """Values of one metric in one segment of one file.

    Attributes:
        source: ``file`` or ``wandb-local``.
        points: step -> value; the last value of a step wins.
        times: step -> seconds since 1970.
        non_finite: How many values were no finite numbers.
        truncated: The file is cut or damaged.
    """

    source: str
    points: dict[float, float] = field(default_factory=dict)
    non_finite: int = 0
    truncated: bool = False


Segments = list[dict[str, Series]]


class MetricCache:
    """Parsed metric files, by path and stat, so that an unchanged file is read once."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, int, int], Segments] = OrderedDict()

    def read(self, path: str, source: str) -> Segments:
        """The segments of one file; a missing or unreadable file has none.

        Raises:
            OSError: It cannot be read.
        """
        stat = os.stat(path)  # noqa: PTH116
        if stat.st_size > _FILE_LIMIT:
            raise OSError(f"{stat.st_size} bytes; expected at most {_FILE_LIMIT}")
        key = (path, stat.st_size, stat.st_mtime_ns)
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        segments = _read_metric_log(path) if source == "file" else _read_wandb(path)
        with self._lock:
            self._files[key] = segments
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        return segments


def _read_metric_log(path: str) -> Segments:
    segments: Segments = [{}]
    last = -math.inf
    with open(path, "rb") as stream:
        for raw in stream:
            if len(raw) > _LINE_LIMIT:
                continue
            try:
                row = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            step = row.get("step") if isinstance(row, dict) else None
            if isinstance(step, bool) or not isinstance(step, int | float) or not math.isfinite(step):
                continue
            if step < last:
                # The log is appended across attempts: a step back is a new attempt.
                segments.append({})
            last = step
            for name, value in row.items():
                if name not in ("step", "time") and not isinstance(value, bool) and isinstance(value, int | float):
                    _add(segments[-1], name, "file", step, value)
    return segments


def _add(segment: dict[str, Series], name: str, source: str, step: float, value: float) -> None:
    series = segment.setdefault(name, Series(source))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        series.points[step] = number
    else:
        series.non_finite += 1


def _read_wandb(path: str) -> Segments:
    with open(path, "rb") as stream:
        log = read_log(stream)
    segment: dict[str, Series] = {}
    for row in log.rows:
        for name, value in row.values.items():
            if name not in ("step", "_step", "_runtime", "_timestamp"):
                _add(segment, name, "wandb-local", row.step, value)
        for name in row.non_finite:
            segment.setdefault(name, Series("wandb-local")).non_finite += 1
    for series in segment.values():
        series.truncated = log.truncated
    return [segment]


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` points: the first, the last, and the least and greatest of each bucket, so spikes survive."""
    if len(points) <= most:
        return list(points)
    buckets = max((most - 2) // 2, 1)
    first, last = points[0].step, points[-1].step
    width = (last - first) / buckets or 1.0
    kept = {0, len(points) - 1}
    best: dict[int, tuple[int, int]] = {}
    for index, point in enumerate(points):
        bucket = min(int((point.step - first) / width), buckets - 1)
        low, high = best.get(bucket, (index, index))
        low = index if point.value < points[low].value else low
        high = index if point.value > points[high].value else high
        best[bucket] = (low, high)
    for low, high in best.values():
        kept |= {low, high}
    return [points[index] for index in sorted(kept)]


def default_metrics(stage: str, available: Sequence[str]) -> list[str]:
    """The curves shown first for a stage, as far as they are there."""
    names = set(available)
    if stage == "sft":
        return [name for name in ("val/loss", "loss/mean") if name in names]
    chosen = [name for name in _EVAL_FIRST if name in names][:1]
    chosen += [name for name in available if name.startswith("eval/") and "/all/" in name and "/avg@" in name][:2]
    chosen += [
        name
        for name in available
        if name.startswith(("train/agg/all/", "train/agg/effective/")) and name.endswith("/reward/mean")
    ][:2]
    rest = ("val/loss", "loss/mean", "optim/grad_norm", "entropy/all/mean", "perf/throughput", "time/step")
    return list(dict.fromkeys([*chosen, *(name for name in rest if name in names)]))


class _Source(NamedTuple):
    kind: str
    path: str
    attempt: int | None


def _sources(connection: sqlite3.Connection, run_id: int) -> list[_Source]:
    """The metric files of a run, in the order of its attempts."""
    run_dir = connection.execute("SELECT run_dir FROM runs WHERE id = ?", (run_id,)).fetchone()[0] or ""
    row = connection.execute("SELECT facts FROM files WHERE path = ? AND kind = 'run_directory'", (run_dir,)).fetchone()
    facts = json.loads(row[0]) if row and row[0] else {}
    found = [_Source("file", f"{run_dir}/{path}", None) for path in facts.get("metrics", ())]
    ordinals = dict(
        connection.execute(
            "SELECT w.wandb_run_id, a.ordinal FROM wandb_runs w JOIN attempts a ON a.id = w.attempt_id"
            " WHERE w.run_id = ?",
            (run_id,),
        ).fetchall()
    )
    found += [
        _Source("wandb-local", f"{run_dir}/{entry['path']}/run-{entry['id']}.wandb", ordinals.get(entry["id"]))
        for entry in facts.get("wandb", ())
    ]
    return found


def run_metrics(
    connection: sqlite3.Connection,
    entity: Entity,
    cache: MetricCache,
    *,
    names: Sequence[str] = (),
    source: str = "auto",
    merge: str = "lineage",
    most: int = 1000,
    least_step: float | None = None,
    most_step: float | None = None,
) -> dict[str, Any]:
    """Series of one run.

    Args:
        connection: The index.
        entity: The run.
        cache: Parsed files.
        names: Metrics; without any, the default ones of the stage.
        source: ``auto`` takes per metric the first of ``file`` and ``wandb-local`` that has data.
        merge: ``lineage`` (per step the latest attempt, earlier tails apart), ``mean`` or ``none``.
        most: Most points of a series.
        least_step: Least step.
        most_step: Greatest step.
    """
    stage = connection.execute("SELECT stage FROM runs WHERE id = ?", (entity.id,)).fetchone()[0]
    paths = PathMap(tuple(tuple(text.split("=", 1)) for text in stored_roots(connection).get("path_map", ())))
    reports: list[dict[str, Any]] = []
    by_kind: dict[str, list[tuple[int | None, dict[str, Series]]]] = {"file": [], "wandb-local": []}
    for item in _sources(connection, entity.id):
        if source not in ("auto", item.kind):
            continue
        report: dict[str, Any] = {"source": item.kind, "path": item.path, "state": "ok", "error": None}
        try:
            segments = cache.read(paths.local(item.path), item.kind)
            by_kind[item.kind] += [
                (item.attempt if item.attempt is not None else index + 1, segment)
                for index, segment in enumerate(segments)
            ]
        except OSError as error:
            report |= {"state": "error", "error": str(error.strerror or error)[:240]}
        reports.append(report)
    available = sorted({name for segments in by_kind.values() for _, segment in segments for name in segment})
    chosen = list(names) or default_metrics(stage, available)
    series: list[dict[str, Any]] = []
    for name in chosen[:12]:
        for kind in ("file", "wandb-local"):
            found = [(attempt, segment[name]) for attempt, segment in by_kind[kind] if name in segment]
            if any(one.points for _, one in found):
                series += _merged(name, kind, found, merge, most, least_step, most_step)
                break
    return {
        "series": series,
        "available": available,
        "sources": reports,
        "fetched_at": None,
        "generation": generation_of(connection),
    }


def _merged(
    name: str,
    kind: str,
    found: Sequence[tuple[int | None, Series]],
    merge: str,
    most: int,
    least_step: float | None,
    most_step: float | None,
) -> list[dict[str, Any]]:
    def wanted(points: Mapping[float, float]) -> dict[float, float]:
        return {
            step: value
            for step, value in points.items()
            if (least_step is None or step >= least_step) and (most_step is None or step <= most_step)
        }

    def row(attempt: int | None, points: Iterable[Point], *, superseded: bool, of: Sequence[Series]) -> dict[str, Any]:
        kept = thin(sorted(points), most)
        return {
            "metric": name,
            "attempt": attempt,
            "source": kind,
            "points": [[_number(point.step), *point[1:]] for point in kept],
            "superseded": superseded,
            "non_finite": sum(one.non_finite for one in of),
            "truncated": any(one.truncated for one in of),
        }

    def plain(points: Mapping[float, float]) -> list[Point]:
        return [Point(step, value, value, value, 1) for step, value in points.items()]

    everything = [one for _, one in found]
    if merge == "none":
        return [row(attempt, plain(wanted(one.points)), superseded=False, of=[one]) for attempt, one in found]
    if merge == "mean":
        values: dict[float, list[float]] = {}
        for _, one in found:
            for step, value in wanted(one.points).items():
                values.setdefault(step, []).append(value)
        means = [Point(step, math.fsum(v) / len(v), min(v), max(v), len(v)) for step, v in values.items()]
        return [row(None, means, superseded=False, of=everything)]
    current: dict[float, float] = {}
    tails: list[tuple[int | None, dict[float, float], Series]] = []
    for index, (attempt, one) in enumerate(found):
        points = wanted(one.points)
        starts = [min(later.points) for _, later in found[index + 1 :] if later.points]
        limit = min(starts, default=math.inf)
        current.update({step: value for step, value in points.items() if step < limit})
        tail = {step: value for step, value in points.items() if step >= limit}
        if tail:
            tails.append((attempt, tail, one))
    rows = [row(None, plain(current), superseded=False, of=everything)]
    return rows + [row(attempt, plain(tail), superseded=True, of=[one]) for attempt, tail, one in tails]


def _number(step: float) -> float:
    return int(step) if float(step).is_integer() else step
