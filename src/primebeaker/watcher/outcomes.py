"""Rows of JTC result files and their aggregation, parsed by our own code (JTC need not be installed)."""

from __future__ import annotations

import codecs
import io
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Benchmark", "OutcomeFile", "aggregate", "numeric_leaves", "read_averages", "read_failures", "read_summary"]

_TOLERANCE = 1e-9
_KNOWN = frozenset({"dataset", "runs", "mean_accuracy", "stdev_accuracy", "min_accuracy", "max_accuracy"})


class Benchmark(NamedTuple):
    """The scores of one dataset; accuracies in [0, 1]."""

    dataset: str
    runs: int
    mean: float
    stdev: float
    least: float
    most: float


class BadLine(NamedTuple):
    """The first invalid line of a file, and whether it is the last one without a line end (still being written)."""

    line: int
    reason: str
    unterminated: bool


@dataclass
class OutcomeFile:
    """What one JSON-lines file holds.

    Attributes:
        benchmarks: Final or aggregated scores by dataset, in order of appearance.
        rows: Valid rows read.
        bad: The first invalid line.
        duplicates: Datasets (or dataset and run) that came more than once; the last row won.
        extra: Unknown keys of the rows, by dataset.
        failures: Rows of ``failures.jsonl``.
        lines: Non-blank lines.
    """

    benchmarks: dict[str, Benchmark] = field(default_factory=dict)
    rows: int = 0
    bad: BadLine | None = None
    duplicates: list[str] = field(default_factory=list)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    lines: int = 0


def _objects(data: bytes, result: OutcomeFile) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Each non-blank line that is a JSON object; others are remembered in ``result.bad``."""
    for number, raw in enumerate(io.BytesIO(data.removeprefix(codecs.BOM_UTF8)), 1):
        line = raw.strip()
        if not line:
            continue
        result.lines += 1
        unterminated = not raw.endswith(b"\n")
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            _refuse(result, number, "not UTF-8", unterminated)
            continue
        except (ValueError, RecursionError) as error:
            reason = f"not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else "not JSON"
            _refuse(result, number, reason, unterminated)
            continue
        if isinstance(value, dict):
            yield number, value, unterminated
        else:
            _refuse(result, number, f"expected an object, found {type(value).__name__}", unterminated)


def _refuse(result: OutcomeFile, line: int, reason: str, unterminated: bool) -> None:
    if result.bad is None:
        result.bad = BadLine(line, reason, unterminated)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _benchmark(row: dict[str, Any]) -> Benchmark | str:
    """The row, or what is wrong with it."""
    dataset, runs = row.get("dataset"), row.get("runs")
    if not isinstance(dataset, str) or not dataset:
        return "dataset: expected a non-empty string"
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        return "runs: expected a whole number of at least 1"
    numbers: list[float] = []
    for name in ("mean_accuracy", "stdev_accuracy", "min_accuracy", "max_accuracy"):
        value = row.get(name)
        if not _is_number(value) or not math.isfinite(value):  # type: ignore[arg-type]
            return f"{name}: expected a finite number"
        if name == "stdev_accuracy":
            if value < 0:  # type: ignore[operator]
                return "stdev_accuracy: expected at least 0"
        elif not -_TOLERANCE <= value <= 1 + _TOLERANCE:  # type: ignore[operator]
            return f"{name}: expected a number from 0 to 1"
        numbers.append(float(value))  # type: ignore[arg-type]
    mean, stdev, least, most = numbers
    if not least - _TOLERANCE <= mean <= most + _TOLERANCE:
        return "expected min_accuracy <= mean_accuracy <= max_accuracy"
    return Benchmark(dataset, runs, mean, stdev, least, most)


def read_averages(data: bytes) -> OutcomeFile:
    """``averages.jsonl``: one final row a dataset."""
    result = OutcomeFile()
    for number, row, unterminated in _objects(data, result):
        benchmark = _benchmark(row)
        if isinstance(benchmark, str):
            _refuse(result, number, benchmark, unterminated)
            continue
        result.rows += 1
        if benchmark.dataset in result.benchmarks:
            result.duplicates.append(benchmark.dataset)
        result.benchmarks[benchmark.dataset] = benchmark
        extra = {key: value for key, value in row.items() if key not in _KNOWN}
        if extra:
            result.extra[benchmark.dataset] = extra
    return result


def read_summary(data: bytes) -> OutcomeFile:
    """``summary.jsonl``: one row a finished run, aggregated per dataset (a repeated run keeps its last row)."""
    result = OutcomeFile()
    accuracies: dict[str, dict[str, float]] = {}
    for number, row, unterminated in _objects(data, result):
        dataset, accuracy = row.get("dataset"), row.get("accuracy")
        if not isinstance(dataset, str) or not dataset:
            _refuse(result, number, "dataset: expected a non-empty string", unterminated)
            continue
        if not _is_number(accuracy) or not math.isfinite(accuracy) or not -_TOLERANCE <= accuracy <= 1 + _TOLERANCE:  # type: ignore[arg-type, operator]
            _refuse(result, number, "accuracy: expected a finite number from 0 to 1", unterminated)
            continue
        result.rows += 1
        runs = accuracies.setdefault(dataset, {})
        run = json.dumps(row["run"], sort_keys=True) if "run" in row else f"line {number}"
        if run in runs:
            result.duplicates.append(f"{dataset} run {run}")
        runs[run] = float(accuracy)  # type: ignore[arg-type]
    for dataset, runs in accuracies.items():
        result.benchmarks[dataset] = aggregate(dataset, runs.values())
    return result


def aggregate(dataset: str, accuracies: Iterable[float]) -> Benchmark:
    """Mean, population standard deviation, least and greatest of the runs of one dataset."""
    values = list(accuracies)
    mean = statistics.fmean(values)
    return Benchmark(dataset, len(values), mean, statistics.pstdev(values), min(values), max(values))


def read_failures(data: bytes, *, keep: int = 200) -> OutcomeFile:
    """``failures.jsonl``: all rows are counted, the first ``keep`` are kept."""
    result = OutcomeFile()
    for _, row, _unterminated in _objects(data, result):
        result.rows += 1
        if len(result.failures) < keep:
            result.failures.append(row)
    return result


def numeric_leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """``(dotted path, number)`` of every finite number of a JSON value; booleans are none."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numeric_leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numeric_leaves(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool) and path:
        try:
            number = float(value)
        except OverflowError:
            return
        if math.isfinite(number):
            yield path, number
