"""From facts of files to runs: identities, configurations, attempts, parents and datasets, over maps, once a scan.

Pure: facts in, records out.  The work is linear in the number of files.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from primebeaker.watcher.attempts import attempts_of, bind_checkpoints, wandb_rows
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.manifests import ManifestIndex, is_hub_dataset
from primebeaker.watcher.paths import checkpoint_step, is_below, normalise, run_dir_of
from primebeaker.watcher.records import (
    CheckpointRecord,
    DatasetRecord,
    EdgeRecord,
    Facts,
    RunRecord,
)
from primebeaker.watcher.rundir import RESUME_FOLDER
from primebeaker.watcher.timing import from_ns

__all__ = ["Bindings", "Resolution", "Resolver", "bind_configs", "referenced_run_dirs"]

_PREFERRED = "/examples/configs/train/"


@dataclass
class Bindings:
    """Which source TOMLs and launch specs belong to which run directory."""

    configs: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    launches: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unbound: list[str] = field(default_factory=list)


@dataclass
class Resolution:
    """All runs and datasets, and what was wrong."""

    runs: dict[str, RunRecord] = field(default_factory=dict)
    datasets: dict[str, DatasetRecord] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)


def bind_configs(facts: Facts, run_dirs_below: Callable[[str], Sequence[str]]) -> Bindings:
    """Bind TOMLs by their output directory, and launch specs by ``OUTPUT_DIR`` or, only without it, ``CONFIG_PATH``.

    Args:
        facts: Everything that was read.
        run_dirs_below: The run directories of an output directory whose TOML has no ``[run]`` table.
    """
    bindings = Bindings()
    by_config: dict[str, list[str]] = defaultdict(list)
    for path, launch in facts.launches.items():
        for config in launch.get("config_paths", ()):
            by_config[config].append(path)
        for output in launch.get("output_dirs", ()):
            bindings.launches[output].append(path)
    for path, config in facts.configs.items():
        if "run_dir" in config:
            homes: Iterable[str] = [config["run_dir"]]
        elif "output_dir" in config:
            homes = run_dirs_below(config["output_dir"])
        else:
            homes = dict.fromkeys(
                output for spec in by_config.get(path, ()) for output in facts.launches[spec].get("output_dirs", ())
            )
            if not homes:
                bindings.unbound.append(path)
        for home in homes:
            bindings.configs[home].append(path)
            for spec in by_config.get(path, ()):
                if not facts.launches[spec].get("output_dirs") and spec not in bindings.launches[home]:
                    bindings.launches[home].append(spec)
    return bindings


def referenced_run_dirs(facts: Facts) -> list[str]:
    """Run directories that are known only because a run starts from one of their checkpoints."""
    found: dict[str, None] = {}
    for config in (*facts.configs.values(), *facts.resume_configs.values()):
        for _key, reference, is_path in config.get("references", ()):
            if is_path and checkpoint_step(reference) is not None:
                found.setdefault(run_dir_of(reference))
        fork = config.get("fork")
        if fork:
            found.setdefault(run_dir_of(fork[0]) if checkpoint_step(fork[0]) is not None else fork[0])
    return list(found)


@dataclass
class Resolver:
    """Makes records from facts.

    Attributes:
        facts: Everything that was read.
        bindings: TOMLs and launch specs by run directory.
        repo_root: What relative dataset names are taken from.
        aliases: Other spelling of a run directory -> the run directory.
        now_ns: The time of the scan.
        stale_ns: How long a run counts as active after its last file changed.
        wandb_entity: The entity of runs whose files name none.
        wandb_flags: Stage -> W&B run ids given on the command line.
    """

    facts: Facts
    bindings: Bindings
    repo_root: str
    aliases: Mapping[str, str]
    now_ns: int
    stale_ns: int
    wandb_entity: str | None = None
    wandb_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    resolution: Resolution = field(default_factory=Resolution)

    def resolve(self, run_dirs: Iterable[str]) -> Resolution:
        """The records of all the run directories."""
        self._manifests = ManifestIndex(self.facts.manifests)
        self._identities: dict[str, str] = {}
        self._joint = {facts["config_path"]: path for path, facts in self.facts.joint.items() if "config_path" in facts}
        self._by_home: dict[str, dict[str, list[str]]] = {}
        for kind in ("resume_configs", "attempts", "resolved", "joint_records"):
            grouped: dict[str, list[str]] = defaultdict(list)
            for path in sorted(getattr(self.facts, kind)):
                grouped[_home_of(path)].append(path)
            self._by_home[kind] = grouped
        spellings: dict[str, list[str]] = defaultdict(list)
        for alias, run_dir in self.aliases.items():
            spellings[run_dir].append(alias)
        for run_dir in dict.fromkeys(self.aliases.get(path, path) for path in run_dirs):
            self.resolution.runs[run_dir] = self._run(run_dir, spellings.get(run_dir, []))
        for path in self.bindings.unbound:
            self.resolution.issues.append(
                issue(
                    "no_output_dir",
                    path,
                    "no output_dir, and no launch spec with this CONFIG_PATH and an OUTPUT_DIR",
                    hint="set output_dir, or add the launch spec's directory to --launch_spec_roots",
                )
            )
        self._add_referenced()
        self._cut_cycles()
        return self.resolution

    def _run(self, run_dir: str, aliases: list[str]) -> RunRecord:
        look = self.facts.run_dirs.get(run_dir, {})
        homes = [run_dir, *aliases]
        sources = list(dict.fromkeys(path for home in homes for path in self.bindings.configs.get(home, ())))
        specs = sorted({path for home in homes for path in self.bindings.launches.get(home, ())})
        resume_configs, manifests, resolved, joint_records = (
            next((found for home in homes if (found := self._by_home[kind].get(home))), [])
            for kind in ("resume_configs", "attempts", "resolved", "joint_records")
        )
        launches = {path: self.facts.launches[path] for path in specs}
        attempt_facts = {path: self.facts.attempts[path] for path in manifests}
        local = look.get("wandb", [])
        attempts = attempts_of(
            launches, self.facts.receipts, attempt_facts, list(dict.fromkeys(row["id"] for row in local))
        )
        record = RunRecord(run_dir, posixpath.basename(run_dir) or run_dir, "unknown", "planned", "none")
        record.exists, record.unreadable = bool(look.get("exists")), bool(look.get("unreadable"))
        record.aliases = sorted(aliases)
        record.metrics = [f"{run_dir}/{path}" for path in look.get("metrics", ())]
        record.attempts = attempts
        named = {path for facts in attempt_facts.values() for path in _named_configs(facts)} | set(resume_configs)
        chosen = self._choose(record, sources, named, launches)
        by_attempt = {path: attempt.attempt_key for attempt in attempts for path in attempt.config_paths}
        for path in sources:
            role = "candidate" if record.config_state == "ambiguous" and path not in named else "source"
            record.configs.append((path, role, by_attempt.get(path) if path in named and len(sources) > 1 else None))
        record.configs += [(path, "resume", by_attempt.get(path)) for path in resume_configs]
        record.configs += [(path, "resolved", None) for path in resolved]
        own = [self.facts.configs[path] for path in ([chosen] if chosen else sources)]
        settled = own[0] if len(own) == 1 else {}
        fallbacks = [self.facts.resume_configs[path] for path in resume_configs] + [
            self.facts.resolved[path] for path in resolved
        ]
        stages = {config["stage"] for config in own} or {config["stage"] for config in fallbacks if config.get("stage")}
        record.stage = stages.pop() if len(stages) == 1 else "rl" if "rl" in stages else "unknown"
        record.max_steps = next(
            (config["max_steps"] for config in [settled, *fallbacks] if config.get("max_steps") is not None), None
        )
        record.checkpoints = [_checkpoint(run_dir, row) for row in look.get("checkpoints", ())]
        bind_checkpoints(record.checkpoints, attempts)
        record.wandb = wandb_rows(
            attempts,
            launches,
            attempt_facts,
            settled.get("wandb") or next((config["wandb"] for config in fallbacks if config.get("wandb")), {}),
            local,
            run_dir,
            flags=self.wandb_flags.get(record.stage, ()),
            entity=self.wandb_entity,
        )
        self._parents(record, own or fallbacks[:1], [chosen] if chosen else sources or resume_configs)
        for config in own if len(own) == 1 else own or fallbacks[:1]:
            for role, name in config.get("datasets", ()):
                identity = self._dataset(record, name)
                if identity and (identity, role, name) not in record.datasets:
                    record.datasets.append((identity, role, name))
        self._joint_run(record, chosen, joint_records)
        record.state = self._state(record, look)
        return record

    def _choose(
        self, record: RunRecord, sources: list[str], named: set[str], launches: Mapping[str, dict[str, Any]]
    ) -> str | None:
        """The one source configuration; several that differ are never guessed between."""
        groups: dict[str, list[str]] = defaultdict(list)
        for path in sources:
            groups[self.facts.digests[path][1]].append(path)
        if len(groups) > 1:
            free = {digest: paths for digest, paths in groups.items() if not set(paths) <= named}
            groups = defaultdict(list, free or groups)
        if len(groups) > 1:
            launched = {config for facts in launches.values() for config in facts.get("config_paths", ())}
            hit = {digest: paths for digest, paths in groups.items() if launched & set(paths)}
            if len(hit) == 1:
                groups = defaultdict(list, hit)
        if not groups:
            return None
        if len(groups) > 1:
            record.config_state = "ambiguous"
            paths = [path for members in groups.values() for path in members]
            record.reason = f"{len(groups)} different training TOMLs name this output directory"
            record.issues.append(
                issue(
                    "ambiguous_config",
                    record.run_dir,
                    f"{record.reason}: {', '.join(paths[:5])}; expected one",
                    hint="remove the wrong ones, or keep the launch spec whose CONFIG_PATH names the right one",
                )
            )
            return None
        record.config_state = "ok"
        record.config_path = min(
            next(iter(groups.values())), key=lambda path: (_PREFERRED not in path, path.count("/"), path)
        )
        return record.config_path

    def _parents(self, record: RunRecord, configs: Sequence[dict[str, Any]], paths: Sequence[str | None]) -> None:
        edges: dict[tuple[str, str], EdgeRecord] = {}
        for config, path in zip(configs, paths, strict=False):
            for key, reference, is_path in config.get("references", ()):
                target = self._spelling(reference) if is_path else reference
                checkpoint = is_path and checkpoint_step(target) is not None
                relation = "init" if checkpoint else "base_model"
                edges.setdefault((target, relation), EdgeRecord(target, relation, checkpoint, path or "", key))
            fork = config.get("fork")
            if fork:
                target = self._spelling(fork[0])
                if checkpoint_step(target) is None and fork[1]:
                    target = f"{target}/checkpoints/step_{fork[1]}"
                checkpoint = checkpoint_step(target) is not None
                own = is_below(target, record.run_dir)
                relation = "resume" if own else "fork"
                edges.setdefault((target, relation), EdgeRecord(target, relation, checkpoint, path or "", "resume.dir"))
        starts = [edge for edge in edges.values() if edge.relation in ("init", "base_model")]
        if len(starts) > 1:
            for edge in starts:
                edge.ambiguous = 1
            names = ", ".join(f"{edge.source_key} = {edge.parent_ref}" for edge in starts)
            record.issues.append(
                issue(
                    "multiple_predecessors",
                    starts[0].source_path or record.run_dir,
                    f"{names}; expected one model to start from",
                    hint="make them agree",
                )
            )
        record.edges = list(edges.values())
        record.base_model = next((edge.parent_ref for edge in starts if not edge.is_checkpoint), None)

    def _spelling(self, path: str) -> str:
        """A reference below an alias of a run directory, below the run directory itself."""
        if not self.aliases or checkpoint_step(path) is None:
            return self.aliases.get(path, path)
        home = run_dir_of(path)
        return self.aliases[home] + path[len(home) :] if home in self.aliases else path

    def _dataset(self, record: RunRecord, name: str) -> str | None:
        known = self._identities.get(name)
        if known is not None:
            return known
        if is_hub_dataset(name, self.repo_root):
            made = DatasetRecord(f"hf:{name}", name, None, {}, name)
        else:
            path = normalise(name, self.repo_root)
            match = self._manifests.match(path)
            if match.tied:
                record.issues.append(
                    issue(
                        "ambiguous_manifest",
                        path,
                        f"equally good manifests with different mixes: {', '.join(match.tied[:5])}",
                        hint="name the right one with --manifests",
                    )
                )
            base = posixpath.basename(path)
            if match.path is None:
                made = DatasetRecord(f"path:{path}", base, None, {}, path)
            else:
                facts = self.facts.manifests[match.path]
                title = facts.get("name") or facts.get("mix_uid") or facts.get("config_uid") or base
                made = DatasetRecord(f"manifest:{match.path}", title, match.path, facts, path)
        self._identities[name] = made.identity_key
        self.resolution.datasets.setdefault(made.identity_key, made)
        return made.identity_key

    def _joint_run(self, record: RunRecord, chosen: str | None, joint_records: Sequence[str]) -> None:
        config = self._joint.get(chosen or "")
        for attempt in record.attempts:
            if config and attempt.kind in ("launch", "retry"):
                attempt.joint_config_path = config
        for path in joint_records:
            joint = self.facts.joint_records[path]
            matching = [item for item in record.attempts if item.experiment_id == joint.get("rl_experiment_id")]
            launches = [item for item in record.attempts if item.kind in ("launch", "retry")]
            for attempt in matching or launches[-1:] or record.attempts[:1]:
                attempt.service_experiment_id = joint.get("service_experiment_id") or attempt.service_experiment_id
                attempt.experiment_id = attempt.experiment_id or joint.get("rl_experiment_id")
                attempt.joint_config_path = joint.get("config") or attempt.joint_config_path

    def _state(self, record: RunRecord, look: Mapping[str, Any]) -> str:
        if not record.exists:
            return "planned"
        if look.get("newest", 0) > self.now_ns - self.stale_ns:
            return "active"
        last = max((checkpoint.step for checkpoint in record.checkpoints), default=-1)
        reached = record.max_steps is not None and last >= record.max_steps
        exited = any(row.get("exit") is not None for row in look.get("wandb", ()))
        return "finished" if reached or exited else "stopped"

    def _add_referenced(self) -> None:
        """Parents that are not on disk become checkpoints of kind ``referenced``."""
        runs = self.resolution.runs
        present = {(run.run_dir, item.step): item.path for run in runs.values() for item in run.checkpoints}
        for record in list(runs.values()):
            for edge in record.edges:
                if not edge.is_checkpoint:
                    continue
                home, step = run_dir_of(edge.parent_ref), checkpoint_step(edge.parent_ref) or 0
                parent = runs.get(home)
                if parent is None:
                    parent = runs[home] = RunRecord(
                        home, posixpath.basename(home) or home, "unknown", "planned", "none"
                    )
                path = present.get((home, step))
                if path is None:
                    parent.checkpoints.append(CheckpointRecord(edge.parent_ref, step, "referenced"))
                    present[home, step] = edge.parent_ref
                    record.issues.append(
                        issue(
                            "missing_checkpoint",
                            edge.parent_ref,
                            f"the checkpoint that {record.run_dir} starts from is not on disk",
                            hint="add --path_map=OLD=NEW if it is mounted elsewhere",
                        )
                    )

    def _cut_cycles(self) -> None:
        """Drop the edge that closes a cycle of runs, and say so."""
        runs = self.resolution.runs
        done: set[str] = set()
        for start in sorted(runs):
            if start in done:
                continue
            path: list[str] = []
            on_path: set[str] = set()
            stack: list[tuple[str, bool]] = [(start, False)]
            while stack:
                node, leaving = stack.pop()
                if leaving:
                    path.pop()
                    on_path.discard(node)
                    done.add(node)
                    continue
                if node in done or node in on_path:
                    continue
                path.append(node)
                on_path.add(node)
                stack.append((node, True))
                record = runs[node]
                for edge in [edge for edge in record.edges if edge.is_checkpoint and edge.relation != "resume"]:
                    parent = run_dir_of(edge.parent_ref)
                    if parent in on_path:
                        record.edges.remove(edge)
                        record.issues.append(
                            issue(
                                "lineage_cycle",
                                edge.source_path or node,
                                f"{edge.source_key} = {edge.parent_ref} makes the run its own ancestor",
                                hint="correct the model the run starts from",
                            )
                        )
                    elif parent in runs and parent not in done:
                        stack.append((parent, False))


def _home_of(path: str) -> str:
    """The run directory of a file inside it: of its resume folder, its ``configs``, or itself."""
    parent = posixpath.dirname(path)
    outer = posixpath.dirname(parent)
    if posixpath.basename(outer) == RESUME_FOLDER:
        return posixpath.dirname(outer)
    return outer if posixpath.basename(parent) == "configs" else parent


def _named_configs(facts: Mapping[str, Any]) -> list[str]:
    return [facts[name] for name in ("generated_config_path", "source_config_path") if name in facts]


def _checkpoint(run_dir: str, row: Sequence[Any]) -> CheckpointRecord:
    step, relative, kind, stable, shards, progress, size, mtime = row[:8]
    return CheckpointRecord(
        path=f"{run_dir}/{relative}",
        step=step,
        kind=kind,
        stable=stable,
        trainer_shards=shards,
        orchestrator_progress=progress,
        size_bytes=size,
        modified_at=from_ns(mtime) if mtime else None,
    )
