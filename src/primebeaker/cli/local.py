"""``primebeaker local …``: what only the embedded engine has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.beaker.models import Experiment
from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean, choice, integer, number, text
from primebeaker.cli.following import EXIT_CODES
from primebeaker.cli.log_output import LineStyle, print_lines
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.tables import age, columns, duration, span
from primebeaker.errors import UserError
from primebeaker.local.engine import LocalEngine
from primebeaker.local.maintenance import collect_garbage, examine

__all__ = ["app"]

app = new_app("local", "Look after experiments of the engine on this machine.")
_secret = new_app("secret", "Values of secrets for experiments on this machine.")
app.command(_secret)

_STATES = ("created", "running", "succeeded", "failed", "canceled", "preempted")
_TIMED_OUT = 124


@dataclass(kw_only=True)
class HomeOptions(OutputOptions):
    """The flag that all of these commands have."""

    allow_network_home: Annotated[
        bool, boolean("Accept a home on a network file system.", name="allow-network-home", panel="Engine")
    ] = False


@dataclass(kw_only=True)
class ListOptions(HomeOptions):
    """The flags of ``local list``."""

    state: Annotated[str | None, choice("Only this state.", _STATES)] = None
    workspace: Annotated[str | None, text("Only this workspace.")] = None
    limit: Annotated[int, integer("Show at most so many.", least=1, default="20")] = 20


@dataclass(kw_only=True)
class LogOptions(HomeOptions):
    """The flags of ``local logs``."""

    rank: Annotated[int | None, integer("Only this replica.", least=0)] = None
    task: Annotated[str | None, text("Only this task.")] = None
    follow: Annotated[bool, boolean("Go on until the experiment ends, with its outcome.", name="follow")] = False
    tail: Annotated[int | None, integer("Only the last lines of each replica.", least=1)] = None
    timestamps: Annotated[bool, boolean("Begin lines with their time.", name="timestamps")] = False


@dataclass(kw_only=True)
class PreemptOptions(HomeOptions):
    """The flags of ``local preempt``."""

    rank: Annotated[int | None, integer("Only this replica.", least=0)] = None


@dataclass(kw_only=True)
class WaitOptions(HomeOptions):
    """The flags of ``local wait``."""

    timeout: Annotated[float | None, number("Give up after so many seconds, with exit code 124.", least=0)] = None


@dataclass(kw_only=True)
class SecretOptions(HomeOptions):
    """The flags of ``local secret``."""

    workspace: Annotated[str, text("The secret's workspace.", default="ai2/oe-agents")] = "ai2/oe-agents"


@dataclass(kw_only=True)
class GarbageOptions(HomeOptions):
    """The flags of ``local gc``."""

    older_than: Annotated[str, text("Only what ended longer ago: 7d, 12h, 0s.", default="7d")] = "7d"
    dry_run: Annotated[bool, boolean("Only say what would be removed.", name="dry-run")] = False


def _open(options: HomeOptions) -> LocalEngine:
    return LocalEngine(allow_network_home=options.allow_network_home, warn=warn)


@app.command(name="list")
def list_experiments(options: Annotated[ListOptions | None, Parameter(name="*")] = None) -> Result:
    """List experiments, newest first, with state, age, replicas and exit codes."""
    options = options or ListOptions()
    engine = _open(options)
    rows = []
    for shape in engine.shapes(workspace=options.workspace, state=options.state, limit=options.limit):
        created = datetime.fromisoformat(shape["created"])
        newest = {(job["name"], job["execution"]["replicaRank"]): job for job in shape["jobs"]}
        rows.append(
            {
                "id": shape["id"],
                "name": shape["name"],
                "workspace": shape["workspaceRef"]["fullName"],
                "state": shape["state"],
                "created": shape["created"],
                "age_seconds": round((datetime.now(UTC) - created).total_seconds(), 1),
                "replicas": len(newest),
                "exit_codes": [newest[key]["status"]["exitCode"] for key in sorted(newest)],
            }
        )

    def readable() -> str:
        cells = [
            (
                row["id"], row["name"], row["workspace"], row["state"], span(row["age_seconds"]), row["replicas"],
                " ".join("-" if code is None else str(code) for code in row["exit_codes"]),
            )
            for row in rows
        ]  # fmt: skip
        return columns(("ID", "NAME", "WORKSPACE", "STATE", "AGE", "REPLICAS", "EXIT CODES"), cells)

    return Result(rows, text=readable)


@app.command
def get(experiment_id: str, /, options: Annotated[HomeOptions | None, Parameter(name="*")] = None) -> Result:
    """Print an experiment as 'beaker experiment get --format json' does."""
    return Result([_open(options or HomeOptions()).shape(experiment_id)])


@app.command
def logs(experiment_id: str, /, options: Annotated[LogOptions | None, Parameter(name="*")] = None) -> int:
    """Print the log lines of an experiment or job; with --follow until it ends, then with its outcome as exit code."""
    options = options or LogOptions()
    engine = _open(options)
    lines = engine.logs(experiment_id, rank=options.rank, task=options.task, follow=options.follow, tail=options.tail)
    row, job = engine.experiment_or_job(experiment_id)
    several = options.rank is None and job is None and sum(task.replicas for task in engine.store.tasks(row.id)) > 1
    print_lines(lines, LineStyle(several, options.timestamps, options.format == "json"))
    return EXIT_CODES.get(engine.get(row.id).state, 0) if options.follow else 0


@app.command
def stop(*experiment_ids: str, options: Annotated[HomeOptions | None, Parameter(name="*")] = None) -> Result:
    """Stop experiments and wait until nothing of them runs."""
    engine = _open(options or HomeOptions())
    if not experiment_ids:
        raise UserError("EXPERIMENT_ID is missing", hint="give at least one id or name")
    # All are told before the first is waited for, and a wrong id stops nothing.
    rows = [engine.find(one) for one in experiment_ids]
    for row in rows:
        engine.request_stop(row.id)
    for row in rows:
        engine.stop(row.id)
    return _states([engine.get(row.id) for row in rows])


@app.command
def preempt(experiment_id: str, /, options: Annotated[PreemptOptions | None, Parameter(name="*")] = None) -> Result:
    """Preempt an experiment or one of its ranks, as Beaker would."""
    options = options or PreemptOptions()
    engine = _open(options)
    engine.preempt(experiment_id, rank=options.rank)
    return _states([engine.get(experiment_id)])


@app.command
def restart(experiment_id: str, /, options: Annotated[HomeOptions | None, Parameter(name="*")] = None) -> Result:
    """Start all tasks of an ended experiment again, with the same environment."""
    return _states([_open(options or HomeOptions()).restart(experiment_id)])


@app.command
def wait(experiment_id: str, /, options: Annotated[WaitOptions | None, Parameter(name="*")] = None) -> Result:
    """Wait for the end: exit code 0 succeeded, 4 failed, 5 canceled, 6 preempted, 124 time-out."""
    options = options or WaitOptions()
    engine = _open(options)
    try:
        ended = engine.wait(experiment_id, timeout=options.timeout)
    except TimeoutError:
        return _states([engine.get(experiment_id)], exit_code=_TIMED_OUT)
    return _states([ended], exit_code=EXIT_CODES.get(ended.state, 0))


@app.command
def events(experiment_id: str, /, options: Annotated[HomeOptions | None, Parameter(name="*")] = None) -> Result:
    """Print every change of state with its time and cause."""
    engine = _open(options or HomeOptions())
    row = engine.find(experiment_id)
    tasks = {task.id: task.name for task in engine.store.tasks(row.id)}
    jobs = {job.id: f"{tasks[job.task_id]}/{job.replica_rank}" for job in engine.store.jobs(row.id)}
    found = [
        {"at": event.at, "job": event.job_id, "replica": jobs.get(event.job_id or ""), "kind": event.kind,
         "detail": event.detail}
        for event in engine.store.events(row.id)
    ]  # fmt: skip
    header = ("AT", "REPLICA", "KIND", "DETAIL")
    return Result(
        found,
        text=lambda: columns(header, [(one["at"], one["replica"], one["kind"], one["detail"]) for one in found]),
    )


@_secret.command
def write(name: str, /, options: Annotated[SecretOptions | None, Parameter(name="*")] = None) -> Result:
    """Store a secret; its value is read from stdin, a final line end removed."""
    options = options or SecretOptions()
    value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise UserError(
            "the value is empty", hint=f"pass it on stdin: printf %s VALUE | primebeaker local secret write {name}"
        )
    _open(options).secrets.write(options.workspace, name, value)
    return Result({"name": name, "workspace": options.workspace}, text=lambda: f"{name} stored for {options.workspace}")


@_secret.command(name="list")
def list_secrets(options: Annotated[SecretOptions | None, Parameter(name="*")] = None) -> Result:
    """List the names of a workspace's secrets."""
    options = options or SecretOptions()
    names = list(_open(options).secret_list(options.workspace))
    return Result([{"name": name} for name in names], text=lambda: "\n".join(names))


@_secret.command
def delete(name: str, /, options: Annotated[SecretOptions | None, Parameter(name="*")] = None) -> Result:
    """Remove a secret."""
    options = options or SecretOptions()
    _open(options).secrets.delete(options.workspace, name)
    return Result({"name": name, "workspace": options.workspace}, text=lambda: f"{name} removed")


@app.command
def gc(options: Annotated[GarbageOptions | None, Parameter(name="*")] = None) -> Result:
    """Remove logs and rows of experiments that have ended; never those of running ones."""
    options = options or GarbageOptions()
    older_than = duration("--older-than", options.older_than)
    removed = collect_garbage(_open(options), older_than, dry_run=options.dry_run)
    verb = "would be removed" if options.dry_run else "removed"

    def readable() -> str:
        rows = [
            (one.id, one.name, one.state, age(datetime.fromisoformat(one.ended_at)), f"{one.bytes / 2**20:.1f} MiB")
            for one in removed
        ]
        return columns(("ID", "NAME", "STATE", "ENDED", "SIZE"), rows) + f"\n{len(rows)} {verb}"

    return Result([one._asdict() for one in removed], text=readable)


@app.command
def doctor(options: Annotated[HomeOptions | None, Parameter(name="*")] = None) -> Result:
    """Check the engine's home, database, left-over processes, ports and this machine's resources."""
    findings = examine(_open(options or HomeOptions()))
    rows = [("ok" if one.ok else "BAD", one.what, one.detail) for one in findings]
    return Result(
        [one._asdict() for one in findings],
        text=lambda: columns(("", "WHAT", "DETAIL"), rows),
        exit_code=0 if all(one.ok for one in findings) else 3,
    )


def _states(experiments: list[Experiment], *, exit_code: int = 0) -> Result:
    data: list[dict[str, Any]] = [{"id": one.id, "name": one.name, "state": one.state} for one in experiments]
    return Result(
        data if len(data) != 1 else data[0],
        text=lambda: "\n".join(f"{one['name']} ({one['id']}): {one['state']}" for one in data),
        exit_code=exit_code,
    )
