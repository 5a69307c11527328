"""The one process that loads the W&B client: reads one request, writes one JSON line a W&B run.

Started by :mod:`primebeaker.watcher.wandb_fetch`, so that the server stays small, no fetch outlives its time, and a
hanging client takes nothing with it.  The key comes by the environment, never by the command line.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeGuard

__all__ = ["TIMEOUT_SECONDS", "TRIES", "main"]

TIMEOUT_SECONDS = 15
TRIES = 4
#: Rows of one history query; W&B thins longer histories itself.
_SAMPLES = 10_000
_WORKERS = 4
_ERROR_LENGTH = 240


class _Bucket:
    """Requests a minute, for all runs together."""

    def __init__(self, rate: float, allowance: float, *, patient: bool) -> None:
        self._rate, self._tokens = rate, allowance
        self._patient = patient
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self.taken = 0

    def take(self, deadline: float) -> float:
        """Wait for the next request's turn; returns the deadline, later by the wait for the patient.

        Raises:
            TimeoutError: The turn comes after the deadline.
        """
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._rate, self._tokens + (now - self._last) * self._rate / 60) - 1
            self._last = now
            self.taken += 1
            wait = max(0.0, -self._tokens * 60 / self._rate)
        deadline += wait if self._patient else 0
        if now + wait > deadline:
            raise TimeoutError(f"no time left; at most {self._rate:g} requests a minute are made")
        time.sleep(wait)
        return deadline


def _environment(seconds: float) -> None:
    """Bound the client's own retries, and keep it silent; read by the client when it is loaded."""
    os.environ.update(
        WANDB_X_GRAPHQL_RETRY_MAX=str(TRIES - 1),
        WANDB_X_GRAPHQL_RETRY_WAIT_MIN_SECONDS="0.5",
        WANDB_X_GRAPHQL_RETRY_WAIT_MAX_SECONDS="8",
        WANDB_HTTP_TIMEOUT=str(min(TIMEOUT_SECONDS, seconds)),
        WANDB_SILENT="true",
        WANDB_ERROR_REPORTING="false",
        WANDB_LOGIN_TIMEOUT="1",
    )


def _series(rows: Sequence[Any], axis: str, name: str) -> dict[str, Any]:
    points: dict[float, float] = {}
    odd = 0
    for row in rows:
        x, value = (row.get(axis), row.get(name)) if isinstance(row, dict) else (None, None)
        if value in ("NaN", "Infinity", "-Infinity"):
            odd += 1
        if not _is_number(x) or not _is_number(value):
            continue
        if math.isfinite(float(value)):
            points[float(x)] = float(value)
        else:
            odd += 1
    return {"points": sorted(points.items()), "non_finite": odd}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _history(run: Any, name: str, bucket: _Bucket, deadline: float) -> tuple[dict[str, Any], float]:
    """One metric of one run, by the trainer's own step, else by W&B's; serving metrics by time. And the deadline."""
    axes = ("_timestamp",) if name.startswith("inference/") else ("step", "_step")
    found: dict[str, Any] = {"points": [], "non_finite": 0}
    for axis in axes:
        # A row is answered only when it holds all asked keys: one metric a query.
        deadline = bucket.take(deadline)
        found = _series(run.history(samples=_SAMPLES, keys=[name], x_axis=axis, pandas=False), axis, name)
        if found["points"] or found["non_finite"]:
            break
    return found, deadline


def _chosen(run: Any, wanted: dict[str, Any]) -> tuple[list[str], list[str]]:
    keys = run.history_keys or {}
    logged = keys.get("keys", keys)
    available = sorted(name for name in logged if not name.startswith("_") and name != "step")
    names = [name for name in wanted["names"] if name in logged]
    for glob in wanted["globs"]:
        names += [name for name in available if fnmatch.fnmatchcase(name, glob)]
    return available, list(dict.fromkeys(names))


def _fetch(api: Any, wanted: dict[str, Any], bucket: _Bucket, seconds: float) -> Iterator[dict[str, Any]]:
    deadline = time.monotonic() + seconds
    deadline = bucket.take(deadline)
    run = api.run(wanted["path"])
    available, names = _chosen(run, wanted)
    yield {"state": run.state, "available": available}
    for name in names:
        found, deadline = _history(run, name, bucket, deadline)
        yield {"series": {name: found}}


def _answer(api: Any, wanted: dict[str, Any], bucket: _Bucket, seconds: float) -> dict[str, Any]:
    answer: dict[str, Any] = {"path": wanted["path"], "state": None, "available": [], "series": {}, "error": None}
    try:
        for part in _fetch(api, wanted, bucket, seconds):
            answer["series"] |= part.pop("series", {})
            answer |= part
    except Exception as error:  # the client raises errors of many families
        answer["error"] = _sentence(error)
    return answer


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _ERROR_LENGTH else text[: _ERROR_LENGTH - 1] + "…"


def main() -> int:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # The client prints as it likes; that is no answer.
    os.dup2(2, 1)

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    _environment(request["seconds"])
    bucket = _Bucket(request["rate"], request["allowance"], patient=request["patient"])
    try:
        import wandb

        bucket.take(time.monotonic() + request["seconds"])
        api = wandb.Api(timeout=int(request["seconds"]))
    except ModuleNotFoundError as error:
        tell(
            {"refused": "package", "error": f"the package {error.name} is missing: pip install 'primebeaker[watcher]'"}
        )
        return 0
    except Exception as error:  # the client raises errors of many families
        tell({"refused": "login", "error": _sentence(error)})
        return 0
    with ThreadPoolExecutor(_WORKERS) as pool:
        asked = [pool.submit(_answer, api, wanted, bucket, request["seconds"]) for wanted in request["runs"]]
        for future in as_completed(asked):
            tell(future.result())
    tell({"requests": bucket.taken})
    return 0


if __name__ == "__main__":
    code = main()
    # The client's own threads and service may hang; everything is written.
    os._exit(code)
