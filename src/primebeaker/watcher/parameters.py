"""The query parameters of lists, described once: the command line, the HTTP checks and the OpenAPI text use these."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from primebeaker.errors import UserError, did_you_mean
from primebeaker.watcher.issues import SEVERITIES

__all__ = ["EVALUATION_PARAMETERS", "RUN_PARAMETERS", "STATUSES", "Parameter", "check_parameters"]

STAGES = ("rl", "sft", "unknown")
STATES = ("planned", "active", "finished", "stopped", "missing")
STATUSES = (
    "complete",
    "partial",
    "running",
    "incomplete",
    "failed",
    "not_started",
    "missing",
    "unreadable",
    "unconfigured",
)
RUN_SORTS = ("name", "stage", "state", "last_step", "checkpoints", "evaluations", "overall", "modified_at")
EVALUATION_SORTS = ("status", "overall", "model", "step", "finished_at")
QUERY_LENGTH = 300


class Parameter(NamedTuple):
    """One query parameter.

    Attributes:
        name: As in the URL.
        kind: What its text is.
        choices: The allowed words; a ``prefix`` (``benchmark:``) allows a free rest.
        least: Least number.
        most: Greatest number, or length of a text.
        default: What holds when it is not given.
        many: How often it may be repeated; 1 is once.
        prefix: See ``choices``.
        about: One sentence.
    """

    name: str
    kind: Literal["text", "integer", "number", "boolean"] = "text"
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    default: Any = None
    many: int = 1
    prefix: str = ""
    about: str = ""


def paging(limit: int = 100) -> tuple[Parameter, ...]:
    """The parameters of every list."""
    return (
        Parameter("limit", "integer", least=1, most=1000, default=limit, about="Rows of a page."),
        Parameter("cursor", about="next_cursor of the page before."),
        Parameter("order", choices=("asc", "desc"), default="asc", about="Direction."),
    )


_Q = Parameter("q", most=QUERY_LENGTH, about="Words that must all occur, literally and in any case.")
KEY_PATTERN = "[0-9a-f]{12}"

RUN_PARAMETERS: tuple[Parameter, ...] = (
    _Q,
    Parameter("stage", choices=STAGES, about="Kind of training."),
    Parameter("state", choices=STATES, about="State by the run's files."),
    Parameter("has_evals", "boolean", about="Only runs with (or without) evaluations."),
    Parameter("benchmark", most=QUERY_LENGTH, about="Only runs with a score of this benchmark."),
    Parameter("dataset", most=QUERY_LENGTH, about="Only runs that use this dataset (name or part of a path)."),
    Parameter("base_model", most=QUERY_LENGTH, about="Only runs that start from this model, over any number of runs."),
    Parameter("wandb", most=QUERY_LENGTH, about="Only runs with this W&B run id."),
    Parameter("sort", choices=RUN_SORTS, prefix="benchmark:", default="name", about="Sorted field."),
    *paging(),
)
EVALUATION_PARAMETERS: tuple[Parameter, ...] = (
    _Q,
    Parameter("status", choices=STATUSES, about="State by the result files."),
    Parameter("workflow", most=QUERY_LENGTH, about="Kind of evaluation."),
    Parameter("benchmark", most=QUERY_LENGTH, about="Only evaluations with a score of this benchmark."),
    Parameter("run", most=12, about="Key of a run."),
    Parameter("checkpoint", most=12, about="Key of a checkpoint."),
    Parameter("min_score", "number", least=0, most=1, about="Least overall score."),
    Parameter("max_score", "number", least=0, most=1, about="Greatest overall score."),
    Parameter("sort", choices=EVALUATION_SORTS, prefix="benchmark:", default="finished_at", about="Sorted field."),
    *(item._replace(default="desc") if item.name == "order" else item for item in paging()),
)
ISSUE_PARAMETERS: tuple[Parameter, ...] = (
    Parameter("severity", choices=tuple(SEVERITIES), about="How bad."),
    Parameter("code", most=QUERY_LENGTH, about="One code."),
    *paging(),
)


def check_parameters(parameters: Sequence[Parameter], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Typed values of query parameters, defaults filled in.

    Raises:
        UserError: An unknown name, or a value out of range; it names parameter, value and range.
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name in given:
        if name not in known:
            raise UserError(f"unknown parameter {name}", hint=did_you_mean(name, known))
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        texts = list(given.get(name, ()))
        if len(texts) > parameter.many:
            raise UserError(f"{name} is given {len(texts)} times; expected at most {parameter.many}")
        converted = [_convert(parameter, text) for text in texts if text != "" or parameter.kind == "text"]
        if parameter.many > 1:
            values[name] = converted
        else:
            value = converted[0] if converted else None
            values[name] = parameter.default if value in (None, "") else value
    return values


def _convert(parameter: Parameter, text: str) -> Any:
    name = parameter.name
    if parameter.kind in ("integer", "number"):
        try:
            number: float = int(text) if parameter.kind == "integer" else float(text)
        except ValueError:
            raise UserError(f"{name} = {text[:100]!r}: expected a {_range(parameter)}") from None
        outside = (parameter.least is not None and number < parameter.least) or (
            parameter.most is not None and number > parameter.most
        )
        if outside or not math.isfinite(number):
            raise UserError(f"{name} = {text[:100]}: expected a {_range(parameter)}")
        return number
    if parameter.kind == "boolean":
        if text.lower() not in ("true", "false", "1", "0"):
            raise UserError(f"{name} = {text[:100]!r}: expected true or false")
        return text.lower() in ("true", "1")
    if parameter.choices and text:
        free = parameter.prefix and text.startswith(parameter.prefix) and len(text) > len(parameter.prefix)
        if text not in parameter.choices and not free:
            listed = ", ".join([*parameter.choices, *([f"{parameter.prefix}NAME"] if parameter.prefix else [])])
            hint = did_you_mean(text, parameter.choices)
            raise UserError(f"{name} = {text[:100]!r}: expected one of {listed}", hint=hint)
    if parameter.most is not None and len(text) > parameter.most:
        raise UserError(f"{name}: {len(text)} characters; expected at most {parameter.most:.0f}")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{name}: expected text without NUL")
    return text


def _range(parameter: Parameter) -> str:
    word = "whole number" if parameter.kind == "integer" else "number"
    if parameter.least is not None and parameter.most is not None:
        return f"{word} from {parameter.least:g} to {parameter.most:g}"
    return f"{word} of at least {parameter.least:g}" if parameter.least is not None else word
