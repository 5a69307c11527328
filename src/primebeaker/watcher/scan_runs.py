"""The second half of a scan's training side: look into run directories, link everything, store what changed."""

from __future__ import annotations

import json
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from primebeaker.watcher.issues import Issue
from primebeaker.watcher.reading import Stat
from primebeaker.watcher.records import Facts
from primebeaker.watcher.resolve import Resolution, Resolver, bind_configs, referenced_run_dirs
from primebeaker.watcher.rundir import RunDirectory, inspect_run_dir, looks_like_run_dir
from primebeaker.watcher.scan_files import RUN_KINDS, FileScan
from primebeaker.watcher.store_runs import RunStore
from primebeaker.watcher.walk import Walk

__all__ = ["RunScan"]


@dataclass
class RunScan:
    """Finds, inspects, links and stores runs.

    Attributes:
        files: The first half, which has read the configurations.
        stale_seconds: How long a run counts as active after its last change.
        wandb_flags: Stage -> W&B run ids of the command line.
    """

    files: FileScan
    stale_seconds: float
    wandb_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)
    discovered: int = 0

    def scan(self) -> tuple[Resolution, RunStore]:
        """Do all of it."""
        facts = self.files.load_facts()
        self._paths = self.files.roots.paths
        known = {row[0]: json.loads(row[2]) for row in self._stored_runs()}
        places = dict.fromkeys([*self._configured(facts), *known])
        looks: dict[str, dict[str, Any]] = {}
        small: dict[str, None] = {}
        queue = list(places)
        known_small = self.files.writer.known_files(RUN_KINDS)
        while queue:
            for run_dir in queue:
                self.files.check()
                looks[run_dir] = self._inspect(run_dir, facts.run_dirs.get(run_dir), known_small, small)
            facts = self.files.load_facts()
            # What was read just now may name further runs.
            queue = [path for path in self._configured(facts) if path not in looks]
        self.files.gone(path for path in known_small if path not in small and self._may_be_gone(path, looks))
        facts = self.files.load_facts()
        facts.run_dirs = looks
        aliases = self._aliases(looks, known)
        store = RunStore(self.files.writer, facts.digests, self._parent_exists)
        self._move(looks, aliases, store)
        bindings = bind_configs(facts, self._run_dirs_below)
        resolver = Resolver(
            facts=facts,
            bindings=bindings,
            repo_root=self.files.roots.repo_root,
            aliases=aliases,
            now_ns=self.files.now_ns,
            stale_ns=int(self.stale_seconds * 1e9),
            wandb_entity=self.files.roots.wandb_entity,
            wandb_flags=self.wandb_flags,
        )
        resolution = resolver.resolve(self._checked(dict.fromkeys([*self._configured(facts), *looks])))
        self.discovered = sum(item.kind != "referenced" for run in resolution.runs.values() for item in run.checkpoints)
        store.store(resolution)
        self.issues += resolution.issues
        self.issues += [item for run in resolution.runs.values() for item in run.issues]
        return resolution, store

    def _checked(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            self.files.check()
            yield path

    def _stored_runs(self) -> list[tuple[str, str, str]]:
        rows = self.files.writer.execute("SELECT run_dir, state, aliases_json FROM runs WHERE run_dir IS NOT NULL")
        return [(row[0], row[1], row[2]) for row in rows]

    def _configured(self, facts: Facts) -> list[str]:
        """Every run directory that files or output roots name."""
        bindings = bind_configs(facts, self._run_dirs_below)
        children: list[str] = []
        for root in self.files.roots.output_roots:
            walk = Walk(exclude=self.files.roots.excluder(), shown=self._paths.stored)
            if os.path.isdir(root):  # noqa: PTH112
                children += [self._paths.stored(path) for path in walk.directories(root)]
                self.issues += [item for item in walk.issues if item not in self.issues]
        return list(dict.fromkeys([*bindings.configs, *bindings.launches, *children, *referenced_run_dirs(facts)]))

    def _run_dirs_below(self, output_dir: str) -> list[str]:
        """An output directory that is a run itself, else its children that look like runs."""
        cache: dict[str, list[str]] = self.__dict__.setdefault("_below", {})
        if output_dir not in cache:
            cache[output_dir] = self._find_below(output_dir)
        return cache[output_dir]

    def _find_below(self, output_dir: str) -> list[str]:
        local = self._paths.local(output_dir)
        if looks_like_run_dir(local):
            return [output_dir]
        try:
            with os.scandir(local) as listing:
                names = sorted(entry.name for entry in listing if entry.is_dir())
        except OSError:
            return [output_dir]
        homes = [
            f"{output_dir}/{name}"
            for name in names
            if any(os.path.isdir(f"{local}/{name}/{part}") for part in ("checkpoints", "configs"))  # noqa: PTH112
        ]
        return homes or [output_dir]

    def _inspect(
        self,
        run_dir: str,
        previous: dict[str, Any] | None,
        known: Mapping[str, Any],
        small: dict[str, None],
    ) -> dict[str, Any]:
        local = self._paths.local(run_dir)
        look: RunDirectory = inspect_run_dir(local, run_dir, previous, self.files.now_ns)
        self.issues += look.issues
        for kind, path in look.files:
            shown = run_dir + path.removeprefix(local)
            small[shown] = None
            self.files.visit_path(path, shown, known.get(shown), kind)
        if look.facts != previous and (look.facts["exists"] or previous):
            with self.files.writer.batch():
                if look.facts["exists"]:
                    identity = look.facts.get("identity", [0, 0])
                    stat = Stat(0, look.facts.get("newest", 0), identity[1], identity[0])
                    self.files.writer.put_file(
                        run_dir, "run_directory", stat, now_ns=self.files.now_ns, facts=look.facts
                    )
                elif previous is not None and self._parent_exists(run_dir):
                    self._vanished[run_dir] = previous
        return look.facts

    def __post_init__(self) -> None:
        self._vanished: dict[str, dict[str, Any]] = {}

    def _may_be_gone(self, path: str, looks: Mapping[str, dict[str, Any]]) -> bool:
        home = posixpath.dirname(path)
        while home not in looks and len(home) > 1:
            home = posixpath.dirname(home)
        look = looks.get(home, {})
        if look.get("unreadable"):
            return False
        return bool(look.get("exists")) or self._parent_exists(home)

    def _parent_exists(self, run_dir: str) -> bool:
        return os.path.isdir(posixpath.dirname(self._paths.local(run_dir)))  # noqa: PTH112

    def _aliases(self, looks: Mapping[str, dict[str, Any]], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Other spellings of a run directory: remembered ones, and paths of one and the same directory."""
        aliases = {alias: run_dir for run_dir, spellings in known.items() for alias in spellings}
        groups: dict[tuple[int, int], list[str]] = defaultdict(list)
        for run_dir, look in looks.items():
            if look.get("exists") and "identity" in look:
                groups[tuple(look["identity"])].append(run_dir)
        for paths in groups.values():
            if len(paths) > 1:
                main = min(paths, key=lambda path: (path not in known, not self._is_real(path), path))
                aliases.update({path: main for path in paths if path != main})
        # A remembered old place that holds a run of its own again is no alias.
        return {
            alias: main
            for alias, main in aliases.items()
            if alias != main and (not looks.get(alias, {}).get("exists") or self._same(alias, main, looks))
        }

    def _is_real(self, path: str) -> bool:
        local = self._paths.local(path)
        return os.path.realpath(local) == local

    def _same(self, one: str, other: str, looks: Mapping[str, dict[str, Any]]) -> bool:
        return bool(looks[one].get("identity") == looks.get(other, {}).get("identity"))

    def _move(self, looks: Mapping[str, dict[str, Any]], aliases: dict[str, str], store: RunStore) -> None:
        """Recognise runs that were moved: gone here, and the same checkpoints at a place that is new."""
        if not self._vanished:
            return
        rows = {
            row[0]: row
            for row in self.files.writer.execute("SELECT run_dir, id, aliases_json FROM runs WHERE run_dir IS NOT NULL")
        }
        new = {
            mark: run_dir
            for run_dir, look in looks.items()
            if look.get("exists") and run_dir not in rows and (mark := _mark(look))
        }
        for old, previous in self._vanished.items():
            target = new.pop(_mark(previous), None)
            if target is None or old not in rows:
                continue
            with self.files.writer.batch():
                spellings = json.loads(rows[old][2])
                store.move(rows[old][1], old, target, spellings)
                self.files.writer.mark_gone([old])
            aliases.update({alias: target for alias in [*spellings, old] if alias != target})


def _mark(look: Mapping[str, Any]) -> str:
    """What a moved run directory keeps: steps, sizes and times of its checkpoints, or its W&B files."""
    rows = [[row[0], row[1], row[6], row[8]] for row in look.get("checkpoints", ())]
    wandb = [[row["id"], row.get("stamp")] for row in look.get("wandb", ())]
    return json.dumps([rows, wandb]) if rows or wandb else ""
