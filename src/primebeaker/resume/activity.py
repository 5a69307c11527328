"""Whether anybody still writes into an output directory: two launches must never change one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import ENDED, Job
from primebeaker.beaker.refusals import is_unknown
from primebeaker.errors import ExternalError, UserError
from primebeaker.prime_rl.layout import Layout, parse_step
from primebeaker.resume.attempts import read_attempts

__all__ = ["ActiveJob", "active_jobs", "check_files_at_rest", "refuse_active"]

_RECENT_SECONDS = 60.0
_BEAT_SECONDS = 15.0
_BEAT_PAUSE = 0.5


class ActiveJob(NamedTuple):
    """A job that may still write."""

    id: str
    experiment: str
    state: str


def active_jobs(engine: Engine, source_id: str, jobs: Iterable[Job], output_dir: Path) -> list[ActiveJob]:
    """Active jobs of the source and of every earlier attempt's child; an unknown child has ended.

    Raises:
        ExternalError: A state cannot be read.
    """
    known = list(jobs)
    fresh = engine.jobs([job.id for job in known]) if known else ()
    active = [ActiveJob(job.id, source_id, job.state) for job in fresh if job.state not in ENDED]
    for manifest in read_attempts(output_dir):
        child = manifest.get("child_experiment_id")
        if child and child != source_id:
            active += _of_child(engine, str(child))
    return active


def refuse_active(active: Iterable[ActiveJob]) -> None:
    """Refuse to resume while something runs.

    Raises:
        UserError: Names each job, its experiment and its state.
    """
    found = list(active)
    if found:
        listed = ", ".join(f"{job.id} of {job.experiment} is {job.state}" for job in found)
        raise UserError(f"the run is still active: {listed}", hint="stop it first, or wait for it to end")


def check_files_at_rest(layout: Layout, rendezvous_dir: str | None) -> None:
    """Refuse to resume while files of the run still change.

    Raises:
        UserError: A file under the newest checkpoint, broadcast or log directory is younger than a minute, or a
            replica's heartbeat still moves.
    """
    oldest = time.time() - _RECENT_SECONDS
    for folder in _newest_folders(layout):
        for path in _files(folder):
            try:
                changed = path.stat().st_mtime
            except OSError:
                continue
            if changed > oldest:
                raise UserError(
                    f"{path} is still being written: it changed {max(0.0, time.time() - changed):.0f} s ago",
                    hint="wait a minute, or pass --force",
                )
    if rendezvous_dir is not None:
        _check_beats(Path(rendezvous_dir))


def _of_child(engine: Engine, child: str) -> list[ActiveJob]:
    try:
        experiment = engine.get(child)
    except UserError:
        return []
    except ExternalError as error:
        if is_unknown(str(error)):
            return []
        raise
    if not experiment.jobs:
        return [] if experiment.ended else [ActiveJob("(none yet)", child, experiment.state)]
    return [ActiveJob(job.id, child, job.state) for job in experiment.jobs if job.state not in ENDED]


def _newest_folders(layout: Layout) -> Iterator[Path]:
    for root in dict.fromkeys((layout.trainer_checkpoints, layout.orchestrator_checkpoints, layout.broadcasts)):
        steps = [(parse_step(name), name) for name in _names(root)]
        numbered = [(step, name) for step, name in steps if step is not None]
        if numbered:
            yield root / max(numbered)[1]
    yield layout.logs


def _files(folder: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(folder):
        for name in names:
            yield Path(directory) / name


def _names(root: Path) -> list[str]:
    try:
        return os.listdir(root)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


def _check_beats(rendezvous: Path) -> None:
    before = _beats(rendezvous)
    deadline = time.monotonic() + _BEAT_SECONDS
    # Nobody beats when every member file has not been touched for long.
    while before and time.monotonic() < deadline:
        time.sleep(_BEAT_PAUSE)
        after = _beats(rendezvous)
        moved = sorted(path.name for path in after if after[path] != before.get(path))
        if moved:
            raise UserError(
                f"replicas of the source are still alive: {', '.join(moved)} below {rendezvous} still beat",
                hint="stop the source first, or pass --force",
            )


def _beats(rendezvous: Path) -> dict[Path, object]:
    oldest = time.time() - 20 * _BEAT_SECONDS
    found: dict[Path, object] = {}
    for path in rendezvous.glob("**/members/*.json"):
        try:
            if path.stat().st_mtime >= oldest:
                found[path] = json.loads(path.read_text(encoding="utf-8")).get("beat")
        except (OSError, ValueError, AttributeError):
            continue
    return found
