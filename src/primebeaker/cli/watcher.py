"""``primebeaker watcher``: index training runs and evaluations, ask about them, serve the pages."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.output import Result, warn
from primebeaker.cli.watcher_flags import DatabaseOptions, ScanFlags, database_of
from primebeaker.errors import UserError
from primebeaker.watcher import comparing, details, lineage, lists, rebuild, serving, summary
from primebeaker.watcher.database import open_reader, reading
from primebeaker.watcher.issues import SEVERITIES
from primebeaker.watcher.parameters import (
    EVALUATION_PARAMETERS,
    ISSUE_PARAMETERS,
    RUN_PARAMETERS,
    STAGES,
    STATES,
    STATUSES,
    check_parameters,
)
from primebeaker.watcher.references import resolve_reference
from primebeaker.watcher.roots import choose_roots, extended, report_roots, stored_roots
from primebeaker.watcher.tables import as_table, as_tree
from primebeaker.watcher.update import update as run_update

__all__ = ["app"]

app = new_app("watcher", "Index training runs and evaluations, ask where a checkpoint came from, serve the pages.")
Flat = Parameter(name="*")


def _warn(line: str) -> None:
    warn([line])


def _result(data: Any, *, exit_code: int = 0, rows: str | None = None) -> Result:
    return Result(data, text=lambda: as_table(data[rows]) if rows else as_tree(data), exit_code=exit_code)


@dataclass(kw_only=True)
class StatusOptions(DatabaseOptions):
    """The flags of ``watcher status``."""

    check: Annotated[bool, boolean("Exit 1 unless the index is there, whole and young enough.", name="check")] = False
    max_age_minutes: Annotated[float, number("With --check: how old the last scan may be.", least=0, default="0")] = 0.0


@app.command
def status(options: Annotated[StatusOptions | None, Flat] = None) -> Result:
    """Print what the index holds and whether it is whole. Writes nothing."""
    options = options or StatusOptions()
    answer, error = summary.status(database_of(options), warn=_warn)
    if error is not None:
        warn([str(error)])
    code = error.exit_code if error is not None else 0
    if options.check and not summary.is_healthy(answer, max_age_minutes=options.max_age_minutes):
        code = code or 1
    return _result(answer, exit_code=code)


@dataclass(kw_only=True)
class UpdateOptions(ScanFlags):
    """The flags of ``watcher update``."""

    skip_indexed: Annotated[bool, boolean("Do not read unchanged files again.", name="skip-indexed")] = True
    details: Annotated[bool, boolean("List the indexed checkpoints.", name="details")] = False
    strict: Annotated[bool, boolean("Exit 1 when there is an issue of severity error.", name="strict")] = False
    full: Annotated[bool, boolean("Read every file, also unchanged ones.", name="full")] = False
    dry_run: Annotated[bool, boolean("Scan without changing the index.", name="dry-run")] = False


@app.command
def update(options: Annotated[UpdateOptions | None, Flat] = None) -> Result:
    """Scan what changed. One bad file never stops it."""
    options = options or UpdateOptions()
    scan = options.scan(full=options.full or not options.skip_indexed, details=options.details)
    answer = run_update(database_of(options), options.given(), scan, warn=_warn, dry_run=options.dry_run)
    return _result(answer, exit_code=int(options.strict and answer["issues"].get("error", 0) > 0))


@dataclass(kw_only=True)
class RebuildFlags(ScanFlags):
    """The flags of ``watcher rebuild``."""

    backup: Annotated[bool, boolean("Keep a copy of the old index.", name="backup")] = True
    keep_backups: Annotated[int, integer("How many backups remain.", least=1, default="5")] = 5
    require_clean: Annotated[bool, boolean("Refuse when a training TOML is unreadable.", name="require-clean")] = True
    require_models: Annotated[bool, boolean("Refuse when there is no checkpoint.", name="require-models")] = True
    details: Annotated[bool, boolean("List the indexed checkpoints.", name="details")] = False


@app.command(name="rebuild")
def rebuild_index(options: Annotated[RebuildFlags | None, Flat] = None) -> Result:
    """Scan into a fresh index, check it, and swap it in whole."""
    options = options or RebuildFlags()
    rules = rebuild.RebuildOptions(
        backup=options.backup,
        keep_backups=options.keep_backups,
        require_clean=options.require_clean,
        require_models=options.require_models,
    )
    scan = options.scan(details=options.details, full=True)
    return _result(rebuild.rebuild(database_of(options), options.given(), scan, rules, warn=_warn))


@dataclass(kw_only=True)
class IndexOptions(ScanFlags):
    """The flags of ``watcher index``."""

    rl_config: Annotated[str | None, text("The TOML of an RL checkpoint.")] = None
    sft_config: Annotated[str | None, text("The TOML of the SFT run it starts from.")] = None
    rl_wandb_run_id: Annotated[str | None, text("W&B run id of the RL run.")] = None
    sft_wandb_run_id: Annotated[str | None, text("W&B run id of the SFT run.")] = None


@app.command
def index(model: str, /, options: Annotated[IndexOptions | None, Flat] = None) -> Result:
    """Index or refresh one checkpoint with its ancestors and evaluations, and show it."""
    options = options or IndexOptions()
    given = options.given()
    base = given.repo_root or os.environ.get("JTC_ROOT") or str(Path.cwd())
    wanted = [str(_existing(value, base).parent) for value in (options.rl_config, options.sft_config) if value]
    path = str(_existing(model, base))
    database = database_of(options)
    stored: Mapping[str, Any] = {}
    if database.exists():
        connection = open_reader(database, warn=_warn)
        stored = stored_roots(connection)
        connection.close()
    roots = choose_roots(given, stored, os.environ)
    given = extended(given, roots, train=wanted, model=path)
    flags = {
        stage: [value] for stage, value in (("rl", options.rl_wandb_run_id), ("sft", options.sft_wandb_run_id)) if value
    }
    run_update(database, given, options.scan(wandb_flags=flags), warn=_warn, kind="index")
    with reading(database, warn=_warn) as connection:
        return _result(details.show_model(connection, _checkpoint(connection, path, base, database)))


def _existing(value: str, base: str) -> Path:
    """A path of the current directory when it exists there, else one of the repository."""
    path = Path(os.path.expandvars(value)).expanduser()
    return Path.cwd() / path if path.is_absolute() or (Path.cwd() / path).exists() else Path(base) / path


def _checkpoint(connection: Any, model: str, base: str, database: Path) -> Any:
    try:
        return resolve_reference(connection, model, base=base, kinds=("checkpoint",))
    except UserError as error:
        if "names no indexed" not in str(error):
            raise
        raise UserError(
            f"model is not indexed: {model}", hint=f"run primebeaker watcher index {model} --database={database}"
        ) from None


@dataclass(kw_only=True)
class ShowOptions(DatabaseOptions):
    """The flags of ``watcher show``."""

    config: Annotated[bool, boolean("Add the configuration's text, credentials masked.", name="config")] = False


@app.command
def show(model: str, /, options: Annotated[ShowOptions | None, Flat] = None) -> Result:
    """Print everything the index knows about one checkpoint."""
    options = options or ShowOptions()
    database = database_of(options)
    with reading(database, warn=_warn) as connection:
        base = str(stored_roots(connection).get("repo_root") or Path.cwd())
        model = str(_existing(model, base)) if "/" in model else model
        found = _checkpoint(connection, model, base, database)
        return _result(details.show_model(connection, found, config=options.config))


@dataclass(kw_only=True)
class ListOptions(DatabaseOptions):
    """The flags of the lists."""

    q: Annotated[str | None, text("Words that must all occur, literally.")] = None
    benchmark: Annotated[str | None, text("Only with a score of this benchmark.")] = None
    sort: Annotated[str | None, text("The sorted field, or benchmark:NAME.")] = None
    order: Annotated[str | None, choice("Direction.", ("asc", "desc"))] = None
    limit: Annotated[int, integer("Rows.", least=1, most=1000, default="50")] = 50
    cursor: Annotated[str | None, text("next_cursor of the page before.")] = None


@dataclass(kw_only=True)
class RunsOptions(ListOptions):
    """The flags of ``watcher runs``."""

    stage: Annotated[str | None, choice("Kind of training.", STAGES)] = None
    state: Annotated[str | None, choice("State by the run's files.", STATES)] = None


@dataclass(kw_only=True)
class EvalsOptions(ListOptions):
    """The flags of ``watcher evals``."""

    status: Annotated[str | None, choice("State by the result files.", STATUSES)] = None


def _query(parameters: Any, options: DatabaseOptions) -> dict[str, Any]:
    known = {parameter.name for parameter in parameters}
    given = {name: [str(value)] for name, value in vars(options).items() if name in known and value is not None}
    return check_parameters(parameters, given)


@app.command
def runs(options: Annotated[RunsOptions | None, Flat] = None) -> Result:
    """List runs."""
    options = options or RunsOptions()
    query = _query(RUN_PARAMETERS, options)
    with reading(database_of(options), warn=_warn) as connection:
        return _result(lists.list_runs(connection, query), rows="items")


@app.command
def evals(options: Annotated[EvalsOptions | None, Flat] = None) -> Result:
    """List evaluations."""
    options = options or EvalsOptions()
    query = _query(EVALUATION_PARAMETERS, options)
    with reading(database_of(options), warn=_warn) as connection:
        return _result(lists.list_evaluations(connection, query), rows="items")


@dataclass(kw_only=True)
class LineageOptions(DatabaseOptions):
    """The flags of ``watcher lineage``."""

    format: Annotated[
        str | None, choice("How to print the graph.", ("json", "dot", "text"), panel="Output", default="json")
    ] = "json"
    direction: Annotated[str, choice("Ancestors, descendants or both.", ("both", "up", "down"))] = "both"
    depth: Annotated[int, integer("Runs to follow.", least=1, most=50, default="20")] = 20


@app.command(name="lineage")
def show_lineage(ref: str, /, options: Annotated[LineageOptions | None, Flat] = None) -> Result:
    """Print what an entity is made of and what was made of it."""
    options = options or LineageOptions()
    with reading(database_of(options), warn=_warn) as connection:
        entity = resolve_reference(connection, ref)
        graph = lineage.lineage_graph(connection, entity, direction=options.direction, depth=options.depth)
    render = lineage.as_dot if options.format == "dot" else lineage.as_text
    return Result(graph, text=lambda: render(graph))


@dataclass(kw_only=True)
class DiffOptions(DatabaseOptions):
    """The flags of ``watcher diff``."""

    all: Annotated[bool, boolean("List equal values too.", name="all")] = False


@app.command
def diff(left: str, right: str, /, options: Annotated[DiffOptions | None, Flat] = None) -> Result:
    """Compare the configurations of two runs, checkpoints or TOML files."""
    options = options or DiffOptions()
    sides = [_configuration(reference, database_of(options)) for reference in (left, right)]
    answer = {
        **{
            name: {key: side[key] for key in ("key", "path", "sha256")}
            for name, side in zip(("left", "right"), sides, strict=True)
        },
        **comparing.diff_values(sides[0]["values"], sides[1]["values"], everything=options.all),
    }
    return _result(answer)


def _configuration(reference: str, database: Path) -> dict[str, Any]:
    if reference.endswith(".toml") and Path(reference).expanduser().is_file():
        return comparing.read_configuration(Path.cwd() / Path(reference).expanduser())
    with reading(database, warn=_warn) as connection:
        entity = resolve_reference(connection, reference, kinds=("run", "checkpoint"))
        stored = comparing.stored_values(connection, entity)
    if stored is None:
        raise UserError(f"{reference} has no configuration in the index")
    return stored


@dataclass(kw_only=True)
class CompareOptions(DatabaseOptions):
    """The flags of ``watcher compare``."""

    baseline: Annotated[str | None, text("What the others are compared with.", default="the first")] = None


@app.command(name="compare")
def compare_entities(*ref: str, options: Annotated[CompareOptions | None, Flat] = None) -> Result:
    """Scores, hyperparameters and configurations of 2 to 10 runs, checkpoints or evaluations side by side."""
    options = options or CompareOptions()
    if not 2 <= len(ref) <= 10:
        raise UserError(f"{len(ref)} references; expected 2 to 10")
    with reading(database_of(options), warn=_warn) as connection:
        entities = [resolve_reference(connection, item) for item in ref]
        baseline = resolve_reference(connection, options.baseline).key if options.baseline else None
        return _result(comparing.compare(connection, entities, baseline=baseline))


@dataclass(kw_only=True)
class IssuesOptions(DatabaseOptions):
    """The flags of ``watcher issues``."""

    severity: Annotated[str | None, choice("How bad.", tuple(SEVERITIES))] = None
    code: Annotated[str | None, text("One code.")] = None
    limit: Annotated[int, integer("Rows.", least=1, most=1000, default="100")] = 100


@app.command
def issues(options: Annotated[IssuesOptions | None, Flat] = None) -> Result:
    """List problems of single files, the worst first."""
    options = options or IssuesOptions()
    query = _query(ISSUE_PARAMETERS, options)
    with reading(database_of(options), warn=_warn) as connection:
        return _result(lists.list_issues(connection, query), rows="items")


@dataclass(kw_only=True)
class PruneOptions(DatabaseOptions):
    """The flags of ``watcher prune``."""

    missing_days: Annotated[float, number("How long it must have been missing.", least=0, default="30")] = 30.0
    dry_run: Annotated[bool, boolean("Only count.", name="dry-run")] = False
    wait: Annotated[float, number("Seconds to wait for a scan.", least=0, default="0")] = 0.0


@app.command
def prune(options: Annotated[PruneOptions | None, Flat] = None) -> Result:
    """Forget what has been missing for long."""
    options = options or PruneOptions()
    answer = rebuild.prune(
        database_of(options),
        missing_days=options.missing_days,
        dry_run=options.dry_run,
        wait=options.wait,
        warn=_warn,
    )
    return _result(answer)


@app.command
def config(options: Annotated[ScanFlags | None, Flat] = None) -> Result:
    """Print the effective roots, where each comes from, and whether it exists."""
    options = options or ScanFlags()
    database = database_of(options)
    stored: Mapping[str, Any] = {}
    if database.exists():
        connection = open_reader(database, warn=_warn)
        stored = stored_roots(connection)
        connection.close()
    roots = choose_roots(options.given(), stored, os.environ)
    rows = [row._asdict() for row in report_roots(roots)]
    return _result({"database": str(database), "roots": rows, "effective": roots.to_json()})


@dataclass(kw_only=True)
class ServeFlags(ScanFlags):
    """The flags of ``watcher serve``."""

    host: Annotated[str, text("Address to bind.", panel="Server", default="127.0.0.1")] = "127.0.0.1"
    port: Annotated[int, integer("Port; 0 picks a free one.", least=0, most=65535, panel="Server", default="8790")] = (
        8790
    )
    scan_interval: Annotated[
        float, number("Seconds between scans; 0 never scans.", least=0, panel="Server", default="0")
    ] = 0.0
    allowed_host: Annotated[
        tuple[str, ...], repeated("A further name of the Host header.", split_commas=True, panel="Server")
    ] = ()
    auth: Annotated[
        str, choice("Ask for a token: auto unless only this machine can connect.", ("auto", "token", "none"))
    ] = "auto"
    token_file: Annotated[Path | None, path("File that holds the token.", panel="Server")] = None
    base_path: Annotated[str, text("Path under which everything is served.", panel="Server", default="/")] = "/"
    open: Annotated[bool, boolean("Open the pages in the browser.", name="open", panel="Server")] = False
    reload: Annotated[bool, boolean("Accepted and ignored.", name="reload", panel="Server")] = False


@app.command
def serve(options: Annotated[ServeFlags | None, Flat] = None) -> int:
    """Serve the pages and the JSON interface until Ctrl-C."""
    options = options or ServeFlags()
    if options.reload:
        warn(["--reload is ignored"])
    settings = serving.ServeOptions(
        host=options.host,
        port=options.port,
        scan_interval=options.scan_interval,
        allowed_hosts=options.allowed_host,
        auth=options.auth,
        token_file=options.token_file,
        base_path=options.base_path,
        open=options.open,
    )
    return serving.serve(database_of(options), settings, options.given(), options.scan(), warn=_warn)
