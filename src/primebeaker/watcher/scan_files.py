"""The first half of a scan: read what is new among configurations, launch specs and manifests."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.redaction import mask_credentials, redact_tree
from primebeaker.watcher.documents import redacted_toml, stored_text
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.launches import attempt_facts, joint_facts, launch_facts, receipt_facts
from primebeaker.watcher.manifests import manifest_facts
from primebeaker.watcher.paths import is_below
from primebeaker.watcher.reading import Stat, UnreadableError, decode, parse_json, parse_toml, parse_yaml, read_file
from primebeaker.watcher.records import Facts
from primebeaker.watcher.roots import Roots
from primebeaker.watcher.timing import from_ns
from primebeaker.watcher.training import hyperparameters, stage_of, training_facts
from primebeaker.watcher.values import jsonable, semantic_digest, text_at
from primebeaker.watcher.walk import Found, Walk
from primebeaker.watcher.writing import ConfigContent, KnownFile, Writer

__all__ = ["FileScan", "ScanCounts"]

_RECEIPT_SUFFIX = ".receipt.json"
_EMPTY = "other"
#: Kinds of files outside run directories, by the option that names their root.
TRAINING_KINDS = ("training_config", "joint_run", "launch_spec", "receipt", "manifest", _EMPTY)
RUN_KINDS = ("resume_config", "attempt", "resolved_config", "joint_record")


@dataclass
class ScanCounts:
    """What a scan did with files."""

    seen: int = 0
    parsed: int = 0
    unchanged: int = 0
    bytes_read: int = 0
    invalid_configs: list[str] = field(default_factory=list)


@dataclass
class FileScan:
    """Walks roots and reads files that changed.

    Attributes:
        writer: The scan's writer.
        roots: What may be read.
        now_ns: The time of the scan.
        full: Read unchanged files too.
        check: Raises when the scan is to stop.
    """

    writer: Writer
    roots: Roots
    now_ns: int
    full: bool
    check: Callable[[], None]
    counts: ScanCounts = field(default_factory=ScanCounts)
    issues: list[Issue] = field(default_factory=list)

    def scan_training_roots(self) -> None:
        """Read TOMLs, joint run files, launch specs, receipts and manifests."""
        known = self.writer.known_files(TRAINING_KINDS)
        seen: set[str] = set()
        for option, suffixes in (
            ("train_config_roots", (".toml", ".yaml", ".yml")),
            ("launch_spec_roots", (".json", ".yaml", ".yml")),
            ("manifest_roots", (".json",)),
        ):
            for root in getattr(self.roots, option):
                below = {path: file for path, file in known.items() if is_below(path, self.roots.paths.stored(root))}
                found = self.walk_root(root, suffixes, below)
                for item, shown in found:
                    name = os.path.basename(shown)  # noqa: PTH119
                    if option == "manifest_roots" and "manifest" not in name.lower():
                        continue
                    if shown in seen:
                        continue
                    if name.endswith((".yaml", ".yml")) and self._is_evaluation(item.path):
                        continue
                    seen.add(shown)
                    self._visit(item, shown, known.get(shown), _kind_of(option, name))
        for path in self.roots.manifests:
            shown = self.roots.paths.stored(path)
            if shown not in seen:
                seen.add(shown)
                self.visit_path(path, shown, known.get(shown), "manifest")
        self.gone(path for path in known if path not in seen and not self._is_protected(path))

    def _is_evaluation(self, path: str) -> bool:
        return any(is_below(path, root) for root in self.roots.eval_config_roots)

    def walk_root(self, root: str, suffixes: tuple[str, ...], known: Mapping[str, Any]) -> Iterable[tuple[Found, str]]:
        """The files of one root with their stored paths; a root that cannot be believed protects what is known."""
        shown_root = self.roots.paths.stored(root)
        walk = Walk(exclude=self.roots.excluder(), shown=self.roots.paths.stored)
        count = 0
        if os.path.isdir(root):  # noqa: PTH112
            for found in walk.files(root, suffixes):
                self.check()
                count += 1
                yield found, self.roots.paths.stored(found.path)
        elif not known:
            self.issues.append(
                issue("root_missing", shown_root, "no such directory", hint="create it or give another root")
            )
        self.issues.extend(walk.issues)
        self._protected.extend(self.roots.paths.stored(path) for path in walk.unreadable)
        if not count and known:
            self._protected.append(shown_root)
            self.issues.append(
                issue(
                    "root_vanished",
                    shown_root,
                    f"is gone or empty, but held {len(known)} known files; nothing below it is marked as gone",
                    hint="mount it again, or drop the root and run primebeaker watcher rebuild",
                )
            )
        self._walked.append(shown_root)

    def __post_init__(self) -> None:
        self._protected: list[str] = []
        self._walked: list[str] = []

    def _is_protected(self, path: str) -> bool:
        return any(is_below(path, root) for root in self._protected) or not (
            any(is_below(path, root) for root in self._walked) or path in self.roots.manifests
        )

    def gone(self, paths: Iterable[str]) -> list[str]:
        """Mark files that a completed walk did not meet."""
        listed = list(paths)
        if listed:
            with self.writer.batch(len(listed)):
                self.writer.mark_gone(listed)
        return listed

    def gone_below(self, known: Iterable[str], seen: set[str]) -> list[str]:
        """Known files of walked roots that were not met."""
        return self.gone(path for path in known if path not in seen and not self._is_protected(path))

    def visit_path(self, local: str, shown: str, known: KnownFile | None, kind: str) -> bool:
        """Read one file that is named rather than found; False when it is not there."""
        try:
            stat = os.stat(local)  # noqa: PTH116
        except OSError:
            return False
        found = Found(local, Stat(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev))
        self._visit(found, shown, known, kind)
        return True

    def _visit(self, found: Found, shown: str, known: KnownFile | None, kind: str) -> None:
        self.counts.seen += 1
        if known is not None and not self.full and known.is_unchanged(found.stat):
            self.counts.unchanged += 1
            if known.status == "error" and kind in ("training_config", "resume_config"):
                self.counts.invalid_configs.append(shown)
            return
        with self.writer.batch():
            self._read(found, shown, known, kind)

    def _read(self, found: Found, shown: str, known: KnownFile | None, kind: str) -> None:
        try:
            data, stat = read_file(found.path, shown)
            self.counts.bytes_read += len(data)
            digest = hashlib.sha256(data).hexdigest()
            if known is not None and not self.full and known.sha256 == digest and known.status == "ok":
                self.writer.execute(
                    "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, device = ?, parsed_at = ? WHERE path = ?",
                    (*stat, from_ns(self.now_ns), shown),
                )
                self.counts.unchanged += 1
                return
            self.counts.parsed += 1
            actual, facts = self._parse(decode(data, shown), shown, kind, digest)
            self.writer.put_file(shown, actual, stat, now_ns=self.now_ns, sha256=digest, facts=facts)
            self.writer.set_issues(shown, [])
        except FileNotFoundError:
            return
        except sqlite3.Error:
            raise
        except UnreadableError as error:
            self._failed(found, shown, kind, error.issue)
        except Exception as error:
            text = mask_credentials(f"{type(error).__name__}: {error}")
            self._failed(found, shown, kind, issue("internal_fault", shown, text, hint="please report it"))

    def _failed(self, found: Found, shown: str, kind: str, problem: Issue) -> None:
        if kind in ("training_config", "resume_config"):
            self.counts.invalid_configs.append(shown)
        self.writer.put_file(shown, kind, found.stat, now_ns=self.now_ns, error=problem.message)
        self.writer.set_issues(shown, [problem])

    def _parse(self, text: str, shown: str, kind: str, digest: str) -> tuple[str, dict[str, Any] | None]:
        if kind in ("training_config", "resume_config"):
            return self._toml(text, shown, kind, digest)
        if kind == "resolved_config":
            return self._resolved(text, shown, digest)
        if kind == "joint_run":
            facts = joint_facts(redact_tree(parse_yaml(text, shown)), shown)
        else:
            document = redact_tree(parse_json(text, shown)) if text.strip() else None
            if kind == "launch_spec":
                facts = launch_facts(document)
            elif kind == "receipt":
                facts = receipt_facts(document) if isinstance(document, dict) else None
            elif kind == "attempt":
                facts = attempt_facts(document)
            elif kind == "joint_record":
                facts = _joint_record(document)
            else:
                facts = manifest_facts(document, shown, self.roots.repo_root)
        return (kind, facts) if facts is not None else (_EMPTY, None)

    def _toml(self, text: str, shown: str, kind: str, digest: str) -> tuple[str, dict[str, Any] | None]:
        tree = parse_toml(text, shown)
        stage = stage_of(tree)
        if stage is None:
            return _EMPTY, None
        return kind, self._store_config(tree, redacted_toml(text, tree), shown, stage, digest)

    def _store_config(self, tree: dict[str, Any], text: str, shown: str, stage: str, digest: str) -> dict[str, Any]:
        meaning = semantic_digest(tree)
        clean = redact_tree(jsonable(tree))
        self.writer.put_config(shown, ConfigContent(digest, meaning, stored_text(text), clean, hyperparameters(clean)))
        facts = training_facts(clean, stage, self.roots.repo_root)
        return {**facts, "sha256": digest, "meaning": meaning}

    def _resolved(self, text: str, shown: str, digest: str) -> tuple[str, dict[str, Any] | None]:
        """A resolved sub-config: its name tells the stage, since each holds one component only."""
        name = os.path.splitext(os.path.basename(shown))[0]  # noqa: PTH119, PTH122
        tree = parse_toml(text, shown) if shown.endswith(".toml") else parse_json(text, shown)
        if not isinstance(tree, dict):
            return _EMPTY, None
        if name not in ("trainer", "orchestrator", "inference", "sft", "rl"):
            return _EMPTY, None
        stage = "sft" if name == "sft" else "rl"
        if shown.endswith(".toml"):
            clean = redacted_toml(text, tree)
        else:
            clean = (
                mask_credentials(text)
                if redact_tree(tree) == tree
                else json.dumps(redact_tree(tree), indent=2, ensure_ascii=False)
            )
        return "resolved_config", self._store_config(tree, clean, shown, stage, digest)

    def load_facts(self) -> Facts:
        """Everything that is known about files of training, whether read now or earlier."""
        facts = Facts()
        kinds = (*TRAINING_KINDS[:-1], *RUN_KINDS, "run_directory")
        marks = ", ".join("?" * len(kinds))
        for path, kind, text in self.writer.execute(
            f"SELECT path, kind, facts FROM files WHERE status != 'gone' AND facts IS NOT NULL AND kind IN ({marks})"  # noqa: S608
            " ORDER BY path",
            kinds,
        ):
            value = json.loads(text)
            if kind == "receipt":
                path = path.removesuffix(_RECEIPT_SUFFIX) + ".json"
            facts.of_kind(kind)[path] = value
            if "meaning" in value:
                facts.digests[path] = (value["sha256"], value["meaning"])
        return facts


def _kind_of(option: str, name: str) -> str:
    lowered = name.lower()
    if lowered.endswith((".yaml", ".yml")):
        return "joint_run"
    if option == "train_config_roots":
        return "training_config"
    if option == "manifest_roots":
        return "manifest"
    return "receipt" if lowered.endswith(_RECEIPT_SUFFIX) else "launch_spec"


def _joint_record(document: Any) -> dict[str, Any] | None:
    """The receipt that a joint launch leaves in the run directory."""
    facts = {
        "config": text_at(document, "config"),
        "service_experiment_id": text_at(document, "service.experiment_id"),
        "rl_experiment_id": text_at(document, "rl.experiment_id"),
    }
    return {key: value for key, value in facts.items() if value} or None
