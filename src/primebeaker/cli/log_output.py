"""Print log lines and follow experiments: lines to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from typing import Literal

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import Experiment, ExperimentState, LogLine
from primebeaker.beaker.status import ExperimentStatus, ReplicaStatus, experiment_status
from primebeaker.errors import ExternalError, Interrupted, PrimeBeakerError

__all__ = ["EXIT_CODES", "follow", "print_lines"]

#: Experiment state -> exit code of the commands that wait for its end.
EXIT_CODES: dict[ExperimentState, int] = {"succeeded": 0, "failed": 4, "canceled": 5, "preempted": 6}

_LOOK_SECONDS = {"local": 0.3, "beaker": 10.0}
_MOST_WAITING_LINES = 10_000
# Enough for the last line of an ended job to arrive.
_ANSWER_SECONDS = 60.0

# Terminal colours that are readable on dark and light: cyan, green, yellow, blue, magenta, and their bright forms.
_COLOURS = (36, 32, 33, 34, 35, 96, 92, 93, 94, 95)

Answer = Literal["stop", "follow", "quit"]


def print_lines(lines: Iterable[LogLine], *, prefixed: bool, timestamps: bool = False, as_json: bool = False) -> int:
    """Print log lines as they come.

    Args:
        lines: From an engine.
        prefixed: Begin each line with ``[task/rank] ``.
        timestamps: Begin each line with the time it arrived.
        as_json: One JSON object a line instead.

    Returns:
        How many lines there were.
    """
    count, width = 0, 0
    for line in lines:
        if as_json:
            text = _as_json(line)
        else:
            prefix = _prefix(line) if prefixed else ""
            # Known replicas line up; a longer prefix that comes later widens the column.
            width = max(width, len(prefix))
            text = _stamp(line) * timestamps + _painted(prefix, line.replica_rank, width) + f"{line.text}\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        count += 1
    return count


def follow(
    engine: Engine,
    experiment_id: str,
    *,
    prefixed: bool,
    timestamps: bool = False,
    as_json: bool = False,
    tail: int | None = None,
    rank: int | None = None,
    task: str | None = None,
) -> Experiment:
    """Print an experiment's log lines and changes of state until it has ended. Interrupting never ends the experiment
    unless the user answers so.

    Raises:
        Interrupted: The user wants no more; the experiment goes on.
    """
    changes = _Changes()
    experiment = engine.get(experiment_id)
    _interruptible(lambda: _until_started(engine, experiment, changes), engine, experiment)
    feed = _Feed(lambda: engine.logs(experiment.id, follow=True, tail=tail, rank=rank, task=task))
    watch = _Watch(engine, experiment.id, changes)

    def show() -> None:
        print_lines(feed.lines(), prefixed=prefixed, timestamps=timestamps, as_json=as_json)

    _interruptible(show, engine, experiment)
    try:
        ended = engine.wait(experiment.id, timeout=_ANSWER_SECONDS)
    except TimeoutError:
        # A single job was followed, or the log broke off: the experiment itself goes on.
        ended = engine.get(experiment.id)
    watch.stop()
    changes.show(experiment_status(ended))
    return ended


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


def _until_started(engine: Engine, experiment: Experiment, changes: _Changes) -> None:
    pause = threading.Event()
    while True:
        current = engine.get(experiment.id)
        changes.show(experiment_status(current))
        if current.ended or any(job.status.started for job in current.jobs):
            return
        pause.wait(_LOOK_SECONDS[engine.name])


class _Feed:
    """Lines of a generator that blocks, handed over so that an interruption loses none."""

    def __init__(self, make: Callable[[], Iterator[LogLine]]) -> None:
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
    return " ".join(parts) + (f": {replica.message}" if replica.message else "")


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


def _prefix(line: LogLine) -> str:
    return f"[{line.task}/{0 if line.replica_rank is None else line.replica_rank}] "


def _stamp(line: LogLine) -> str:
    if line.timestamp is None:
        return ""
    return line.timestamp.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")


def _painted(prefix: str, rank: int | None, width: int) -> str:
    """The prefix as it is; on a terminal in a column of its own, each rank in its colour."""
    if not prefix or not sys.stdout.isatty():
        return prefix
    padded = prefix.ljust(width)
    if os.environ.get("NO_COLOR"):
        return padded
    return f"\x1b[{_COLOURS[(rank or 0) % len(_COLOURS)]}m{padded}\x1b[0m"


def _as_json(line: LogLine) -> str:
    time = None if line.timestamp is None else line.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z")
    values = {"time": time, "task": line.task, "rank": line.replica_rank, "job": line.job_id, "text": line.text}
    return json.dumps(values, ensure_ascii=False) + "\n"


def _note(text: str) -> None:
    bold = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(f"\x1b[1m{text}\x1b[0m\n" if bold else f"{text}\n")
    sys.stderr.flush()
