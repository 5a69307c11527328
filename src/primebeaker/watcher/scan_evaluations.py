"""The evaluation side of a scan: one evaluation at a time, so that memory does not grow with their number."""

from __future__ import annotations

import hashlib
import os
import posixpath
import sqlite3
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from primebeaker.errors import Interrupted
from primebeaker.redaction import mask_credentials, redact_tree
from primebeaker.watcher.documents import holds_nothing_secret, redacted_yaml
from primebeaker.watcher.evaluations import Subject, archive_subject, subject_of
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.paths import is_below
from primebeaker.watcher.reading import Stat, UnreadableError, decode, parse_yaml, read_file
from primebeaker.watcher.results import Listing, Outcome, examine, list_results
from primebeaker.watcher.scan_files import FileScan
from primebeaker.watcher.store_evaluations import EvaluationStore
from primebeaker.watcher.walk import Found, Walk
from primebeaker.watcher.writing import KnownFile

__all__ = ["EvaluationScan"]

_KIND = "evaluation_config"
_OTHER = "other_evaluation"
_TRUST_NS = 2_000_000_000
_LAUNCHER_BYTES = 2**20


class _Known(NamedTuple):
    """What the index knows about an evaluation."""

    id: int
    run_dir: str
    workflow: str
    signature: str
    status: str
    missing: bool


class _Result(NamedTuple):
    """A result directory and what it says; ``outcome`` is None when its file system is gone."""

    listing: Listing
    outcome: Outcome | None


@dataclass
class _Prepared:
    """One evaluation YAML, read and judged but not stored."""

    stat: Stat
    size: int = 0
    digest: str = ""
    subject: Subject | None = None
    text: str | None = None
    result: _Result | None = None
    problem: Issue | None = None


@dataclass
class EvaluationScan:
    """Examines every evaluation whose YAML or result files changed.

    Attributes:
        files: The scan of files; it walks roots and counts.
        store: Writes evaluations.
        stale_seconds: How long an evaluation counts as running after its last change.
        workers: Threads that read ahead.
    """

    files: FileScan
    store: EvaluationStore
    stale_seconds: float
    workers: int = 2
    changed: int = 0
    removed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)

    def scan(self) -> None:
        """Visit the YAMLs of the evaluation roots, then result directories that none of them names."""
        known_files = self.files.writer.known_files((_KIND, _OTHER), digests=False)
        self._by_config: dict[str, list[_Known]] = {}
        for row in self.files.writer.execute(
            "SELECT config_path, id, run_dir, workflow, signature, status, missing_since IS NOT NULL FROM evaluations"
        ):
            known = _Known(row[1], row[2], sys.intern(row[3] or ""), row[4] or "", sys.intern(row[5]), bool(row[6]))
            self._by_config.setdefault(row[0], []).append(known)
        self._claimed: set[str] = set()
        seen: set[str] = set()
        for root in self.files.roots.eval_config_roots:
            shown_root = self.files.roots.paths.stored(root)
            below = {path: None for path in known_files if is_below(path, shown_root)}
            self._visit_all(self._new(self.files.walk_root(root, (".yaml", ".yml"), below), seen), known_files)
        self._moved(known_files, seen)
        for path in self.files.gone_below(known_files, seen):
            self._lost(path)
        visited = self._archives()
        self._lost_archives(visited)

    # Evaluations with a YAML.

    def _new(self, found: Iterable[tuple[Found, str]], seen: set[str]) -> Iterator[tuple[Found, str]]:
        for item, shown in found:
            if shown not in seen:
                seen.add(shown)
                self.files.counts.seen += 1
                yield item, shown

    def _is_unchanged(self, found: Found, shown: str, known: KnownFile | None) -> bool:
        """Whether neither the YAML nor its results changed since the last scan."""
        if known is None or self.files.full or not known.is_unchanged(found.stat):
            return False
        rows = self._by_config.get(shown, ())
        if known.kind != _OTHER and known.status != "error":
            rows = [row for row in rows if not row.missing or row.status == "missing"]
            if len(rows) != 1 or not self._is_settled(rows[0]):
                return False
        self._claimed.update(row.run_dir for row in rows)
        self.files.counts.unchanged += 1
        return True

    def _visit_all(self, found: Iterable[tuple[Found, str]], known: Mapping[str, KnownFile]) -> None:
        """Read ahead with a few threads, write with this one; at most four files a thread are held at once."""
        with ThreadPoolExecutor(self.workers) as pool:
            waiting: deque[tuple[str, Future[_Prepared]]] = deque()
            try:
                for item, shown in found:
                    if not self._is_unchanged(item, shown, known.get(shown)):
                        waiting.append((shown, pool.submit(self._prepare, item, shown)))
                    if len(waiting) >= 4 * self.workers:
                        self._finish(*waiting.popleft())
                while waiting:
                    self._finish(*waiting.popleft())
            finally:
                for _, future in waiting:
                    future.cancel()

    def _finish(self, shown: str, future: Future[_Prepared]) -> None:
        try:
            prepared = future.result()
            with self.files.writer.batch():
                self._store_yaml(shown, prepared)
        except (sqlite3.Error, Interrupted):
            raise
        except FileNotFoundError:
            return
        except Exception as error:
            text = mask_credentials(f"{type(error).__name__}: {error}")
            self.failures.append({"path": shown, "error": text})
            self.files.writer.set_issues(shown, [issue("internal_fault", shown, text, hint="please report it")])

    def _is_settled(self, row: _Known) -> bool:
        """Whether nothing in the result directory changed, and time alone cannot change the state either."""
        if row.status == "unconfigured":
            return True
        if row.status == "running" or not row.signature:
            return False
        listing = self._list(row.run_dir, row.workflow)
        return self._signature(listing) == row.signature

    def _list(self, run_dir: str, workflow: str) -> Listing:
        return list_results(self.files.roots.paths.local(run_dir), run_dir, workflow=workflow)

    def _signature(self, listing: Listing) -> str:
        if not listing.exists:
            return "absent"
        if listing.unreadable:
            return "unreadable"
        if listing.newest > self.files.now_ns - _TRUST_NS:
            return ""
        return hashlib.blake2b(listing.signature().encode(), digest_size=8).hexdigest()

    def _prepare(self, found: Found, shown: str) -> _Prepared:
        """Read and judge one evaluation; touches no database."""
        try:
            data, stat = read_file(found.path, shown)
            text = decode(data, shown)
            document = parse_yaml(text, shown)
        except UnreadableError as error:
            return _Prepared(found.stat, problem=error.issue)
        clean = document if holds_nothing_secret(text) else redact_tree(document)
        subject = subject_of(clean, shown, self.files.roots.repo_root)
        prepared = _Prepared(stat, len(data), hashlib.sha256(data).hexdigest(), subject)
        if subject is not None:
            prepared.text = redacted_yaml(text, document, clean)
            prepared.result = self._judge(subject)
        return prepared

    def _store_yaml(self, shown: str, prepared: _Prepared) -> None:
        writer, now_ns = self.files.writer, self.files.now_ns
        if prepared.problem is not None:
            self._claimed.update(row.run_dir for row in self._by_config.get(shown, ()))
            writer.put_file(shown, _KIND, prepared.stat, now_ns=now_ns, error=prepared.problem.message)
            writer.set_issues(shown, [prepared.problem])
            return
        self.files.counts.bytes_read += prepared.size
        self.files.counts.parsed += 1
        kind = _OTHER if prepared.subject is None else _KIND
        writer.put_file(shown, kind, prepared.stat, now_ns=now_ns, sha256=prepared.digest)
        if prepared.subject is None:
            writer.set_issues(shown, [])
        elif prepared.result is not None:
            self._store_result(prepared.subject, prepared.text, prepared.result)

    def _judge(self, subject: Subject) -> _Result:
        """Look at the result directory of one evaluation."""
        run_dir = subject.run_dir
        local = self.files.roots.paths.local(run_dir) if run_dir else ""
        listing = self._list(run_dir, subject.workflow) if run_dir else Listing(exists=False)
        rows = self._by_config.get(subject.config_path, ())
        seen_before = any(row.run_dir == run_dir and row.status != "not_started" for row in rows)
        if run_dir and not listing.exists and seen_before and not os.path.isdir(posixpath.dirname(local)):  # noqa: PTH112
            # The file system may be unmounted: what is known stays as it is.
            return _Result(listing, None)
        outcome = examine(
            subject,
            local,
            listing,
            seen_before=seen_before,
            now_ns=self.files.now_ns,
            stale_seconds=self.stale_seconds,
        )
        return _Result(listing, outcome)

    def _store_result(self, subject: Subject, text: str | None, result: _Result) -> None:
        run_dir, listing, outcome = subject.run_dir, result.listing, result.outcome
        if run_dir is not None:
            self._claimed.add(run_dir)
        if outcome is None:
            return
        counts = self.files.counts
        counts.bytes_read += outcome.bytes_read
        counts.seen += len(listing.files)
        counts.parsed += len(listing.files)
        for name, stat in listing.files.items():
            self.files.writer.put_file(f"{run_dir}/{name}", "outcome", stat, now_ns=self.files.now_ns)
        known = bool(self._by_config.get(subject.config_path))
        signature = self._signature(listing) if run_dir else ""
        changed, gone = self.store.put(subject, outcome, text, signature, known=known)
        self.changed += changed
        self.removed += gone

    def _moved(self, known_files: dict[str, KnownFile], seen: set[str]) -> None:
        """A YAML that was moved keeps its evaluation: same bytes, old path gone in this scan."""
        gone = {path: file for path, file in known_files.items() if path not in seen and file.kind == _KIND}
        if not gone:
            return
        new: dict[str | None, str] = {}
        for row in self.files.writer.execute(
            "SELECT path, sha256 FROM files WHERE kind = ? AND first_scan_id = ? AND status = 'ok'",
            (_KIND, self.files.writer.scan_id),
        ):
            new.setdefault(row[1], row[0])
        for path in gone:
            row = self.files.writer.execute("SELECT sha256 FROM files WHERE path = ?", (path,)).fetchone()
            target = new.pop(row[0], None) if row else None
            if target is not None:
                with self.files.writer.batch():
                    self.store.move(path, target)
                self._by_config.pop(path, None)

    def _lost(self, path: str) -> None:
        for row in self._by_config.get(path, ()):
            if not row.missing:
                with self.files.writer.batch():
                    self.removed += self.store.mark_missing(row.id, path)

    # Result directories without a YAML.

    def _archives(self) -> set[str]:
        visited: set[str] = set()
        for root in (*self.files.roots.archive_roots, *self.files.roots.eval_output_roots):
            if not os.path.isdir(root):  # noqa: PTH112
                continue
            walk = Walk(exclude=self.files.roots.excluder(), shown=self.files.roots.paths.stored)
            for local in walk.directories(root):
                self.files.check()
                shown = self.files.roots.paths.stored(local)
                visited.add(shown)
                if shown not in self._claimed:
                    with self.files.writer.batch():
                        self._archive(local, shown)
            self.files.issues += walk.issues
        return visited

    def _archive(self, local: str, shown: str) -> None:
        rows = [*self._by_config.get(shown, ()), *self._by_config.get(f"{shown}/launcher.log", ())]
        current = [row for row in rows if not row.missing]
        if len(current) == 1 and not self.files.full and self._is_settled(current[0]):
            self.files.counts.unchanged += 1
            return
        names = {entry.name for entry in os.scandir(local)} if os.access(local, os.R_OK | os.X_OK) else set()
        if not rows and names.isdisjoint(("averages.jsonl", "summary.jsonl")):
            return
        log: bytes | None = None
        if "launcher.log" in names:
            try:
                with open(f"{local}/launcher.log", "rb") as stream:
                    log = stream.read(_LAUNCHER_BYTES)
            except OSError:
                log = b""
        subject = archive_subject(shown, log)
        clean = Subject(**redact_tree(subject._asdict()))
        self._store_result(clean, None, self._judge(clean))

    def _lost_archives(self, visited: Iterable[str]) -> None:
        present = set(visited)
        for path, rows in self._by_config.items():
            for row in rows:
                if row.workflow != "moss-archive" or row.missing or row.run_dir in present:
                    continue
                home = posixpath.dirname(self.files.roots.paths.local(row.run_dir))
                listed = any(
                    home == root for root in (*self.files.roots.archive_roots, *self.files.roots.eval_output_roots)
                )
                if listed and os.path.isdir(home) and os.listdir(home):  # noqa: PTH112, PTH208
                    self._lost(path)
