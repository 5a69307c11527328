"""The flags shared by the commands of ``primebeaker watcher``."""

import ast
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli.flags import integer, number, parameter, repeated, text
from primebeaker.cli.watcher_common import DatabaseOptions, expanded
from primebeaker.errors import UserError
from primebeaker.watcher.roots import LIST_FIELDS, Given
from primebeaker.watcher.update import ScanOptions

__all__ = ["ScanFlags"]

_NONE = ("", "()", "[]")
_OWN = "Roots"


def _listed(flag: str, value: str) -> list[str]:
    """One path, or several as a JSON list or separated by commas; an existing path is never split."""
    if value.strip() in _NONE:
        return []
    if os.path.exists(expanded(value)):  # noqa: PTH110
        return [expanded(value)]
    if value.lstrip().startswith("["):
        try:
            parsed: Any = json.loads(value)
        except ValueError:
            try:
                parsed = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                parsed = None
        if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
            raise UserError(f"{flag} = {value}: expected a list of paths")
        return [expanded(item) for item in parsed]
    return [expanded(part.strip()) for part in value.split(",") if part.strip()]


def paths(help_text: str) -> Parameter:
    """A flag of many paths; an empty value, ``()`` or ``[]`` means none."""
    return parameter(help_text, _OWN, _listed, many=True)


@dataclass(kw_only=True)
class ScanFlags(DatabaseOptions):
    """What a scan reads, and how."""

    repo_root: Annotated[
        str | None, text("What relative paths in configurations are taken from.", panel=_OWN, default="JTC_ROOT or .")
    ] = None
    train_config_roots: Annotated[tuple[str, ...] | None, paths("Training TOMLs, recursively.")] = None
    eval_config_roots: Annotated[tuple[str, ...] | None, paths("Evaluation YAMLs, recursively.")] = None
    launch_spec_roots: Annotated[tuple[str, ...] | None, paths("Launch specs and receipts.")] = None
    manifest_roots: Annotated[tuple[str, ...] | None, paths("Data manifests.")] = None
    manifests: Annotated[tuple[str, ...] | None, paths("Exactly these data manifests.")] = None
    output_roots: Annotated[tuple[str, ...] | None, paths("Directories whose children are run directories.")] = None
    eval_output_roots: Annotated[
        tuple[str, ...] | None, paths("Directories whose children are evaluation results.")
    ] = None
    archive_roots: Annotated[tuple[str, ...] | None, paths("The same, for results without a YAML.")] = None
    path_map: Annotated[
        tuple[str, ...] | None,
        repeated("OLD=NEW: files say OLD, this machine opens NEW.", split_commas=True, panel=_OWN),
    ] = None
    exclude: Annotated[
        tuple[str, ...] | None, repeated("Globs of paths or names to skip.", split_commas=True, panel=_OWN)
    ] = None
    wandb_entity: Annotated[str | None, text("The W&B entity where files name none.", panel=_OWN)] = None
    stale_minutes: Annotated[
        float, number("Age after which what is not finished counts as stopped.", above=0, panel="Scan", default="30")
    ] = 30.0
    workers: Annotated[int | None, integer("Files read at once.", least=1, most=64, panel="Scan")] = None
    wait: Annotated[float, number("Seconds to wait for another scan.", least=0, panel="Scan", default="0")] = 0.0

    def given(self) -> Given:
        """The roots of the command line."""
        lists = {
            name: None if (value := getattr(self, name)) is None else tuple(item for item in value if item)
            for name in (*LIST_FIELDS, "path_map", "exclude")
        }
        repo_root = expanded(self.repo_root) if self.repo_root else None
        return Given(repo_root=repo_root, wandb_entity=self.wandb_entity, **lists)

    def scan(self, **more: Any) -> ScanOptions:
        """How to scan."""
        return ScanOptions(stale_minutes=self.stale_minutes, wait=self.wait, workers=self.workers, **more)
