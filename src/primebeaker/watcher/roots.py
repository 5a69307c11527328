"""Which directories a scan may read: flags, else what the last good scan stored, else defaults."""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from primebeaker.errors import UserError
from primebeaker.watcher.paths import PathMap, checkpoint_step, normalise, run_dir_of

__all__ = ["LIST_FIELDS", "Given", "RootReport", "Roots", "choose_roots", "extended", "report_roots", "stored_roots"]

Source = Literal["flag", "env", "stored", "default"]

#: Options that hold a list of directories (or, for ``manifests``, files).
LIST_FIELDS = (
    "train_config_roots",
    "eval_config_roots",
    "launch_spec_roots",
    "manifest_roots",
    "manifests",
    "output_roots",
    "eval_output_roots",
    "archive_roots",
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the command line said; None means "not given", an empty tuple "none"."""

    repo_root: str | None = None
    train_config_roots: tuple[str, ...] | None = None
    eval_config_roots: tuple[str, ...] | None = None
    launch_spec_roots: tuple[str, ...] | None = None
    manifest_roots: tuple[str, ...] | None = None
    manifests: tuple[str, ...] | None = None
    output_roots: tuple[str, ...] | None = None
    eval_output_roots: tuple[str, ...] | None = None
    archive_roots: tuple[str, ...] | None = None
    path_map: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    wandb_entity: str | None = None


@dataclass(frozen=True, kw_only=True)
class Roots:
    """Everything a scan may look at.

    Attributes:
        repo_root: What relative paths inside configurations are taken from.
        train_config_roots: Training TOMLs, recursively.
        eval_config_roots: Evaluation YAMLs, recursively.
        launch_spec_roots: Launch specs and receipts.
        manifest_roots: Data manifests.
        manifests: Exactly these manifest files.
        output_roots: Directories whose immediate children are run directories.
        eval_output_roots: Directories whose immediate children are evaluation results.
        archive_roots: The same, for results without YAML.
        path_map: Pairs of (path in files, path on this machine).
        exclude: Globs of paths or names that are skipped.
        wandb_entity: The entity of runs whose files name none.
        sources: Where each value came from.
    """

    repo_root: str
    train_config_roots: tuple[str, ...] = ()
    eval_config_roots: tuple[str, ...] = ()
    launch_spec_roots: tuple[str, ...] = ()
    manifest_roots: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    output_roots: tuple[str, ...] = ()
    eval_output_roots: tuple[str, ...] = ()
    archive_roots: tuple[str, ...] = ()
    path_map: tuple[tuple[str, str], ...] = ()
    exclude: tuple[str, ...] = ()
    wandb_entity: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> PathMap:
        """The mapping between stored and local paths."""
        return PathMap(self.path_map)

    def all_paths(self) -> list[str]:
        """Every root, each once."""
        return list(dict.fromkeys(path for name in LIST_FIELDS for path in getattr(self, name)))

    def excluder(self) -> re.Pattern[str] | None:
        """One pattern for all globs, matched against the whole path and against the name."""
        if not self.exclude:
            return None
        return re.compile("|".join(f"(?:{fnmatch.translate(glob)})" for glob in self.exclude))

    def to_json(self) -> dict[str, Any]:
        """The form stored in the index and shown by ``status``."""
        return {
            item.name: [f"{old}={new}" for old, new in self.path_map] if item.name == "path_map" else value
            for item in fields(self)
            if item.name != "sources"
            for value in [getattr(self, item.name)]
        }


def extended(given: Given, roots: Roots, *, train: Sequence[str], model: str) -> Given:
    """The roots of an index of one model: the effective ones, further TOML folders, and its own output directory."""
    home = run_dir_of(model) if checkpoint_step(model) is not None else model
    parent = posixpath.dirname(home)
    outputs = roots.output_roots if parent in roots.output_roots else (*roots.output_roots, parent)
    return replace(given, train_config_roots=(*roots.train_config_roots, *train), output_roots=outputs)


class RootReport(NamedTuple):
    """One root and what is known about it."""

    option: str
    path: str
    source: str
    exists: bool


def stored_roots(connection: sqlite3.Connection) -> dict[str, Any]:
    """What the last good scan used, by option; empty when there was none."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'roots'").fetchone()
    try:
        value = json.loads(row[0]) if row else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def choose_roots(given: Given, stored: Mapping[str, Any], environment: Mapping[str, str]) -> Roots:
    """Flags before stored values before defaults; relative flag values are taken from the current directory.

    Raises:
        UserError: A ``--path_map`` without ``=``.
    """
    sources: dict[str, str] = {}

    def pick(name: str, default: Any, default_source: str = "default") -> Any:
        value = getattr(given, name)
        if value is not None:
            sources[name] = "flag"
            return value
        if name in stored:
            sources[name] = "stored"
            return stored[name]
        sources[name] = default_source
        return default

    home = environment.get("JTC_ROOT")
    repo = normalise(str(pick("repo_root", home or os.getcwd(), "env" if home else "default")))  # noqa: PTH109
    own = environment.get("PRIMEBEAKER_ROOT")
    package = normalise(own) if own else repo
    from_env = "env" if own else "default"
    defaults: dict[str, tuple[Sequence[str], str]] = {
        "train_config_roots": ([f"{repo}/examples/configs/train"], "default"),
        "eval_config_roots": ([f"{package}/examples/configs/eval"], from_env),
        "launch_spec_roots": ([f"{package}/beaker_experiments", f"{package}/primebeaker/beaker_experiments"], from_env),
        "manifest_roots": ([f"{os.path.dirname(repo)}/prime_sft/data", f"{repo}/data"], "default"),  # noqa: PTH120
        "archive_roots": ([f"{repo}/records/{name}" for name in ("moss-evals", "evalmoss", "eval-moss")], "default"),
    }
    chosen: dict[str, tuple[str, ...]] = {}
    for name in LIST_FIELDS:
        default, source = defaults.get(name, ((), "default"))
        chosen[name] = tuple(dict.fromkeys(normalise(str(path)) for path in pick(name, default, source)))
    pairs: list[tuple[str, str]] = []
    for text in pick("path_map", ()):
        old, equals, new = str(text).partition("=")
        if not equals or not old or not new:
            raise UserError(f"--path_map = {text!r}: expected OLD=NEW, two directories")
        pairs.append((normalise(old), normalise(new)))
    return Roots(
        repo_root=repo,
        path_map=tuple(pairs),
        exclude=tuple(str(glob) for glob in pick("exclude", ())),
        wandb_entity=pick("wandb_entity", None),
        sources=sources,
        **chosen,
    )


def report_roots(roots: Roots) -> list[RootReport]:
    """Every root with its source and whether it is there."""
    rows = [RootReport("repo_root", roots.repo_root, roots.sources.get("repo_root", "default"), False)]
    rows += [
        RootReport(name, path, roots.sources.get(name, "default"), False)
        for name in LIST_FIELDS
        for path in getattr(roots, name)
    ]
    return [row._replace(exists=Path(row.path).exists()) for row in rows]
