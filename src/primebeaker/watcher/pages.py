"""The pages: rendered on the server through auto-escaping templates; the scripts only add curves and live updates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from primebeaker.watcher import details, lineage, lists, summary
from primebeaker.watcher.api import Context, compare_of
from primebeaker.watcher.assets import asset_url, assets
from primebeaker.watcher.comparing import stored_values
from primebeaker.watcher.graphing import draw
from primebeaker.watcher.parameters import (
    EVALUATION_PARAMETERS,
    ISSUE_PARAMETERS,
    RUN_PARAMETERS,
    STAGES,
    STATES,
    STATUSES,
    Parameter,
)

__all__ = ["PAGES", "VERSION", "Frame", "Page", "no_database", "problem"]

_TEMPLATES = Path(__file__).parent / "templates"


def _version() -> str:
    digest = hashlib.sha256()
    for path in sorted(_TEMPLATES.glob("*.html")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12] + "".join(sorted(assets()))


VERSION = _version()


class Frame(NamedTuple):
    """Where a page stands."""

    base: str
    path: str
    query: str
    generation: int


class Page(NamedTuple):
    """One page."""

    path: str
    render: Callable[[Context, Frame], str]
    parameters: tuple[Parameter, ...] = ()


def _percent(value: Any) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _heat(value: Any) -> int:
    """The class of a score's tint, 0 to 10."""
    return 0 if value is None else max(0, min(10, round(10 * value)))


def _size(value: Any) -> str:
    if value is None:
        return "–"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return ""


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _web(value: Any) -> str | None:
    """A link only when it goes to the web."""
    try:
        return value if urlsplit(str(value)).scheme in ("http", "https") else None
    except ValueError:
        return None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "heat": _heat, "size": _size, "number": _number, "web": _web}
    environment.globals |= {"asset": asset_url, "stages": STAGES, "states": STATES, "statuses": STATUSES}
    return environment


def _render(template: str, frame: Frame, **values: Any) -> str:
    def link(path: str, query: Mapping[str, Any] | None = None) -> str:
        pairs = [(key, value) for key, value in (query or {}).items() if value not in (None, "", False)]
        return frame.base + path + (f"?{urlencode(pairs, doseq=True)}" if pairs else "")

    own = frame.path.removeprefix(frame.base) or "/"
    return _environment().get_template(template).render(frame=frame, link=link, own=own, **values)


def _overview(context: Context, frame: Frame) -> str:
    return _render("overview.html", frame, data=summary.overview(context.connection))


def _sorting(context: Context) -> Callable[[str], dict[str, Any]]:
    """The query of a column head: the other direction when it is sorted by already."""
    query = {name: value for name, value in context.query.items() if name != "cursor"}

    def sorted_by(name: str) -> dict[str, Any]:
        turned = query.get("sort") == name and query.get("order") == "asc"
        return {**query, "sort": name, "order": "desc" if turned else "asc"}

    return sorted_by


def _benchmarks(rows: list[dict[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        for name in row["scores"]:
            names.setdefault(name)
    return sorted(names)[:8]


def _runs(context: Context, frame: Frame) -> str:
    data = lists.list_runs(context.connection, context.query)
    known = context.connection.execute("SELECT EXISTS (SELECT 1 FROM runs)").fetchone()[0]
    return _render(
        "runs.html",
        frame,
        data=data,
        query=context.query,
        sorted_by=_sorting(context),
        benchmarks=_benchmarks(data["items"]),
        known=known,
    )


def _evaluations(context: Context, frame: Frame) -> str:
    data = lists.list_evaluations(context.connection, context.query)
    known = context.connection.execute("SELECT EXISTS (SELECT 1 FROM evaluations)").fetchone()[0]
    return _render("evaluations.html", frame, data=data, query=context.query, sorted_by=_sorting(context), known=known)


def _run(context: Context, frame: Frame) -> str:
    entity = context.entity("run")
    run = details.run_detail(context.connection, entity)
    names = sorted({item["dataset"] for row in run["evaluations"] for item in row["benchmarks"]})
    matrix = []
    for checkpoint in run["checkpoints"]:
        scores: dict[str, dict[str, Any]] = {}
        for row in checkpoint["evaluations"]:
            for item in row["benchmarks"]:
                best = scores.get(item["dataset"])
                if best is None or (item["mean_accuracy"] or 0) > best["mean"]:
                    scores[item["dataset"]] = {
                        "mean": item["mean_accuracy"],
                        "stderr": item["stderr"],
                        "key": row["key"],
                        "provisional": row["provisional"],
                    }
        matrix.append({"checkpoint": checkpoint, "scores": scores})
    stored = stored_values(context.connection, entity)
    return _render(
        "run.html",
        frame,
        run=run,
        benchmarks=names,
        matrix=matrix,
        config=stored,
        ancestors=details.ancestors_of(context.connection, entity.id),
    )


def _checkpoint(context: Context, frame: Frame) -> str:
    data = details.checkpoint_detail(context.connection, context.entity("checkpoint"))
    return _render("checkpoint.html", frame, data=data)


def _evaluation(context: Context, frame: Frame) -> str:
    row = details.evaluation_detail(context.connection, context.entity("evaluation"))
    return _render("evaluation.html", frame, row=row)


def _compare(context: Context, frame: Frame) -> str:
    references = list(dict.fromkeys(context.query["ref"]))
    if len(references) < 2:
        return _render("compare.html", frame, data=None, refs=references, only_diff=True)
    data = compare_of(context)
    return _render("compare.html", frame, data=data, refs=references, only_diff=context.query["only_diff"] is not False)


def _lineage(context: Context, frame: Frame) -> str:
    entity = context.entity("run", "checkpoint", "evaluation")
    graph = lineage.lineage_graph(context.connection, entity, direction=context.query["direction"], limit=600)
    names = {node["id"]: node["label"] for node in graph["nodes"]}
    return _render(
        "lineage.html",
        frame,
        entity=entity,
        graph=graph,
        drawing=draw(graph),
        names=names,
        direction=context.query["direction"],
    )


def _issues(context: Context, frame: Frame) -> str:
    data = lists.list_issues(context.connection, context.query)
    counts = [
        dict(row)
        for row in context.connection.execute(
            "SELECT severity, code, count(*) AS count FROM issues GROUP BY code ORDER BY"
            " CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, count(*) DESC"
        )
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in data["items"]:
        groups.setdefault(item["code"], []).append(item)
    return _render("issues.html", frame, data=data, counts=counts, groups=groups, query=context.query)


PAGES: tuple[Page, ...] = (
    Page("/", _overview),
    Page("/runs", _runs, RUN_PARAMETERS),
    Page("/runs/{key}", _run),
    Page("/checkpoints/{key}", _checkpoint),
    Page("/evaluations", _evaluations, EVALUATION_PARAMETERS),
    Page("/evaluations/{key}", _evaluation),
    Page(
        "/compare",
        _compare,
        (
            Parameter("ref", most=12, many=10),
            Parameter("baseline", most=12),
            Parameter("only_diff", "boolean"),
        ),
    ),
    Page("/lineage/{key}", _lineage, (Parameter("direction", choices=("both", "up", "down"), default="both"),)),
    Page("/issues", _issues, ISSUE_PARAMETERS),
)


def problem(base: str, title: str, text: str) -> str:
    """A page that says what is wrong and what to do."""
    return _render("problem.html", Frame(base, "", "", 0), title=title, text=text, command=None)


def no_database(base: str, database: Path) -> str:
    """The page before the first scan."""
    command = f"primebeaker watcher update --database={database}"
    text = "There is no index yet. Scan your training and evaluation folders once, and this page fills itself."
    return _render("problem.html", Frame(base, "", "", 0), title="Nothing is indexed yet", text=text, command=command)
