"""Metric curves of a run: which sources it has, which curves come first, how attempts are merged and points thinned."""

from __future__ import annotations

import fnmatch
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.watcher.lists import generation_of
from primebeaker.watcher.metric_cache import MetricStore, OnlineRun
from primebeaker.watcher.metric_files import FileSource, MetricCache, Segments, Series, axis_of
from primebeaker.watcher.paths import PathMap
from primebeaker.watcher.references import Entity
from primebeaker.watcher.roots import stored_roots
from primebeaker.watcher.wandb_fetch import Wanted

__all__ = [
    "Curves",
    "Point",
    "default_metrics",
    "default_patterns",
    "online_wanted",
    "paths_of",
    "run_metrics",
    "sources_of",
    "stage_of_run",
    "thin",
]

_MOST_METRICS = 12
_FILES: tuple[FileSource, ...] = ("file", "wandb-local")
_FIRST_OF = (
    "val/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
    "eval/jtc-tool-label-terminal-eval/all/metrics/correct_final_label/mean",
)
_SFT = ("val/loss", "loss/mean")
_RL = (
    "eval/*/all/*/avg@*",
    "train/agg/all/*/reward/mean",
    "train/agg/effective/*/reward/mean",
    "optim/grad_norm",
    "entropy/all/mean",
    "perf/throughput",
    "time/step",
)


class Point(NamedTuple):
    """One plotted value with the range and number of values it stands for."""

    step: float
    value: float
    least: float
    most: float
    samples: int


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


def default_patterns(stage: str) -> tuple[str, ...]:
    """The curves shown first for a stage, as globs."""
    if stage == "sft":
        return _SFT
    return (*_FIRST_OF, *_RL) if stage == "rl" else (*_FIRST_OF, *_RL, *_SFT)


def default_metrics(stage: str, available: Sequence[str]) -> list[str]:
    """The curves shown first for a stage, as far as they are there; of the two spellings of one, the first."""
    first = [name for name in _FIRST_OF if name in available][:1]
    chosen = dict.fromkeys(first if stage != "sft" else ())
    for pattern in default_patterns(stage):
        if pattern not in _FIRST_OF:
            chosen.update(dict.fromkeys(name for name in available if _matches(name, pattern)))
    return list(chosen)[:_MOST_METRICS]


def _matches(name: str, pattern: str) -> bool:
    """A glob whose ``*`` stands for one part of a name, but in ``eval/*/`` for any number of them."""
    if not fnmatch.fnmatchcase(name, pattern):
        return False
    return pattern.startswith("eval/") or name.count("/") == pattern.count("/")


class Source(NamedTuple):
    """One place with a run's values: a file, or a W&B run as ``entity/project/id``; and the attempt it belongs to."""

    kind: str
    path: str
    attempt: int | None


def sources_of(connection: sqlite3.Connection, run_id: int) -> list[Source]:
    """Where a run's values may be found, files first, in the order of its attempts."""
    run_dir = connection.execute("SELECT run_dir FROM runs WHERE id = ?", (run_id,)).fetchone()[0] or ""
    row = connection.execute("SELECT facts FROM files WHERE path = ? AND kind = 'run_directory'", (run_dir,)).fetchone()
    facts = json.loads(row[0]) if row and row[0] else {}
    found = [Source("file", f"{run_dir}/{path}", None) for path in facts.get("metrics", ())]
    ordinals = dict(
        connection.execute(
            "SELECT w.wandb_run_id, a.ordinal FROM wandb_runs w JOIN attempts a ON a.id = w.attempt_id"
            " WHERE w.run_id = ?",
            (run_id,),
        ).fetchall()
    )
    found += [
        Source("wandb-local", f"{run_dir}/{entry['path']}/run-{entry['id']}.wandb", ordinals.get(entry["id"]))
        for entry in facts.get("wandb", ())
    ]
    online = connection.execute(
        "SELECT w.entity, w.project, w.wandb_run_id, a.ordinal FROM wandb_runs w LEFT JOIN attempts a"
        " ON a.id = w.attempt_id WHERE w.run_id = ? AND w.offline = 0 AND w.entity IS NOT NULL"
        " AND w.project IS NOT NULL AND w.wandb_run_id IS NOT NULL ORDER BY a.ordinal, w.id",
        (run_id,),
    )
    return found + [Source("wandb", "/".join(row[:3]), row[3]) for row in online]


@dataclass
class Curves:
    """Where values come from.

    Attributes:
        files: Parsed files.
        store: What was fetched from W&B, by any process.
    """

    files: MetricCache = field(default_factory=MetricCache)
    store: MetricStore | None = None

    @classmethod
    def beside(cls, database: Path) -> Curves:
        """Those of an index."""
        store = MetricStore(database)
        return cls(MetricCache(store), store)

    def read(self, item: Source, paths: PathMap, *, keep: bool = False) -> tuple[Segments, dict[str, Any]]:
        """The segments of one source, and what is to be said about it; ``keep`` stores even a small file."""
        report: dict[str, Any] = {"source": item.kind, "path": item.path, "state": "ok", "error": None}
        if item.kind == "wandb":
            return self._online(item, report)
        try:
            kind: FileSource = "file" if item.kind == "file" else "wandb-local"
            return self.files.read(paths.local(item.path), kind, keep=keep), report
        except OSError as error:
            return [], report | {"state": "error", "error": str(error.strerror or error)[:240]}

    def _online(self, item: Source, report: dict[str, Any]) -> tuple[Segments, dict[str, Any]]:
        known: OnlineRun | None = self.store.online(item.path) if self.store is not None else None
        if known is None:
            return [], report | {"state": "not_fetched", "fetched_at": None}
        segment = {
            name: Series("wandb", {x: value for x, value in one.points}, one.non_finite)  # noqa: C416 (pairs are lists)
            for name, one in known.series.items()
        }
        moment = datetime.fromtimestamp(known.fetched_at, UTC).isoformat(timespec="microseconds")
        state = "error" if known.error else known.state
        return [segment], report | {"state": state, "error": known.error, "fetched_at": moment}

    def known_names(self, item: Source) -> list[str]:
        """Names a W&B run is known to have logged, fetched or not."""
        known = self.store.online(item.path) if self.store is not None and item.kind == "wandb" else None
        return known.available if known is not None else []


def paths_of(connection: sqlite3.Connection) -> PathMap:
    """Where the index's paths are found on this machine."""
    return PathMap(tuple(tuple(text.split("=", 1)) for text in stored_roots(connection).get("path_map", ())))


def stage_of_run(connection: sqlite3.Connection, entity: Entity) -> str:
    """``rl``, ``sft`` or ``unknown``."""
    return str(connection.execute("SELECT stage FROM runs WHERE id = ?", (entity.id,)).fetchone()[0])


def online_wanted(
    connection: sqlite3.Connection,
    entity: Entity,
    curves: Curves,
    *,
    names: Sequence[str] = (),
    source: str = "auto",
    refresh: bool = False,
) -> list[Wanted]:
    """What W&B would have to be asked for these curves: nothing that local files hold, unless ``refresh`` says so."""
    found = sources_of(connection, entity.id)
    online = [item for item in found if item.kind == "wandb"]
    if source not in ("auto", "wandb") or not online:
        return []
    missing = list(names)
    if source == "auto" and not refresh:
        paths = paths_of(connection)
        local = {
            name
            for item in found
            if item.kind != "wandb"
            for segment in curves.read(item, paths)[0]
            for name, series in segment.items()
            if series.points
        }
        missing = [name for name in names if name not in local]
        if not missing and (names or default_metrics(stage_of_run(connection, entity), sorted(local))):
            return []
    globs = () if names else default_patterns(stage_of_run(connection, entity))
    return [Wanted(item.path, tuple(missing), globs) for item in online]


def run_metrics(
    connection: sqlite3.Connection,
    entity: Entity,
    curves: Curves,
    *,
    names: Sequence[str] = (),
    source: str = "auto",
    merge: str = "lineage",
    most: int = 1000,
    least_step: float | None = None,
    most_step: float | None = None,
) -> dict[str, Any]:
    """Series of one run; nothing is fetched here.

    Args:
        connection: The index.
        entity: The run.
        curves: Parsed files and fetched values.
        names: Metrics; without any, the default ones of the stage.
        source: ``auto`` takes per metric the first of ``file``, ``wandb-local`` and ``wandb`` that has data.
        merge: ``lineage`` (per step the latest attempt, earlier tails apart), ``mean`` or ``none``.
        most: Most points of a series.
        least_step: Least step.
        most_step: Greatest step.
    """
    stage, paths = stage_of_run(connection, entity), paths_of(connection)
    reports: list[dict[str, Any]] = []
    by_kind: dict[str, list[tuple[int | None, dict[str, Series]]]] = {kind: [] for kind in (*_FILES, "wandb")}
    offered: set[str] = set()
    for item in sources_of(connection, entity.id):
        if source not in ("auto", item.kind) and not (source == "local" and item.kind in _FILES):
            continue
        segments, report = curves.read(item, paths)
        by_kind[item.kind] += [
            (item.attempt if item.attempt is not None else index + 1, segment) for index, segment in enumerate(segments)
        ]
        offered.update(curves.known_names(item))
        reports.append(report)
    held = {name for segments in by_kind.values() for _, segment in segments for name in segment}
    available = sorted(held | offered)
    chosen = list(names) or default_metrics(stage, sorted(held))
    series: list[dict[str, Any]] = []
    for name in chosen[:_MOST_METRICS]:
        for kind in by_kind:
            found = [(attempt, segment[name]) for attempt, segment in by_kind[kind] if name in segment]
            if any(one.points for _, one in found):
                series += _merged(name, kind, found, merge, most, least_step, most_step)
                break
    return {
        "series": series,
        "available": available,
        "sources": reports,
        "fetched_at": max((item["fetched_at"] for item in reports if item.get("fetched_at")), default=None),
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
            "x": axis_of(name),
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
