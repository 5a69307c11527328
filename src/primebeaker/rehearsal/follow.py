"""Start a prepared rehearsal on the embedded engine and follow it to its end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.beaker.models import Experiment
from primebeaker.errors import ExternalError, UserError
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.damage import run_layout
from primebeaker.rehearsal.injection import Injector, Progress, processes_left
from primebeaker.rehearsal.prepare import PreparedRehearsal

__all__ = ["Followed", "follow", "read_records", "role_events"]

_LOOK_SECONDS = 0.2
_QUIET_SECONDS = 15.0
_LEFT_SECONDS = 2.0


@dataclass(frozen=True)
class Followed:
    """How a rehearsal ended."""

    experiment: Experiment
    seconds: float
    timed_out: bool
    #: ``time.monotonic()`` of the end.
    ended_at: float
    #: Processes of the rehearsal that were still alive.
    left: int


def follow(
    prepared: PreparedRehearsal,
    engine: LocalEngine,
    progress: Callable[[str], None],
    injector: Injector | None = None,
) -> Followed:
    """Create the experiment, tell each step, and return when nothing of it runs any more.

    Args:
        prepared: What to run.
        engine: Where.
        progress: Takes one line at a time.
        injector: Strikes the faults; without one there are none.

    Raises:
        UserError: The engine refuses the spec.
        KeyboardInterrupt: The user interrupted, or another signal came as :class:`Interrupted`; the experiment has been
            stopped and every process has ended.
    """
    started = time.monotonic()
    injector = injector or Injector((), prepared.work_dir / "rehearsal", progress)
    spec, workspace = Path(prepared.plan.paths.spec), prepared.plan.settings.workspace
    with stopped_on_failure(engine, prepared.experiment_name):
        created = engine.create(spec, name=prepared.experiment_name, workspace=workspace, rehearsal=prepared.hooks)
        experiment = created.experiment_id
        if experiment is None:
            raise ExternalError("the embedded engine gave no experiment id")
        progress(f"started {prepared.experiment_name} ({experiment})")
        injector.begin(engine, experiment)
        ended = _watch(prepared, engine, experiment, progress, started, injector)
        if ended is not None and ended.state == "preempted" and injector.restarts:
            progress("restarting the preempted run")
            engine.restart(experiment)
            ended = _watch(prepared, engine, experiment, progress, started, injector)
    timed_out = ended is None
    if timed_out:
        progress(f"not done after {prepared.timeout:g} s: stopping")
        engine.stop(experiment)
    now = time.monotonic()
    left = _left(Path(prepared.work_dir) / "rehearsal")
    return Followed(engine.get(experiment), now - started, timed_out, now, left)


@contextlib.contextmanager
def stopped_on_failure(engine: LocalEngine, name: str) -> Iterator[None]:
    """Stop the experiment of that name when what is done here fails, also when it was only just being created."""
    earlier = _id_of(engine, name)
    try:
        yield
    except BaseException:
        ours = _id_of(engine, name)
        if ours is not None and ours != earlier:
            engine.stop(ours)
        raise


def _id_of(engine: LocalEngine, name: str) -> str | None:
    try:
        return engine.find(name).id
    except UserError:
        return None


def _left(directory: Path) -> int:
    """Processes that outlive the run; the last ones get a moment to be gone."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while (left := processes_left(directory)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return left


def _watch(
    prepared: PreparedRehearsal,
    engine: LocalEngine,
    experiment: str,
    progress: Callable[[str], None],
    started: float,
    injector: Injector,
) -> Experiment | None:
    """Tell what happens until the experiment ends; None when the time is up."""
    told = _Told(prepared, progress)
    quiet_since = time.monotonic()
    while True:
        current = engine.get(experiment)
        if told.news():
            quiet_since = time.monotonic()
        if current.state not in ("created", "running"):
            return current
        injector.look(engine, experiment, told.so_far())
        now = time.monotonic()
        if now - started > prepared.timeout:
            return None
        if now - quiet_since > _QUIET_SECONDS:
            quiet_since = now
            progress(f"still waiting: {told.waiting_for()} ({now - started:.0f} s of {prepared.timeout:.0f} s)")
        time.sleep(_LOOK_SECONDS)


class _Told:
    """What has been told so far, so that each piece of news is told once."""

    def __init__(self, prepared: PreparedRehearsal, progress: Callable[[str], None]) -> None:
        self._prepared = prepared
        self._progress = progress
        self._layout = run_layout(prepared.plan)
        self._steps = 0
        self._phases: set[tuple[int, str]] = set()
        self._begun: set[str] = set()
        self._last_phase = "the replicas to start"

    def news(self) -> bool:
        """Tell what is new; whether anything was."""
        lines = [*self._new_phases(), *self._new_steps()]
        for line in lines:
            self._progress(line)
        return bool(lines)

    def so_far(self) -> Progress:
        """The steps made and the phases begun."""
        return Progress(self._steps, frozenset(self._begun))

    def waiting_for(self) -> str:
        """What the run is at."""
        return f"step {self._steps + 1}" if self._steps else self._last_phase

    def _new_phases(self) -> Iterator[str]:
        for event in role_events(self._prepared.output_dir):
            if event.get("event") != "phase":
                continue
            rank, phase = int(event.get("rank", 0)), str(event.get("phase"))
            self._begun.add(phase)
            if event.get("state") == "started":
                self._last_phase = f"phase {phase} of replica {rank}"
            elif rank == 0 and (rank, phase) not in self._phases:
                self._phases.add((rank, phase))
                yield f"{phase} done in {float(event.get('seconds', 0)):.1f} s"

    def _new_steps(self) -> Iterator[str]:
        path = self._layout.orchestrator_metrics if self._prepared.kind == "rl" else self._layout.metrics
        records = [record for record in read_records(path) if "step" in record]
        for record in records[self._steps :]:
            self._steps += 1
            yield _step_line(record, self._prepared.steps)


def _step_line(record: dict[str, Any], steps: int) -> str:
    line = f"step {record['step']} of {steps}"
    reward = record.get("train/agg/all/reward/mean")
    if reward is not None:
        rollouts, errors = record.get("progress/rollouts", 0), record.get("rehearsal/errors", 0)
        return f"{line}: mean reward {reward:.3f}, {rollouts} rollouts" + (f", {errors} errors" if errors else "")
    loss = record.get("loss/mean", record.get("loss"))
    return f"{line}: loss {loss:.3f}" if isinstance(loss, int | float) else line


def role_events(output_dir: Path) -> list[dict[str, Any]]:
    """Every event the roles of a run wrote, rank by rank."""
    folder = output_dir / "logs" / "primebeaker"
    return [record for path in sorted(folder.glob("rank_*.jsonl")) for record in read_records(path)]


def read_records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that may still be written to; a last line that is not whole is left out."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
