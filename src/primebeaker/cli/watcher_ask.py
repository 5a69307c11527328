"""The commands of ``primebeaker watcher`` that ask the index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from primebeaker.cli.flags import boolean, choice, integer, text
from primebeaker.cli.output import Result
from primebeaker.cli.watcher_common import (
    DatabaseOptions,
    Flat,
    database_of,
    existing,
    find_checkpoint,
    result,
    warn_line,
)
from primebeaker.errors import UserError
from primebeaker.watcher import comparing, details, lineage, lists
from primebeaker.watcher.database import reading
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
from primebeaker.watcher.roots import stored_roots

__all__ = ["compare_entities", "diff", "evals", "issues", "runs", "show", "show_lineage"]


@dataclass(kw_only=True)
class ShowOptions(DatabaseOptions):
    """The flags of ``watcher show``."""

    config: Annotated[bool, boolean("Add the configuration's text, credentials masked.", name="config")] = False


def show(model: str, /, options: Annotated[ShowOptions | None, Flat] = None) -> Result:
    """Print everything the index knows about one checkpoint."""
    options = options or ShowOptions()
    database = database_of(options)
    with reading(database, warn=warn_line) as connection:
        base = str(stored_roots(connection).get("repo_root") or Path.cwd())
        model = str(existing(model, base)) if "/" in model else model
        found = find_checkpoint(connection, model, base, f"run primebeaker watcher index {model} --database={database}")
        return result(details.show_model(connection, found, config=options.config))


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


def runs(options: Annotated[RunsOptions | None, Flat] = None) -> Result:
    """List runs."""
    options = options or RunsOptions()
    query = _query(RUN_PARAMETERS, options)
    with reading(database_of(options), warn=warn_line) as connection:
        return result(lists.list_runs(connection, query), rows="items")


def evals(options: Annotated[EvalsOptions | None, Flat] = None) -> Result:
    """List evaluations."""
    options = options or EvalsOptions()
    query = _query(EVALUATION_PARAMETERS, options)
    with reading(database_of(options), warn=warn_line) as connection:
        return result(lists.list_evaluations(connection, query), rows="items")


@dataclass(kw_only=True)
class LineageOptions(DatabaseOptions):
    """The flags of ``watcher lineage``."""

    format: Annotated[
        str | None, choice("How to print the graph.", ("json", "dot", "text"), panel="Output", default="json")
    ] = "json"
    direction: Annotated[str, choice("Ancestors, descendants or both.", ("both", "up", "down"))] = "both"
    depth: Annotated[int, integer("Runs to follow.", least=1, most=50, default="20")] = 20


def show_lineage(ref: str, /, options: Annotated[LineageOptions | None, Flat] = None) -> Result:
    """Print what an entity is made of and what was made of it."""
    options = options or LineageOptions()
    with reading(database_of(options), warn=warn_line) as connection:
        entity = resolve_reference(connection, ref)
        graph = lineage.lineage_graph(connection, entity, direction=options.direction, depth=options.depth)
    render = lineage.as_dot if options.format == "dot" else lineage.as_text
    return Result(graph, text=lambda: render(graph))


@dataclass(kw_only=True)
class DiffOptions(DatabaseOptions):
    """The flags of ``watcher diff``."""

    all: Annotated[bool, boolean("List equal values too.", name="all")] = False


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
    return result(answer)


def _configuration(reference: str, database: Path) -> dict[str, Any]:
    if reference.endswith(".toml") and Path(reference).expanduser().is_file():
        return comparing.read_configuration(Path.cwd() / Path(reference).expanduser())
    with reading(database, warn=warn_line) as connection:
        entity = resolve_reference(connection, reference, kinds=("run", "checkpoint"))
        stored = comparing.stored_values(connection, entity)
    if stored is None:
        raise UserError(f"{reference} has no configuration in the index")
    return stored


@dataclass(kw_only=True)
class CompareOptions(DatabaseOptions):
    """The flags of ``watcher compare``."""

    baseline: Annotated[str | None, text("What the others are compared with.", default="the first")] = None


def compare_entities(*ref: str, options: Annotated[CompareOptions | None, Flat] = None) -> Result:
    """Scores, hyperparameters and configurations of 2 to 10 runs, checkpoints or evaluations side by side."""
    options = options or CompareOptions()
    if not 2 <= len(ref) <= 10:
        raise UserError(
            f"expected 2 to 10 references, found {len(ref)}", hint="write: primebeaker watcher compare REF REF"
        )
    with reading(database_of(options), warn=warn_line) as connection:
        entities = [resolve_reference(connection, item) for item in ref]
        baseline = resolve_reference(connection, options.baseline).key if options.baseline else None
        return result(comparing.compare(connection, entities, baseline=baseline))


@dataclass(kw_only=True)
class IssuesOptions(DatabaseOptions):
    """The flags of ``watcher issues``."""

    severity: Annotated[str | None, choice("How bad.", tuple(SEVERITIES))] = None
    code: Annotated[str | None, text("One code.")] = None
    limit: Annotated[int, integer("Rows.", least=1, most=1000, default="100")] = 100


def issues(options: Annotated[IssuesOptions | None, Flat] = None) -> Result:
    """List problems of single files, the worst first."""
    options = options or IssuesOptions()
    query = _query(ISSUE_PARAMETERS, options)
    with reading(database_of(options), warn=warn_line) as connection:
        return result(lists.list_issues(connection, query), rows="items")
