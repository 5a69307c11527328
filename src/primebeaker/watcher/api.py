"""The JSON interface: one table of routes, which also checks parameters and makes the OpenAPI text."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from primebeaker import __version__
from primebeaker.errors import UserError
from primebeaker.watcher import comparing, compatibility, details, lineage, lists, summary
from primebeaker.watcher.metrics import Curves, online_wanted, run_metrics
from primebeaker.watcher.parameters import (
    EVALUATION_PARAMETERS,
    ISSUE_PARAMETERS,
    KEY_PATTERN,
    QUERY_LENGTH,
    RUN_PARAMETERS,
    Parameter,
    paging,
)
from primebeaker.watcher.references import Entity, Kind, by_key
from primebeaker.watcher.values import flatten
from primebeaker.watcher.wandb_fetch import Wanted

__all__ = ["ROUTES", "Context", "NotFoundError", "PlainText", "Route", "openapi"]


class NotFoundError(Exception):
    """No entity of that key; the text is the sentence of the answer."""


class PlainText(str):
    """An answer that is text rather than JSON."""

    __slots__ = ()


@dataclass(frozen=True)
class Context:
    """What a handler works with."""

    connection: sqlite3.Connection
    query: Mapping[str, Any]
    path: Mapping[str, str]
    metrics: Curves

    def entity(self, *kinds: Kind, name: str = "key") -> Entity:
        """The entity of the path's key, or of a query parameter.

        Raises:
            NotFoundError: There is none.
        """
        return self.find(self.path[name], *kinds)

    def find(self, key: str, *kinds: Kind) -> Entity:
        """The entity of a key."""
        found = by_key(self.connection, key, kinds) if re.fullmatch(KEY_PATTERN, key) else None
        if found is None:
            raise NotFoundError(f"no {' or '.join(kinds)} has this key")
        return found


class Route(NamedTuple):
    """One GET route."""

    path: str
    about: str
    handler: Callable[[Context], Any]
    parameters: tuple[Parameter, ...] = ()
    #: What W&B has to be asked for before the handler can answer; asked in a process of its own.
    wanted: Callable[[Context], list[Wanted]] | None = None


_ANY: tuple[Kind, ...] = ("run", "checkpoint", "evaluation")
_METRIC_PARAMETERS = (
    Parameter("metric", most=QUERY_LENGTH, many=12, about="A metric's name; without any, the stage's default curves."),
    Parameter("source", choices=("auto", "local", "file", "wandb-local", "wandb"), default="auto", about="Where from."),
    Parameter("merge", choices=("lineage", "mean", "none"), default="lineage", about="How attempts are joined."),
    Parameter("max_points", "integer", least=10, most=10_000, default=1000, about="Most points of a series."),
    Parameter("min_step", "number", about="Least step."),
    Parameter("max_step", "number", about="Greatest step."),
    Parameter(
        "refresh", "boolean", default=False, about="Ask W&B too, at most once a minute; files are always current."
    ),
)


def _config(context: Context) -> Any:
    entity = context.entity("run")
    stored = comparing.stored_values(context.connection, entity, context.query["attempt"])
    if stored is None:
        raise NotFoundError("this run has no such configuration")
    if context.query["format"] == "flat":
        return dict(flatten(stored["values"]))
    return PlainText(stored["text"] or "")


def metrics_of(context: Context, entity: Entity) -> dict[str, Any]:
    """Series by the parameters of the metrics route."""
    query = context.query
    return run_metrics(
        context.connection,
        entity,
        context.metrics,
        names=query["metric"],
        source=query["source"],
        merge=query["merge"],
        most=query["max_points"],
        least_step=query["min_step"],
        most_step=query["max_step"],
    )


def wanted_of(context: Context, entity: Entity) -> list[Wanted]:
    """What of the same series only W&B can have."""
    query = context.query
    return online_wanted(
        context.connection,
        entity,
        context.metrics,
        names=query["metric"],
        source=query["source"],
        refresh=query["refresh"],
    )


def compare_of(context: Context) -> dict[str, Any]:
    """The comparison of the ``ref`` parameters."""
    references = list(dict.fromkeys(context.query["ref"]))
    if not 2 <= len(references) <= 10:
        raise UserError(f"ref: {len(references)} different keys; expected 2 to 10")
    entities = [context.find(key, *_ANY) for key in references]
    baseline = context.query["baseline"]
    if baseline is not None and baseline not in references:
        raise UserError(f"baseline = {baseline[:20]}: expected one of the refs")
    return comparing.compare(
        context.connection, entities, baseline=baseline, only_diff=context.query["only_diff"] is not False
    )


def _diff(context: Context) -> dict[str, Any]:
    sides = {}
    for side in ("left", "right"):
        if not context.query[side]:
            raise UserError(f"{side}: expected the key of a run or checkpoint")
        stored = comparing.stored_values(context.connection, context.find(context.query[side], "run", "checkpoint"))
        if stored is None:
            raise NotFoundError(f"{side} has no configuration in the index")
        sides[side] = stored
    named = {side: {key: stored[key] for key in ("key", "path", "sha256")} for side, stored in sides.items()}
    return {
        **named,
        **comparing.diff_values(
            sides["left"]["values"], sides["right"]["values"], everything=bool(context.query["all"])
        ),
    }


ROUTES: tuple[Route, ...] = (
    Route("/api/overview", "Counts, newest results, leaders.", lambda c: summary.overview(c.connection)),
    Route("/api/runs", "Runs.", lambda c: lists.list_runs(c.connection, c.query), RUN_PARAMETERS),
    Route("/api/runs/{key}", "One run.", lambda c: details.run_detail(c.connection, c.entity("run"))),
    Route(
        "/api/runs/{key}/config",
        "A run's configuration, credentials masked.",
        _config,
        (
            Parameter("attempt", "integer", least=1, most=100_000, about="That of one attempt."),
            Parameter("format", choices=("toml", "flat"), default="toml", about="Text, or dotted paths as JSON."),
        ),
    ),
    Route(
        "/api/runs/{key}/metrics",
        "A run's curves.",
        lambda c: metrics_of(c, c.entity("run")),
        _METRIC_PARAMETERS,
        lambda c: wanted_of(c, c.entity("run")),
    ),
    Route(
        "/api/checkpoints/{key}",
        "One checkpoint.",
        lambda c: details.checkpoint_detail(c.connection, c.entity("checkpoint")),
    ),
    Route(
        "/api/evaluations",
        "Evaluations.",
        lambda c: lists.list_evaluations(c.connection, c.query),
        EVALUATION_PARAMETERS,
    ),
    Route(
        "/api/evaluations/{key}",
        "One evaluation.",
        lambda c: details.evaluation_detail(c.connection, c.entity("evaluation")),
    ),
    Route(
        "/api/compare",
        "Scores and configurations side by side.",
        compare_of,
        (
            Parameter("ref", most=12, many=10, about="Keys of 2 to 10 entities."),
            Parameter("baseline", most=12, about="The key the others are compared with."),
            Parameter("only_diff", "boolean", about="Leave equal rows out."),
        ),
    ),
    Route(
        "/api/diff",
        "The difference of two configurations.",
        _diff,
        (
            Parameter("left", most=12, about="Key of a run or checkpoint."),
            Parameter("right", most=12, about="Key of a run or checkpoint."),
            Parameter("all", "boolean", default=False, about="List equal values too."),
        ),
    ),
    Route(
        "/api/lineage/{key}",
        "The graph around an entity.",
        lambda c: lineage.lineage_graph(
            c.connection,
            c.entity(*_ANY),
            direction=c.query["direction"],
            depth=c.query["depth"],
            limit=c.query["limit"],
        ),
        (
            Parameter("direction", choices=("both", "up", "down"), default="both", about="Which side."),
            Parameter("depth", "integer", least=1, most=50, default=20, about="Runs to follow."),
            Parameter("limit", "integer", least=1, most=2000, default=500, about="Most nodes."),
        ),
    ),
    Route("/api/issues", "Problems of files.", lambda c: lists.list_issues(c.connection, c.query), ISSUE_PARAMETERS),
    Route("/api/scans", "Scans.", lambda c: lists.list_scans(c.connection, c.query), paging()),
    Route(
        "/api/models",
        "One entry a run that has a checkpoint.",
        lambda c: compatibility.models(c.connection, c.query["q"] or "", c.query["limit"]),
        (
            Parameter("q", most=QUERY_LENGTH, about="Part of a path."),
            Parameter("limit", "integer", least=1, most=1000, default=1000, about="Entries."),
        ),
    ),
    Route("/api/models/{id}", "One model.", lambda c: _model(c)),
    Route(
        "/api/models/{id}/metrics",
        "A model's two charts.",
        lambda c: compatibility.model_metrics(c.connection, _model_id(c), c.metrics) or _no_model(),
        (),
        lambda c: compatibility.model_wanted(c.connection, _model_id(c), c.metrics),
    ),
)


def _model_id(context: Context) -> int:
    text = context.path["id"]
    return int(text) if text.isdecimal() and len(text) < 16 else -1


def _no_model() -> Any:
    raise NotFoundError("no model has this id")


def _model(context: Context) -> dict[str, Any]:
    return compatibility.model(context.connection, _model_id(context)) or _no_model()


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 description of every route."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.path)
        ]
        parameters += [_described(parameter) for parameter in route.parameters]
        paths[route.path] = {"get": _operation(route.about, parameters)}
    for path, about in (
        ("/health", "Whether the index can be used."),
        ("/api/openapi.json", "This description."),
    ):
        paths[path] = {"get": _operation(about, [])}
    paths["/api/events"] = {
        "get": {
            "summary": "Server-sent events: generation and heartbeat.",
            "responses": {"200": {"description": "A stream.", "content": {"text/event-stream": {}}}},
        }
    }
    paths["/api/scan"] = {"post": {"summary": "Scan now.", "responses": {"202": {"description": "Asked for."}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "PrimeBeaker watcher", "version": str(__version__)},
        "paths": paths,
    }


def _operation(about: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    errors = {str(code): {"description": "Refused; detail says why."} for code in (400, 404, 422, 503)}
    return {"summary": about, "parameters": parameters, "responses": {"200": {"description": "Found."}, **errors}}


def _described(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string" if parameter.kind == "text" else parameter.kind}
    if parameter.choices and not parameter.prefix:
        schema["enum"] = list(parameter.choices)
    if parameter.kind in ("integer", "number"):
        schema |= {
            name: value
            for name, value in (("minimum", parameter.least), ("maximum", parameter.most))
            if value is not None
        }
    elif parameter.most is not None:
        schema["maxLength"] = int(parameter.most)
    if parameter.many > 1:
        schema = {"type": "array", "items": schema, "maxItems": parameter.many}
    elif parameter.default is not None:
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema}
