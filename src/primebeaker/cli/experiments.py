"""``primebeaker list|status|logs|follow|stop``: look at, follow and stop what was launched, on either engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from cyclopts import Parameter

from primebeaker.beaker.engine import ENGINE_NAMES, Engine
from primebeaker.beaker.models import Experiment, ExperimentState
from primebeaker.beaker.status import ExperimentStatus, experiment_status
from primebeaker.cli.engines import open_engine
from primebeaker.cli.flags import boolean, choice, integer
from primebeaker.cli.flags import text as text_flag
from primebeaker.cli.following import EXIT_CODES, Selection
from primebeaker.cli.following import follow as follow_experiment
from primebeaker.cli.log_output import LineStyle, print_lines
from primebeaker.cli.output import OutputOptions, Result
from primebeaker.cli.tables import age, columns, duration, span
from primebeaker.errors import UserError

__all__ = ["follow", "list_experiments", "logs", "status", "stop"]

_STATES = ("created", "running", "succeeded", "failed", "canceled", "preempted")
# Beaker lists the experiments of one workspace; this is the one launches go to by default.
_BEAKER_WORKSPACE = "ai2/oe-agents"
# A filtered list looks at this many of the newest experiments.
_MOST_LOOKED_AT = 200


@dataclass(kw_only=True)
class EngineOptions(OutputOptions):
    """The flag that all of these commands have."""

    engine: Annotated[
        str | None, choice("Where it runs.", ENGINE_NAMES, panel="Engine", default="PRIMEBEAKER_ENGINE, else beaker")
    ] = None
    workspace: Annotated[
        str | None, text_flag("Workspace to look in.", panel="Engine", default=f"{_BEAKER_WORKSPACE}; local: all")
    ] = None


@dataclass(kw_only=True)
class ListOptions(EngineOptions):
    """The flags of ``list``."""

    limit: Annotated[int, integer("Show at most so many.", least=1, panel="Filter", default="10")] = 10
    state: Annotated[str | None, choice("Only this state.", _STATES, panel="Filter")] = None
    text: Annotated[str | None, text_flag("Only with this text in name or description.", panel="Filter")] = None
    max_age: Annotated[str, text_flag("Only younger than this: 7 (days), 12h, 30m.", panel="Filter", default="7")] = "7"
    me: Annotated[bool, boolean("Only my own.", name="me", panel="Filter")] = False


@dataclass(kw_only=True)
class StatusOptions(EngineOptions):
    """The flags of ``status``."""

    latest: Annotated[bool, boolean("My newest experiment, instead of an id.", name="latest")] = False


@dataclass(kw_only=True)
class FollowOptions(StatusOptions):
    """The flags of ``follow``."""

    rank: Annotated[int | None, integer("Only this replica.", least=0, panel="Filter")] = None
    task: Annotated[str | None, text_flag("Only this task.", panel="Filter")] = None
    tail: Annotated[int | None, integer("Begin with the last lines of each replica.", least=1, panel="Filter")] = None
    timestamps: Annotated[bool, boolean("Begin lines with their time.", name="timestamps", panel="Output")] = False


@dataclass(kw_only=True)
class LogOptions(FollowOptions):
    """The flags of ``logs``."""

    since: Annotated[str | None, text_flag("Only lines since this time (ISO 8601).", panel="Filter")] = None
    follow: Annotated[bool, boolean("Go on until the experiment ends.", name="follow")] = False


@dataclass(kw_only=True)
class StopOptions(StatusOptions):
    """The flags of ``stop``."""

    yes: Annotated[bool, boolean("Do not ask.", name="yes")] = False
    dry_run: Annotated[bool, boolean("Only say what would be stopped.", name="dry-run")] = False


def list_experiments(options: Annotated[ListOptions | None, Parameter(name="*")] = None) -> Result:
    """List experiments, newest first."""
    options = options or ListOptions()
    youngest = duration("--max-age", options.max_age)
    engine = open_engine(options.engine)
    author = engine.whoami().name if options.me else None
    state = cast(ExperimentState | None, options.state)
    filtered = options.text is not None or author is not None
    found = engine.list(
        workspace=_workspace(engine, options.workspace),
        state=state,
        limit=max(options.limit, _MOST_LOOKED_AT) if filtered else options.limit,
    )
    limit = datetime.now(UTC) - youngest
    chosen = [
        one
        for one in found
        if (one.created is None or one.created >= limit)
        and author in (None, one.author)
        and (options.text is None or options.text in one.name or options.text in one.description)
    ][: options.limit]
    data = [_summary(one) for one in chosen]

    def readable() -> str:
        rows = [
            (one.id, one.name, one.author, one.state, age(one.created), _replica_counts(one), _codes(one))
            for one in chosen
        ]
        header = ("ID", "NAME", "AUTHOR", "STATE", "AGE", "REPLICAS", "EXIT CODES")
        return columns(header, rows) if rows else "no experiments"

    return Result(data, text=readable)


def status(
    experiment_id: str | None = None, /, options: Annotated[StatusOptions | None, Parameter(name="*")] = None
) -> Result:
    """Print the state of an experiment and of each of its replicas, and the first cause when it failed."""
    options = options or StatusOptions()
    _check_choice(experiment_id, options)
    engine = open_engine(options.engine)
    found = experiment_status(_find(engine, experiment_id, options))
    return Result(found.as_dict(), text=lambda: _readable_status(found))


def logs(experiment_id: str | None = None, /, options: Annotated[LogOptions | None, Parameter(name="*")] = None) -> int:
    """Print an experiment's log lines; with --follow until it ends."""
    options = options or LogOptions()
    since = _time("--since", options.since)
    _check_choice(experiment_id, options)
    engine = open_engine(options.engine)
    experiment = _find(engine, experiment_id, options)
    style = _style(experiment, options)
    if options.follow and since is None:
        selection = Selection(options.rank, options.task, options.tail)
        return EXIT_CODES.get(follow_experiment(engine, experiment.id, selection, style).state, 0)
    lines = engine.logs(
        experiment.id, rank=options.rank, task=options.task, follow=options.follow, tail=options.tail, since=since
    )
    print_lines(lines, style)
    return 0


def follow(
    experiment_id: str | None = None, /, options: Annotated[FollowOptions | None, Parameter(name="*")] = None
) -> int:
    """Follow an experiment's lines and changes of state until it ends; Ctrl-C leaves it running."""
    options = options or FollowOptions()
    _check_choice(experiment_id, options)
    engine = open_engine(options.engine)
    experiment = _find(engine, experiment_id, options)
    selection = Selection(options.rank, options.task, options.tail)
    ended = follow_experiment(engine, experiment.id, selection, _style(experiment, options))
    return EXIT_CODES.get(ended.state, 0)


def stop(*experiment_ids: str, options: Annotated[StopOptions | None, Parameter(name="*")] = None) -> Result:
    """Stop experiments. Stopping one that has ended succeeds."""
    options = options or StopOptions()
    wanted: Sequence[str | None] = experiment_ids or (None,)
    _check_choice(wanted[0], options)
    engine = open_engine(options.engine)
    # All are looked up first: a wrong id stops nothing.
    found = [_find(engine, one, options) for one in wanted]
    outcomes: list[dict[str, Any]] = []
    for experiment in found:
        done = "ended before"
        if not experiment.ended:
            if options.dry_run:
                done = "would be stopped"
            elif options.yes or _confirmed(experiment):
                engine.stop(experiment.id)
                done = "stopped"
            else:
                done = "left running"
        outcomes.append({"id": experiment.id, "name": experiment.name, "outcome": done})
    return Result(
        outcomes, text=lambda: "\n".join(f"{one['name']} ({one['id']}): {one['outcome']}" for one in outcomes)
    )


def _check_choice(experiment_id: str | None, options: StatusOptions) -> None:
    """Check that an id or ``--latest`` is given, before any engine is asked."""
    if experiment_id is not None and options.latest:
        raise UserError("--latest does not go with an id", hint="give one of the two")
    if experiment_id is None and not options.latest:
        raise UserError("EXPERIMENT_ID is missing", hint="give an id or a name, or --latest for your newest one")


def _find(engine: Engine, experiment_id: str | None, options: StatusOptions) -> Experiment:
    if experiment_id is not None:
        return engine.get(experiment_id)
    me = engine.whoami().name
    listed = engine.list(workspace=_workspace(engine, options.workspace), limit=_MOST_LOOKED_AT)
    for experiment in listed:
        if experiment.author == me:
            return engine.get(experiment.id)
    raise UserError(f"{me} has no experiment here", hint="list them with 'primebeaker list'")


def _style(experiment: Experiment, options: FollowOptions) -> LineStyle:
    prefixed = options.rank is None and len(experiment.latest_jobs) > 1
    return LineStyle(prefixed, options.timestamps, options.format == "json")


def _workspace(engine: Engine, chosen: str | None) -> str | None:
    return chosen or (_BEAKER_WORKSPACE if engine.name == "beaker" else None)


def _confirmed(experiment: Experiment) -> bool:
    """Ask on a terminal; a script means what it says."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"Stop {experiment.name} ({experiment.id})? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _summary(experiment: Experiment) -> dict[str, Any]:
    found = experiment_status(experiment)
    return {
        "id": found.id,
        "name": found.name,
        "author": experiment.author,
        "workspace": found.workspace,
        "description": experiment.description,
        "state": found.state,
        "created": found.created,
        "replicas": len(found.replicas),
        "states": _counts(found),
        "exit_codes": [replica.exit_code for replica in found.replicas],
        "cause": found.cause,
        "url": found.url,
    }


def _counts(found: ExperimentStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for replica in found.replicas:
        counts[replica.state] = counts.get(replica.state, 0) + 1
    return counts


def _replica_counts(experiment: Experiment) -> str:
    return ", ".join(f"{count} {state}" for state, count in _counts(experiment_status(experiment)).items())


def _codes(experiment: Experiment) -> str:
    codes = [job.status.exit_code for job in experiment.latest_jobs]
    return " ".join("-" if code is None else str(code) for code in codes) if any(c is not None for c in codes) else ""


def _readable_status(found: ExperimentStatus) -> str:
    lines = [f"{found.name} ({found.id}) in {found.workspace}: {found.state}"]
    if found.url:
        lines.append(found.url)
    if found.cause:
        lines.append(f"first cause: {found.cause}")
    rows = [
        (
            replica.task, replica.rank, replica.state, replica.doing, span(replica.seconds), replica.exit_code,
            replica.attempt, replica.message,
        )
        for replica in found.replicas
    ]  # fmt: skip
    header = ("TASK", "RANK", "STATE", "PHASE", "TIME", "EXIT", "ATTEMPT", "MESSAGE")
    return "\n".join([*lines, "", columns(header, rows)])


def _time(flag: str, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError as error:
        raise UserError(f"{flag} = {value!r}: expected a time like 2026-01-31T12:00:00Z") from error
    return parsed if parsed.tzinfo is not None else parsed.astimezone()
