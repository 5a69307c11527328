"""What lies in a run directory: checkpoints, W&B runs, metric logs, attempts.

Only the places named here are listed, never shard files, rollouts or broadcasts: a run may hold millions of files.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.prime_rl.checkpoint_files import read_progress, read_trainer
from primebeaker.prime_rl.checkpoint_rules import sft_rule
from primebeaker.prime_rl.contract import DEFAULT
from primebeaker.prime_rl.layout import Layout
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.reading import io_issue
from primebeaker.watcher.wandb_log import has_exited, read_head

__all__ = ["WANDB_PARENTS", "RunDirectory", "inspect_run_dir", "looks_like_run_dir"]

_STEP = re.compile(r"step[_-]?(\d{1,15})")
_WANDB = re.compile(r"(offline-)?run-\d{8}_\d{6}-(.+)")
#: Fields of a checkpoint's row; rows of an earlier release have fewer and are made anew.
_ROW = 10
_MOST_WORDS = 5
#: Directories below a run that may hold a ``wandb`` directory.
WANDB_PARENTS = ("", "run_default", "trainer", "orchestrator")
_RUN_MARKS = ("weights", "checkpoints", "wandb", "run_default", "primebeaker_resume")
#: A file that changed less than this before it was looked at may change again within one tick of its clock.
_TRUST_NS = 2_000_000_000
RESUME_FOLDER = "primebeaker_resume"
JOINT_RECORD = "primebeaker_run.json"


@dataclass
class RunDirectory:
    """One look at a run directory.

    Attributes:
        facts: JSON-able; stored, and given back at the next look so that unchanged steps are not listed again.
        files: ``(kind, local path)`` of the small files that are to be read.
        issues: What could not be listed.
    """

    facts: dict[str, Any]
    files: list[tuple[str, str]] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)


def looks_like_run_dir(path: str) -> bool:
    """Whether a directory itself holds a run (or nothing at all), rather than children that do."""
    try:
        with os.scandir(path) as listing:
            names = {entry.name for entry in listing}
    except OSError:
        return True
    return not names or any(mark in names for mark in _RUN_MARKS)


def inspect_run_dir(local: str, shown: str, previous: dict[str, Any] | None, now_ns: int) -> RunDirectory:
    """Look at one run directory.

    Args:
        local: Where it is on this machine.
        shown: Its stored path.
        previous: The facts of the last look.
        now_ns: The time of the scan, nanoseconds since 1970.

    Returns:
        ``facts["exists"]`` is False when there is no such directory; ``facts["unreadable"]`` is set when it may not
        be listed.
    """
    try:
        stat = os.stat(local)  # noqa: PTH116
        names = {entry.name: entry for entry in os.scandir(local)}
    except (FileNotFoundError, NotADirectoryError):
        return RunDirectory({"exists": False})
    except OSError as error:
        return RunDirectory({**(previous or {}), "exists": True, "unreadable": True}, issues=[io_issue(shown, error)])
    look = _Look(local, shown, previous or {}, now_ns)
    layout = DEFAULT.layout(Path(local))
    facts: dict[str, Any] = {
        "exists": True,
        "identity": [stat.st_dev, stat.st_ino],
        "checkpoints": look.checkpoints(names, layout),
        "wandb": look.wandb(names),
        "metrics": look.metrics(layout),
        "newest": 0,
    }
    for entry in names.values():
        if entry.name.endswith(".log"):
            look.touch(entry)
    for entry in look.entries(str(layout.logs)) if layout.logs.name in names else ():
        look.touch(entry)
    look.small_files(names, layout)
    facts["newest"] = look.newest
    return RunDirectory(facts, look.files, look.issues)


@dataclass
class _Look:
    local: str
    shown: str
    previous: dict[str, Any]
    now_ns: int
    newest: int = 0
    files: list[tuple[str, str]] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)

    def touch(self, entry: os.DirEntry[str]) -> int:
        with contextlib.suppress(OSError):
            mtime = entry.stat().st_mtime_ns
            self.newest = max(self.newest, mtime)
            return mtime
        return 0

    def entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as listing:
                return sorted(listing, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.issues.append(io_issue(self.shown + path.removeprefix(self.local), error))
            return []

    def checkpoints(self, names: Iterable[str], layout: Layout) -> list[list[Any]]:
        """Rows ``[step, path, kind, stable, shards, progress, size, mtime, stamps, lacks]``, by step.

        ``lacks`` is None without a state to resume from, else what the trainer's and the orchestrator's part lack.
        """
        known = {row[0]: row for row in self.previous.get("checkpoints", ())}
        weights = self._steps(layout.weights, names)
        states = self._steps(layout.trainer_checkpoints, names)
        rows = []
        for step in sorted({*weights, *states}):
            state = states.get(step)
            parts = (_below(state, "trainer"), _below(state, "orchestrator"))
            # The orchestrator writes its part elsewhere, and often later than the trainer.
            apart = str(layout.orchestrator_checkpoint(step)) if state else None
            stamps = [_mtime(path) for path in (weights.get(step), state, *parts, apart)]
            old = known.get(step)
            if old and len(old) == _ROW and old[8] == stamps and max(stamps) < self.now_ns - _TRUST_NS:
                rows.append(old)
            else:
                rows.append(self._checkpoint(step, weights.get(step), states.get(step), layout, stamps))
            self.newest = max(self.newest, *stamps)
        return rows

    def _steps(self, root: Path, names: Iterable[str]) -> dict[int, str]:
        found: dict[int, str] = {}
        if root.name in names:
            for entry in self.entries(str(root)):
                match = _STEP.fullmatch(entry.name)
                if match and _is_dir(entry):
                    found.setdefault(int(match[1]), entry.path)
        return found

    def _checkpoint(
        self, step: int, weights: str | None, state: str | None, layout: Layout, stamps: list[int]
    ) -> list[Any]:
        size: int | None = None
        stable = False
        for path in (weights, state):
            for entry in self.entries(path) if path else ():
                stable = stable or entry.name == "STABLE"
                if path == weights and not entry.name.startswith("."):
                    with contextlib.suppress(OSError):
                        size = (size or 0) + entry.stat().st_size
        shards = progress = lacks = None
        if state:
            shards, progress, lacks = self._state(Path(state), layout.orchestrator_progress(step))
        kind = "both" if weights and state else "weights" if weights else "state"
        relative = (weights or state or "").removeprefix(self.local).lstrip("/")
        return [step, relative, kind, int(stable), shards, progress, size, max(stamps), stamps, lacks]

    def _state(self, state: Path, progress_file: Path) -> tuple[int | None, int | None, dict[str, list[str]] | None]:
        """Shards, whether the orchestrator's file is there, and what each part lacks, as ``rl checkpoints`` judges."""
        try:
            trainer = read_trainer(state / "trainer", sft_rule())
            found = [read_progress(place) for place in (progress_file, state / "orchestrator" / "progress.pt")]
        except UserError as error:
            shown = self.shown + str(state).removeprefix(self.local)
            self.issues.append(issue("io_error", shown, str(error), hint="make it readable for the watcher's user"))
            return None, None, None
        missing = [*trainer.missing, *(["save in progress"] if trainer.saving else [])]
        progress = all(part.missing for part in found)
        lacks = {"trainer": missing[:_MOST_WORDS], "orchestrator": [found[0].missing] if progress else []}
        return len(trainer.shards), int(not progress), lacks

    def wandb(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Local W&B runs, one entry a directory."""
        known = {row["path"]: row for row in self.previous.get("wandb", ())}
        rows = []
        for parent in WANDB_PARENTS:
            if (parent or "wandb") not in names:
                continue
            folder = "/".join(part for part in (self.local, parent, "wandb") if part)
            for entry in self.entries(folder):
                match = _WANDB.fullmatch(entry.name)
                if match and _is_dir(entry):
                    self.touch(entry)
                    rows.append(self._wandb_run(entry.path, match[2], bool(match[1]), known))
        return rows

    def _wandb_run(self, folder: str, run_id: str, offline: bool, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
        relative = folder.removeprefix(self.local).lstrip("/")
        file = f"{folder}/run-{run_id}.wandb"
        beside = f"{posixpath.dirname(folder)}/run-{run_id}.wandb.synced"
        synced = any(os.path.exists(path) for path in (f"{file}.synced", beside))  # noqa: PTH110
        row: dict[str, Any] = {"id": run_id, "path": relative, "offline": offline and not synced}
        try:
            stat = os.stat(file)  # noqa: PTH116
        except OSError:
            return row
        self.newest = max(self.newest, stat.st_mtime_ns)
        row["stamp"] = [stat.st_size, stat.st_mtime_ns]
        old = known.get(relative)
        if old and old.get("stamp") == row["stamp"] and stat.st_mtime_ns < self.now_ns - _TRUST_NS:
            return {**old, "offline": row["offline"]}
        with contextlib.suppress(OSError), open(file, "rb") as stream:
            head = read_head(stream)
            row["head"] = {key: value for key, value in head._asdict().items() if value}
            row["exit"] = has_exited(stream, stat.st_size)
        return row

    def metrics(self, layout: Layout) -> list[str]:
        """Metric logs, relative to the run directory."""
        found = []
        for path in (layout.metrics, layout.orchestrator_metrics):
            with contextlib.suppress(OSError):
                self.newest = max(self.newest, path.stat().st_mtime_ns)
                found.append(str(path).removeprefix(self.local).lstrip("/"))
        return found

    def small_files(self, names: Iterable[str], layout: Layout) -> None:
        """Collect the configurations and manifests that are to be read."""
        if RESUME_FOLDER in names:
            base = f"{self.local}/{RESUME_FOLDER}"
            self._collect("resume_config", f"{base}/configs", (".toml",))
            self._collect("attempt", f"{base}/attempts", (".json",))
        if layout.configs.name in names:
            self._collect("resolved_config", str(layout.configs), (".toml", ".json"))
        if JOINT_RECORD in names:
            self.files.append(("joint_record", f"{self.local}/{JOINT_RECORD}"))

    def _collect(self, kind: str, folder: str, suffixes: tuple[str, ...]) -> None:
        for entry in self.entries(folder):
            if entry.name.endswith(suffixes) and not entry.name.startswith("."):
                self.files.append((kind, entry.path))


def _below(path: str | None, name: str) -> str | None:
    return f"{path}/{name}" if path else None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _mtime(path: str | None) -> int:
    if path is None:
        return 0
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
