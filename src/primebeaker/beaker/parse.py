"""Beaker's JSON, as printed by ``beaker … --format json``, into :mod:`primebeaker.beaker.models`.

Beaker writes absent times as null or as the zero date ``0001-01-01T00:00:00Z``, and single objects either bare or as a
list of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from primebeaker.beaker.models import (
    Account,
    CreatedExperiment,
    Experiment,
    ExperimentState,
    ImageRecord,
    Job,
    JobStatus,
    LogLine,
)
from primebeaker.beaker.process import plain_text
from primebeaker.redaction import Redactor

__all__ = [
    "parse_account",
    "parse_created",
    "parse_experiment",
    "parse_image",
    "parse_job",
    "parse_json",
    "parse_log_line",
    "parse_time",
    "single",
]

_SUBMITTED = re.compile(r"Experiment (?P<id>\S+) submitted(?:\. See progress at (?P<url>\S+))?")
_STATES = frozenset({"created", "running", "succeeded", "failed", "canceled", "preempted"})


def parse_json(text: str) -> Any:
    """The last JSON object or list in ``text``, which may hold progress lines before it.

    Raises:
        ValueError: There is none.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    decoder = json.JSONDecoder()
    found: Any = None
    position = 0
    while (start := _next_bracket(text, position)) is not None:
        try:
            found, position = decoder.raw_decode(text, start)
        except ValueError:
            position = start + 1
    if found is None:
        raise ValueError("no JSON in the output")
    return found


def single(value: Any) -> Mapping[str, Any]:
    """The object itself, or the only element of a list of one.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        raise ValueError("expected one JSON object")  # noqa: TRY004 - a fault of the data, not of the caller
    return value


def parse_time(value: Any) -> datetime | None:
    """A time, or None for null, the zero date and anything else."""
    if not isinstance(value, str) or not value or value.startswith("0001-"):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def parse_job(raw: Mapping[str, Any]) -> Job:
    """One job object."""
    execution = _object(raw.get("execution"))
    status = _object(raw.get("status"))
    spec = _object(execution.get("spec"))
    rank = execution.get("replicaRank")
    return Job(
        id=_text(raw.get("id")),
        task=_text(spec.get("name")) or _text(raw.get("name")),
        task_id=_text(execution.get("task")),
        replica_rank=rank if isinstance(rank, int) else None,
        spec=spec,
        status=JobStatus(
            **{
                name: parse_time(status.get(name))
                for name in ("created", "scheduled", "started", "exited", "failed", "finalized", "canceled")
            },
            canceled_for=_text(status.get("canceledFor")) or None,
            canceled_code=_number(status.get("canceledCode")),
            exit_code=_number(status.get("exitCode")),
            message=_text(status.get("message")),
        ),
    )


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """One experiment object with its jobs."""
    name = _text(raw.get("fullName")) or _text(raw.get("name"))
    state = raw.get("state")
    jobs = [parse_job(job) for job in raw.get("jobs") or [] if isinstance(job, Mapping)]
    jobs.sort(key=lambda job: (job.status.created is None, job.status.created.timestamp() if job.status.created else 0))
    return Experiment(
        id=_text(raw.get("id")),
        name=name.partition("/")[2] or name,
        workspace=_text(_object(raw.get("workspaceRef")).get("fullName")),
        author=_text(_object(raw.get("author")).get("name")),
        description=_text(raw.get("description")),
        created=parse_time(raw.get("created")),
        jobs=tuple(jobs),
        reported_state=cast(ExperimentState, state) if state in _STATES else None,
        url=_text(raw.get("url")) or None,
        budget=_text(raw.get("budget")) or None,
    )


def parse_created(stdout: str) -> CreatedExperiment:
    """What a create call printed: the stock sentence (colours removed), or JSON; None where neither is recognised."""
    text = plain_text(stdout)
    masked = Redactor()(text)
    sentence = _SUBMITTED.search(text)
    if sentence:
        return CreatedExperiment(sentence["id"], sentence["url"], masked)
    try:
        raw = single(parse_json(text))
    except ValueError:
        return CreatedExperiment(None, None, masked)
    identifier = _text(raw.get("id")) or None
    return CreatedExperiment(identifier, _text(raw.get("url")) or None, masked)


def parse_account(raw: Mapping[str, Any]) -> Account:
    """The account of ``account whoami``."""
    return Account(_text(raw.get("id")), _text(raw.get("name")))


def parse_image(raw: Mapping[str, Any]) -> ImageRecord:
    """The image of ``image get``; ``committed`` is None while it is being uploaded."""
    return ImageRecord(
        id=_text(raw.get("id")),
        name=_text(raw.get("fullName")) or _text(raw.get("name")) or None,
        workspace=_text(_object(raw.get("workspaceRef")).get("fullName")) or None,
        committed=parse_time(raw.get("committed")),
    )


def parse_log_line(line: str, job: Job) -> LogLine:
    """One line of ``job logs``: a time and the text, or only the text."""
    stamp, space, rest = line.partition(" ")
    timestamp = parse_time(stamp) if space and "T" in stamp else None
    return LogLine(job.id, job.replica_rank, job.task, timestamp, rest if timestamp else line)


def _next_bracket(text: str, position: int) -> int | None:
    match = re.compile(r"[\[{]").search(text, position)
    return match.start() if match else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
