"""The state of an evaluation, decided from the files in its result directory alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from primebeaker.watcher.evaluations import ARCHIVE_WORKFLOW, Subject
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.outcomes import (
    Benchmark,
    OutcomeFile,
    numeric_leaves,
    read_averages,
    read_failures,
    read_summary,
)
from primebeaker.watcher.reading import OUTCOME_LIMIT, Stat, UnreadableError, decode, io_issue, parse_json, read_file
from primebeaker.watcher.timing import from_ns, parse_time

__all__ = ["OUTCOME_NAMES", "Listing", "Outcome", "examine", "list_results"]

WORKER_FOLDER = ".primebeaker/evaluation"
TRACES = "rollouts/step_0/eval/all/traces.jsonl"
_HEARTBEAT_SECONDS = 180
#: Files of the result directory itself that decide its state.
OUTCOME_NAMES = frozenset(
    {"averages.jsonl", "summary.jsonl", "failures.jsonl", "failure.json", "summary.json", "launcher.log"}
)
_STANDARD = ("averages.jsonl", "summary.jsonl", "failures.jsonl")
_ROUND = re.compile(r"round-\d{3,}")
_COMPLETE_WORDS = frozenset({"completed", "complete", "success"})
_SPECIAL = frozenset({"search-agent", "rubric-judge-audit", "rejection-sampling"})


@dataclass
class Listing:
    """The files of a result directory to depth 2.

    Attributes:
        exists: The directory is there.
        unreadable: It may not be listed.
        files: Stat of every file that can decide the state, by relative path.
        newest: Greatest mtime of any file, nanoseconds since 1970.
        oldest: Least mtime of any file.
    """

    exists: bool = True
    unreadable: Issue | None = None
    files: dict[str, Stat] = field(default_factory=dict)
    newest: int = 0
    oldest: int = 0

    def signature(self) -> str:
        """Changes whenever a deciding file does."""
        return ";".join(f"{name}:{stat.size}:{stat.mtime_ns}:{stat.inode}" for name, stat in sorted(self.files.items()))


def list_results(local: str, shown: str, *, workflow: str) -> Listing:
    """List one result directory."""
    listing = Listing()
    try:
        folders = _scan(listing, local, "", OUTCOME_NAMES)
    except (FileNotFoundError, NotADirectoryError):
        listing.exists = False
        return listing
    except OSError as error:
        listing.unreadable = io_issue(shown, error)
        return listing
    for folder in folders:
        wanted = frozenset({"receipt.json"}) if _ROUND.fullmatch(folder) else frozenset()
        with contextlib.suppress(OSError):
            _scan(listing, f"{local}/{folder}", f"{folder}/", wanted)
    if ".primebeaker" in folders:
        for name in ("owner.json", "result.json"):
            _take(listing, local, f"{WORKER_FOLDER}/{name}")
    if workflow == "search-agent":
        _take(listing, local, TRACES)
    return listing


def _scan(listing: Listing, path: str, prefix: str, wanted: frozenset[str]) -> list[str]:
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                    continue
                stat = entry.stat()
            except OSError:
                continue
            mtime = stat.st_mtime_ns
            listing.newest = max(listing.newest, mtime)
            listing.oldest = min(listing.oldest or mtime, mtime)
            if entry.name in wanted:
                listing.files[prefix + entry.name] = Stat(stat.st_size, mtime, stat.st_ino, stat.st_dev)
    return folders


def _take(listing: Listing, local: str, name: str) -> None:
    with contextlib.suppress(OSError):
        stat = os.stat(f"{local}/{name}")  # noqa: PTH116
        listing.files[name] = Stat(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev)
        listing.newest = max(listing.newest, stat.st_mtime_ns)


@dataclass
class Outcome:
    """What is known about an evaluation's result.

    Attributes:
        status: One word of the status table.
        error: Why it is not complete, one line.
        provisional: The scores are not final.
        keep_scores: The result cannot be read now: what was known before stays.
        benchmarks: Scores by dataset.
        metrics: ``name -> (value, count)``.
        failed_runs: Failed runs by dataset.
        failures: Rows of ``failures.jsonl``, at most 200.
        observed: Counts that were found.
        extra: Further content worth keeping.
        started_at: Time of the oldest file.
        finished_at: Time of the newest deciding file of a finished evaluation.
        bytes_read: Size of all files read.
        issues: Problems of single files.
    """

    status: str
    error: str | None = None
    provisional: bool = False
    keep_scores: bool = False
    benchmarks: dict[str, Benchmark] = field(default_factory=dict)
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)
    failed_runs: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    observed: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    started_at: str | None = None
    finished_at: str | None = None
    bytes_read: int = 0
    issues: list[Issue] = field(default_factory=list)

    @property
    def overall(self) -> float | None:
        """The unweighted mean over benchmarks."""
        means = [benchmark.mean for benchmark in self.benchmarks.values()]
        return sum(means) / len(means) if means else None


def examine(
    subject: Subject, local: str, listing: Listing, *, seen_before: bool, now_ns: int, stale_seconds: float
) -> Outcome:
    """Decide the state of one evaluation.

    Args:
        subject: What is evaluated and expected.
        local: The result directory on this machine.
        listing: Its files.
        seen_before: Whether the index has seen the directory.
        now_ns: The time of the scan.
        stale_seconds: Files older than this are not being written.
    """
    if subject.run_dir is None:
        return Outcome("unconfigured")
    if not listing.exists:
        return Outcome("missing", keep_scores=True) if seen_before else Outcome("not_started")
    if listing.unreadable:
        return Outcome("unreadable", "permission denied", keep_scores=True, issues=[listing.unreadable])
    look = _Examination(subject, local, listing, now_ns, stale_seconds)
    outcome = look.decide()
    outcome.issues = look.issues
    outcome.bytes_read = look.bytes_read
    outcome.started_at = from_ns(listing.oldest) if listing.oldest else None
    if outcome.status in ("complete", "partial", "failed"):
        newest = max((stat.mtime_ns for stat in listing.files.values()), default=0)
        outcome.finished_at = outcome.finished_at or (from_ns(newest) if newest else None)
    return outcome


class _Examination:
    def __init__(self, subject: Subject, local: str, listing: Listing, now_ns: int, stale_seconds: float) -> None:
        self.subject = subject
        self.shown = subject.run_dir or ""
        self.local = local
        self.listing = listing
        self.now_ns = now_ns
        self.fresh = listing.newest > now_ns - stale_seconds * 1e9
        self.issues: list[Issue] = []
        self.bytes_read = 0

    def decide(self) -> Outcome:
        outcome = self._from_files()
        owner = self._json(f"{WORKER_FOLDER}/owner.json")
        heartbeat = parse_time(owner.get("heartbeat_at")) if isinstance(owner, dict) else None
        if heartbeat and self._age(heartbeat) < _HEARTBEAT_SECONDS:
            outcome.status, outcome.error = "running", None
            outcome.provisional = bool(outcome.benchmarks or outcome.metrics)
            return outcome
        result = self._json(f"{WORKER_FOLDER}/result.json")
        if isinstance(result, dict) and isinstance(result.get("reason"), str):
            outcome.finished_at = parse_time(result.get("ended_at"))
            if result["reason"] != "completed":
                outcome.status = "failed"
                outcome.error = f"{result['reason']}, exit code {result.get('exit_code')}"
        return outcome

    def _age(self, moment: str) -> float:
        return self.now_ns / 1e9 - datetime.fromisoformat(moment).astimezone(UTC).timestamp()

    def _from_files(self) -> Outcome:
        kind = self.subject.workflow
        if kind == "search-agent":
            outcome = self._search()
        elif kind == "rubric-judge-audit":
            outcome = self._audit()
        elif kind == "rejection-sampling":
            outcome = self._rejection()
        else:
            outcome = self._standard()
        failure = self._json("failure.json")
        if failure is not None and not outcome.benchmarks and not outcome.metrics:
            table = failure if isinstance(failure, dict) else {}
            text = next((table[key] for key in ("error", "message") if isinstance(table.get(key), str)), None)
            outcome.status, outcome.error = "failed", text or "failure.json is present"
        return outcome

    def _waiting(self, **extra: Any) -> Outcome:
        return Outcome("running" if self.fresh else "incomplete", **extra)

    # Standard JTC results.

    def _standard(self) -> Outcome:
        files = self.listing.files
        averages = self._rows("averages.jsonl", read_averages)
        summary = self._rows("summary.jsonl", read_summary)
        failures = self._rows("failures.jsonl", read_failures)
        if averages is None and summary is None and self.subject.workflow not in ("moss", "standard", ARCHIVE_WORKFLOW):
            return self._other()
        final = averages is not None and averages.rows > 0
        source = averages if final else summary
        outcome = Outcome("incomplete")
        if source is not None:
            outcome.benchmarks = source.benchmarks
            if source.extra:
                outcome.extra["rows"] = source.extra
        if failures is not None:
            outcome.failures = failures.failures
            for row in failures.failures:
                if isinstance(row.get("dataset"), str):
                    outcome.failed_runs[row["dataset"]] = outcome.failed_runs.get(row["dataset"], 0) + 1
        bad = self._first_bad({"averages.jsonl": averages, "summary.jsonl": summary, "failures.jsonl": failures})
        deficit = self._deficit(outcome, failures)
        outcome.observed = {
            "datasets": list(outcome.benchmarks),
            "runs": sum(benchmark.runs for benchmark in outcome.benchmarks.values()),
            "failed_runs": failures.lines if failures else 0,
        }
        if bad:
            name, text, unterminated = bad
            outcome.status = "running" if self.fresh and unterminated else "incomplete"
            outcome.error, outcome.provisional = f"{self.shown}/{name}{text}", True
        elif final or (averages is None and "averages.jsonl" not in files and summary and summary.rows):
            outcome.status, outcome.error = ("partial", deficit) if deficit else ("complete", None)
        elif averages is not None and summary is not None and summary.rows:
            outcome.status, outcome.provisional = ("running" if self.fresh else "incomplete"), True
            outcome.error = None if self.fresh else deficit
        else:
            looked = ", ".join(_STANDARD)
            outcome.status = "running" if self.fresh else "incomplete"
            outcome.error = f"no recognised result file; looked for {looked}"
            if averages is not None or summary is not None:
                outcome.error = "no finished run yet"
        return outcome

    def _rows(self, name: str, read: Any) -> OutcomeFile | None:
        data = self._bytes(name)
        if data is None:
            return None
        result: OutcomeFile = read(data)
        if result.bad:
            self.issues.append(
                issue(
                    "invalid_outcome_row",
                    f"{self.shown}/{name}",
                    result.bad.reason,
                    hint="let the evaluation write it again",
                    line=result.bad.line,
                )
            )
        if result.duplicates:
            names = ", ".join(dict.fromkeys(result.duplicates))[:300]
            self.issues.append(
                issue(
                    "duplicate_rows",
                    f"{self.shown}/{name}",
                    f"repeated rows of {names}; the last one counts",
                    hint="one row a dataset and run",
                )
            )
        return result

    def _first_bad(self, files: Mapping[str, OutcomeFile | None]) -> tuple[str, str, bool] | None:
        bad = [(name, found.bad) for name, found in files.items() if found is not None and found.bad]
        if not bad:
            return None
        name, line = bad[0]
        return name, f":{line.line}: {line.reason}", all(item.unterminated for _, item in bad)

    def _deficit(self, outcome: Outcome, failures: OutcomeFile | None) -> str | None:
        parts: list[str] = []
        expected = self.subject.expected.get("datasets") or []
        missing = [name for name in expected if name not in outcome.benchmarks]
        if missing:
            parts.append(f"{len(missing)} of {len(expected)} datasets missing: {', '.join(missing)}")
        runs = self.subject.expected.get("runs")
        if runs:
            short = [item.dataset for item in outcome.benchmarks.values() if item.runs < runs]
            if short:
                parts.append(f"fewer than {runs} runs: {', '.join(short)}")
        if failures is not None and failures.lines:
            parts.append(f"{failures.lines} failed run{'s' if failures.lines > 1 else ''}")
        return "; ".join(parts) or None

    # The other kinds.

    def _search(self) -> Outcome:
        data = self._bytes(TRACES)
        if data is None:
            return self._waiting(error=f"no recognised result file; looked for {TRACES}")
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        lines = 0
        for raw in data.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(raw)
                lines += 1
                rewards = row.get("rewards") if isinstance(row, dict) else None
                for name, value in numeric_leaves(rewards if isinstance(rewards, dict) else {}):
                    sums[name] = sums.get(name, 0.0) + value
                    counts[name] = counts.get(name, 0) + 1
        expected = self.subject.expected.get("rows")
        if expected is not None and lines >= expected:
            status = "complete"
        elif self.fresh:
            status = "running"
        else:
            status = "complete" if expected is None else "partial"
        outcome = Outcome(status, provisional=status != "complete", observed={"rows": lines})
        outcome.metrics = {name: (total / counts[name], counts[name]) for name, total in sums.items()}
        if status == "partial":
            outcome.error = f"{lines} of {expected} rollouts"
        return outcome

    def _audit(self) -> Outcome:
        summary = self._json("summary.json")
        if not isinstance(summary, dict):
            return self._waiting(error="no recognised result file; looked for summary.json")
        overall = summary.get("overall")
        overall = overall if isinstance(overall, dict) else {}
        sampled, expected = overall.get("sampled"), self.subject.expected.get("records")
        complete = expected is not None and isinstance(sampled, int) and sampled == expected
        outcome = Outcome("complete" if complete else "partial", observed={"records": sampled})
        outcome.error = None if complete else f"{sampled} of {expected} records"
        outcome.metrics = {name: (value, 1) for name, value in numeric_leaves(overall)}
        return outcome

    def _rejection(self) -> Outcome:
        names = sorted(name for name in self.listing.files if name.endswith("/receipt.json"))
        receipts = [value for name in names if isinstance(value := self._json(name), dict)]
        total = self.subject.expected.get("rounds")
        counts: dict[str, tuple[float, int]] = {}
        for receipt in receipts:
            for name, value in numeric_leaves(receipt):
                if "accepted" in name or "rejected" in name:
                    counts[name] = (counts.get(name, (0.0, 0))[0] + value, len(receipts))
        summary = self._json("summary.json")
        observed = {"rounds_done": len(receipts), "rounds_total": total}
        if isinstance(summary, dict):
            for name, value in numeric_leaves(summary):
                if "accepted" in name or "rejected" in name:
                    counts[name] = (value, 1)
        if isinstance(summary, dict) and summary.get("status") == "completed":
            return Outcome("complete", metrics=counts, observed=observed)
        text = f"{len(receipts)} of {total if total is not None else '?'} rounds"
        return self._waiting(error=text, metrics=counts, observed=observed, provisional=True)

    def _other(self) -> Outcome:
        summary = self._json("summary.json")
        table = summary if isinstance(summary, dict) else {}
        metrics = {name: (value, 1) for name, value in numeric_leaves(table)}
        if table.get("status") in _COMPLETE_WORDS:
            return Outcome("complete", metrics=metrics)
        output = self.subject.expected.get("output_path")
        if output and not self.fresh and self._is_filled(output):
            return Outcome("complete", metrics=metrics)
        looked = f"looked for summary.json{' and ' + output if output else ''}"
        return self._waiting(metrics=metrics, provisional=bool(metrics), error=f"no recognised result file; {looked}")

    def _is_filled(self, output: str) -> bool:
        run_dir = self.subject.run_dir or ""
        path = self.local + output.removeprefix(run_dir) if output.startswith(run_dir + "/") else output
        with contextlib.suppress(OSError):
            return os.stat(path).st_size > 0  # noqa: PTH116
        return False

    # Reading.

    def _bytes(self, name: str) -> bytes | None:
        known = self.listing.files.get(name)
        if known is None:
            return None
        if known.size == 0:
            return b""
        try:
            data, _ = read_file(f"{self.local}/{name}", f"{self.shown}/{name}", limit=OUTCOME_LIMIT)
        except UnreadableError as error:
            self.issues.append(error.issue)
            return None
        except FileNotFoundError:
            return None
        self.bytes_read += len(data)
        return data

    def _json(self, name: str) -> Any:
        data = self._bytes(name)
        if data is None or not data.strip():
            return None
        try:
            return parse_json(decode(data, f"{self.shown}/{name}"), f"{self.shown}/{name}")
        except UnreadableError as error:
            self.issues.append(error.issue)
            return {} if name == "failure.json" else None
