"""Follow an experiment: its log lines to stdout, its changes of state to stderr, until it has ended."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import Experiment, ExperimentState, LogLine
from primebeaker.beaker.status import ExperimentStatus, ReplicaStatus, experiment_status
from primebeaker.cli.log_output import LineStyle, print_lines
from primebeaker.errors import ExternalError, Interrupted, PrimeBeakerError

__all__ = ["EXIT_CODES", "Selection", "follow"]

#: Experiment state -> exit code of the commands that wait for its end.
EXIT_CODES: dict[ExperimentState, int] = {"succeeded": 0, "failed": 4, "canceled": 5, "preempted": 6}

_LOOK_SECONDS = {"local": 0.3, "beaker": 10.0}
_MOST_WAITING_LINES = 10_000

Answer = Literal["stop", "follow", "quit"]


class Selection(NamedTuple):
    """Which lines: of one rank, of one task, only the last ones of what is there at the start."""

    rank: int | None = None
    task: str | None = None
    tail: int | None = None


def follow(engine: Engine, experiment_id: str, selection: Selection, style: LineStyle) -> Experiment:
    """Print an experiment's log lines and changes of state until it has ended.

    Jobs that start later (a replica that was queued or restarted) are taken up when they do.  An interruption never
    ends the experiment unless the user answers so.

    Raises:
        Interrupted: The user wants no more; the experiment goes on.
    """
    experiment = engine.get(experiment_id)
    changes = _Changes()
    follower = _Follower(engine, experiment.id, selection, style)
    changes.show(experiment_status(experiment))
    watch = _Watch(engine, experiment.id, changes)
    _interruptible(follower.run, engine, experiment)
    watch.stop()
    ended = engine.get(experiment.id)
    changes.show(experiment_status(ended))
    return ended


class _Follower:
    """Prints the lines of all jobs; :meth:`run` may be interrupted and called again."""

    def __init__(self, engine: Engine, experiment_id: str, selection: Selection, style: LineStyle) -> None:
        self._engine = engine
        self._id = experiment_id
        self._selection = selection
        self._style = style
        self._feed: _Feed | None = None
        #: Jobs whose lines have been printed to the end.
        self._done: set[str] = set()
        self._pause = threading.Event()

    def run(self) -> None:
        """Print until the experiment has ended and all its lines are there."""
        while True:
            if self._feed is None:
                experiment = self._engine.get(self._id)
                started = {job.id for job in experiment.latest_jobs if job.status.started or job.status.failed}
                if started <= self._done:
                    if experiment.ended:
                        return
                    self._pause.wait(_LOOK_SECONDS[self._engine.name])
                    continue
                self._feed = _Feed(self._lines, frozenset(self._done), started)
            print_lines(self._feed.lines(), self._style)
            self._done |= self._feed.jobs
            self._feed = None

    def _lines(self) -> Iterator[LogLine]:
        rank, task, tail = self._selection
        return self._engine.logs(self._id, follow=True, rank=rank, task=task, tail=tail)


def _interruptible(work: Callable[[], None], engine: Engine, experiment: Experiment) -> None:
    """Do it again after an interruption as long as the user wants that."""
    while True:
        try:
            work()
        except KeyboardInterrupt:
            answer = _ask(experiment)
            if answer == "stop":
                _note(f"stopping {experiment.name}")
                engine.stop(experiment.id)
            elif answer == "quit":
                raise Interrupted(
                    f"interrupted: {experiment.name} goes on; follow it again with 'primebeaker follow {experiment.id}'"
                ) from None
        else:
            return


def _ask(experiment: Experiment) -> Answer:
    """What a Ctrl-C is to mean; without a terminal nothing is asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "quit"
    try:
        sys.stderr.write(f"\n{experiment.name} is running. [q]uit following, [f]ollow on, [s]top the experiment? [q] ")
        sys.stderr.flush()
        word = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        return "quit"
    answers: tuple[Answer, ...] = ("stop", "follow", "quit")
    return next((answer for answer in answers if word and answer.startswith(word)), "quit")


class _Feed:
    """Lines of a generator that blocks, handed over so that an interruption loses none."""

    def __init__(self, make: Callable[[], Iterator[LogLine]], known: frozenset[str], started: set[str]) -> None:
        self._known = known
        #: The jobs whose lines it gives.
        self.jobs = set(started)
        self._lines: queue.Queue[LogLine | PrimeBeakerError | None] = queue.Queue(_MOST_WAITING_LINES)
        threading.Thread(target=self._run, args=(make,), name="log lines", daemon=True).start()

    def _run(self, make: Callable[[], Iterator[LogLine]]) -> None:
        try:
            for line in make():
                self._lines.put(line)
        except PrimeBeakerError as error:
            self._lines.put(error)
        else:
            self._lines.put(None)

    def lines(self) -> Iterator[LogLine]:
        """The lines, until the generator ends."""
        while (line := self._lines.get()) is not None:
            if isinstance(line, PrimeBeakerError):
                raise line
            if line.job_id not in self._known:
                self.jobs.add(line.job_id)
                yield line


class _Watch:
    """Shows changes of state while lines are printed."""

    def __init__(self, engine: Engine, experiment_id: str, changes: _Changes) -> None:
        self._engine = engine
        self._id = experiment_id
        self._changes = changes
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state changes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS[self._engine.name]):
            try:
                self._changes.show(experiment_status(self._engine.get(self._id)))
            except ExternalError as error:
                _note(str(error))


class _Changes:
    """Tells each change of a replica's state or phase once; ranks that change alike share a line."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None], str] = {}
        self._state: str | None = None

    def show(self, status: ExperimentStatus) -> None:
        """Tell what is new."""
        groups: dict[tuple[str, str], list[int]] = {}
        for replica in status.replicas:
            key, now = (replica.task, replica.rank), _described(replica)
            if self._known.get(key) != now:
                self._known[key] = now
                groups.setdefault((replica.task, now), []).append(replica.rank or 0)
        several = len(status.replicas) > 1
        for (task, now), ranks in groups.items():
            who = f"{task} {_ranks(ranks)}" if several else task
            _note(f"{who}: {now}")
        if status.state != self._state and status.state in EXIT_CODES:
            cause = f": {status.cause}" if status.cause else ""
            _note(f"{status.name} {status.state}{cause}")
        self._state = status.state


def _described(replica: ReplicaStatus) -> str:
    parts = [replica.state]
    if replica.doing and replica.state == "running":
        parts.append(f"({replica.doing})")
    if replica.exit_code is not None:
        parts.append(f"with exit code {replica.exit_code}")
    if replica.attempt > 1:
        parts.append(f"(attempt {replica.attempt})")
    says_more = replica.message and replica.message != f"ended with {replica.exit_code}"
    return " ".join(parts) + (f": {replica.message}" if says_more else "")


def _ranks(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 0-3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _note(text: str) -> None:
    bold = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(f"\x1b[1m{text}\x1b[0m\n" if bold else f"{text}\n")
    sys.stderr.flush()
