"""Real rollouts of an environment against any OpenAI-compatible endpoint, kept in a file that a rerun continues."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from primebeaker.environments.inspection import CheckedEnvironment
from primebeaker.errors import UserError

__all__ = ["Plan", "Progress", "SavedRollouts", "Summary", "run_rollouts", "summarize"]


@dataclass(frozen=True)
class Plan:
    """What to run.

    Args:
        model: The model's name at the endpoint.
        base_url: The endpoint, usually ending in ``/v1``.
        rollouts: How many; the n-th one takes row n modulo the number of rows.
        concurrency: How many at a time.
        api_key_var: The environment variable that holds the endpoint's key, if it needs one.
        sampling: Sampling arguments of the requests.
    """

    model: str
    base_url: str
    rollouts: int
    concurrency: int
    api_key_var: str = "OPENAI_API_KEY"
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """How far a run is."""

    total: int
    done: int = 0
    rewards: list[float] = field(default_factory=list)
    errors: int = 0
    started: float = field(default_factory=time.monotonic)


class SavedRollouts:
    """Rollouts in a JSON-lines file, one line each, so that an interrupted run can go on.

    The file is only ever appended to, and belongs to one run at a time.  A line that a killed run left unfinished is
    cut off, and its rollout made again.

    Args:
        path: The file; it need not exist, its folder must.
        identity: What must be the same in every line (environment, arguments, model, sampling).

    Raises:
        UserError: The file holds rollouts of something else, is used by another run, or cannot be written.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._identity = json.loads(json.dumps(identity))
        self._stream: BinaryIO | None = None
        self.by_number: dict[int, dict[str, Any]] = {}
        if path is not None:
            self._stream = _opened(path)
            self._read(path, self._stream)

    def _read(self, path: Path, stream: BinaryIO) -> None:
        stream.seek(0)
        *lines, unfinished = stream.read().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                rollout = int(entry["rollout"])
                different = [key for key, value in self._identity.items() if entry[key] != value]
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    "not a line of saved rollouts", hint="choose another --save file", file=path, line=number
                ) from None
            if different:
                raise UserError(
                    f"holds rollouts with another {' and '.join(different)}",
                    hint="choose another --save file",
                    file=path,
                    line=number,
                )
            self.by_number[rollout] = entry
        if unfinished:
            stream.truncate(stream.tell() - len(unfinished))
        # An outage says nothing about the model; those rollouts are made again.
        self.by_number = {number: entry for number, entry in self.by_number.items() if not _is_outage(entry)}

    def check_rows(self, rows: Any) -> None:
        """Check that the saved rollouts are of these rows.

        Raises:
            UserError: The dataset has changed since.
        """
        for number, entry in sorted(self.by_number.items()):
            if entry.get("row_digest") != _row_digest(rows[number % len(rows)]):
                raise UserError(
                    f"rollout {number} was made from another row than row {number % len(rows)} of the dataset now",
                    hint="choose another --save file",
                    file=self._path,
                )

    def add(self, number: int, row: Mapping[str, Any], entry: dict[str, Any]) -> None:
        """Keep one rollout, in the file too."""
        entry = {**self._identity, "rollout": number, "row_digest": _row_digest(row), **entry}
        self.by_number[number] = entry
        if self._stream is not None:
            self._stream.write(json.dumps(entry).encode() + b"\n")
            self._stream.flush()


def _opened(path: Path) -> BinaryIO:
    try:
        stream = path.open("ab+")
    except OSError as error:
        raise UserError(f"--save: cannot be written: {error.strerror}", file=path) from None
    try:
        # The lock ends with the process, however that ends.
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise UserError("--save: another run is writing to it", hint="choose another --save file", file=path) from None
    return stream


def _row_digest(row: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=8).hexdigest()


def run_rollouts(
    checked: CheckedEnvironment,
    plan: Plan,
    saved: SavedRollouts,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[dict[str, Any]]:
    """Run the rollouts of a plan that are not saved yet.

    Returns:
        All rollouts in order, saved ones included: ``reward``, ``metrics``, ``error``, ``is_truncated``,
        ``stop_condition``, ``prompt``, ``completion``.
    """
    saved.check_rows(checked.environment.get_dataset())
    with _quiet_verifiers():
        asyncio.run(_run(checked.environment, plan, saved, on_progress))
    return [saved.by_number[number] for number in range(plan.rollouts)]


async def _run(env: Any, plan: Plan, saved: SavedRollouts, on_progress: Callable[[Progress], None]) -> None:
    from verifiers.clients import resolve_client
    from verifiers.types import ClientConfig

    config = ClientConfig(
        client_type="openai_chat_completions",
        api_base_url=plan.base_url,
        api_key_var=plan.api_key_var,
        max_retries=2,
    )
    client = resolve_client(config)
    rows = env.get_dataset()
    missing = iter([number for number in range(plan.rollouts) if number not in saved.by_number])
    progress = Progress(plan.rollouts)
    for number in range(plan.rollouts):
        if number in saved.by_number:
            _count(progress, saved.by_number[number])
    on_progress(progress)

    async def work() -> None:
        for number in missing:
            row = dict(rows[number % len(rows)])
            output = await env.run_rollout(row, client, plan.model, dict(plan.sampling))
            entry = _entry(output)
            saved.add(number, row, entry)
            _count(progress, entry)
            on_progress(progress)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.concurrency, plan.rollouts)):
                group.create_task(work())
    finally:
        with contextlib.suppress(Exception):
            await client.close()
        await env._teardown()


def _count(progress: Progress, entry: Mapping[str, Any]) -> None:
    progress.done += 1
    if entry["error"] is None:
        progress.rewards.append(entry["reward"])
    else:
        progress.errors += 1


def _entry(output: Mapping[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(output, default=_as_plain))
    kept = ("example_id", "reward", "metrics", "is_truncated", "stop_condition", "prompt", "completion")
    error = plain.get("error")
    return {
        **{key: plain.get(key) for key in kept},
        "answer": plain.get("answer"),
        "seconds": round(float(plain["timing"].get("total") or 0.0), 3),
        "error": None if error is None else {"kind": error["error"], "message": _error_text(error)},
    }


def _error_text(error: Mapping[str, Any]) -> str:
    message = str(error.get("message") or "").strip()
    # An error without a text of its own is named by its class; what caused it then says more.
    if message in ("", error.get("error")):
        return str(error.get("error_chain_repr") or error.get("error"))
    return message


def _as_plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else str(value)


def _is_outage(entry: Mapping[str, Any]) -> bool:
    error = entry.get("error")
    return isinstance(error, Mapping) and error.get("kind") in _OUTAGES


_OUTAGES = frozenset({"InfraError", "ModelError", "EmptyModelResponseError", "InvalidModelResponseError"})


@dataclass(frozen=True)
class Summary:
    """The figures of a run.

    Args:
        rollouts: How many rollouts there are.
        scored: How many of them ended without an error; the figures below are over these.
        figures: For the reward and every metric: ``mean``, ``spread`` (standard deviation), ``min``, ``max``, and
            ``zeros``, the share that is 0.
        truncated: Rollouts cut off by the token limit.
        infrastructure_errors: Rollouts that a service or the model endpoint failed.
        other_errors: Rollouts that ended in another error.
        first_error: The text of the first error.
    """

    rollouts: int
    scored: int
    figures: dict[str, dict[str, float]]
    truncated: int
    infrastructure_errors: int
    other_errors: int
    first_error: str | None


def summarize(rollouts: Sequence[Mapping[str, Any]]) -> Summary:
    """The figures of a run's rollouts."""
    scored = [entry for entry in rollouts if entry["error"] is None]
    names = dict.fromkeys(name for entry in scored for name in entry["metrics"] or {})
    figures = {"reward": _figures([entry["reward"] for entry in scored])} if scored else {}
    figures |= {name: _figures([entry["metrics"].get(name, 0.0) for entry in scored]) for name in names}
    failed = [entry for entry in rollouts if entry["error"] is not None]
    outages = sum(_is_outage(entry) for entry in failed)
    return Summary(
        rollouts=len(rollouts),
        scored=len(scored),
        figures=figures,
        truncated=sum(bool(entry["is_truncated"]) for entry in rollouts),
        infrastructure_errors=outages,
        other_errors=len(failed) - outages,
        first_error=failed[0]["error"]["message"] if failed else None,
    )


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values),
        "spread": statistics.pstdev(values),
        "min": min(values),
        "max": max(values),
        "zeros": sum(value == 0 for value in values) / len(values),
    }


@contextlib.contextmanager
def _quiet_verifiers() -> Iterator[None]:
    """Errors of rollouts are counted and shown at the end; Verifiers would log each of them."""
    loggers = [logging.getLogger(name) for name in ("verifiers", "httpx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
