"""``watcher sync``: fill the cache of curves ahead of their first viewer."""

from __future__ import annotations

import fnmatch
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primebeaker.watcher.database import reading
from primebeaker.watcher.errors import missing_package
from primebeaker.watcher.metrics import Curves, default_patterns, paths_of, sources_of, stage_of_run
from primebeaker.watcher.references import Entity, resolve_reference
from primebeaker.watcher.wandb_fetch import Fetcher, Wanted

__all__ = ["SyncOptions", "sync"]


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """What to fill the cache with.

    Attributes:
        runs: References of runs; without any, all.
        metrics: Globs of metrics to fetch; without any, the default curves of the run's stage.
        source: ``local`` reads files alone, ``wandb`` fetches alone, ``auto`` fetches what no file holds.
        rate: Most requests to W&B a minute.
        secret: Name of the Beaker secret that holds the W&B key.
    """

    runs: Sequence[str] = ()
    metrics: Sequence[str] = ()
    source: str = "auto"
    rate: float = 60.0
    secret: str | None = None


@dataclass
class _Tally:
    runs: int = 0
    files: int = 0
    wanted: dict[str, Wanted] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)


def sync(database: Path, options: SyncOptions, *, warn: Callable[[str], None]) -> dict[str, Any]:
    """Read metric files and fetch W&B runs into ``<database>.metrics``.

    Args:
        database: The index.
        options: What to fill the cache with.
        warn: Receives one-line warnings.

    Returns:
        ``operation``, ``database``, ``cache``, ``runs``, ``files``, ``wandb_runs`` (asked now), ``wandb_current`` (not
        due), ``failures`` and ``seconds``.

    Raises:
        UserError: A reference names no run, or the W&B client is not installed and only it was asked for.
        DatabaseUnusableError: The index is damaged.
    """
    began = time.monotonic()
    curves = Curves.beside(database)
    assert curves.store is not None
    tally = _Tally()
    with reading(database, warn=warn) as connection:
        paths = paths_of(connection)
        for entity in _entities(connection, options.runs):
            tally.runs += 1
            patterns = tuple(options.metrics) or default_patterns(stage_of_run(connection, entity))
            held = False
            for item in sources_of(connection, entity.id):
                if item.kind == "wandb":
                    if options.source == "wandb" or (options.source == "auto" and not held):
                        tally.wanted[item.path] = Wanted(item.path, (), patterns)
                    continue
                if options.source == "wandb":
                    continue
                segments, report = curves.read(item, paths, keep=True)
                tally.files += report["error"] is None
                if report["error"] is not None:
                    tally.failures.append({"source": item.kind, "path": item.path, "error": report["error"]})
                held = held or _holds(segments, patterns)
    fetcher = Fetcher(curves.store, options.secret, options.rate)
    due = fetcher.due(list(tally.wanted.values()))
    if due:
        if importlib.util.find_spec("wandb") is None:
            if options.source == "wandb":
                raise missing_package("wandb")
            warn("W&B is left out: the package wandb is not installed; pip install 'primebeaker[watcher]'")
            due = []
        else:
            fetcher.fetch(due, told=lambda answer: _note(answer, tally))
    for failure in tally.failures:
        warn(f"{failure['path']}: {failure['error']}")
    return {
        "operation": "sync",
        "database": str(database),
        "cache": str(curves.store.path),
        "runs": tally.runs,
        "files": tally.files,
        "wandb_runs": len(due),
        "wandb_current": len(tally.wanted) - len(due),
        "failures": tally.failures,
        "seconds": round(time.monotonic() - began, 3),
    }


def _entities(connection: Any, references: Sequence[str]) -> Iterable[Entity]:
    if references:
        return [resolve_reference(connection, reference, kinds=("run",)) for reference in references]
    return [
        Entity("run", row[0], row[1], row[2])
        for row in connection.execute("SELECT id, key, name FROM runs WHERE missing_since IS NULL ORDER BY id")
    ]


def _holds(segments: Iterable[Mapping[str, Any]], patterns: Sequence[str]) -> bool:
    """Whether a file holds any of the wanted curves; W&B is not asked then."""
    return any(
        series.points and fnmatch.fnmatchcase(name, pattern)
        for segment in segments
        for name, series in segment.items()
        for pattern in patterns
    )


def _note(answer: Mapping[str, Any], tally: _Tally) -> None:
    if answer.get("error"):
        tally.failures.append({"source": "wandb", "path": answer["path"], "error": answer["error"]})
