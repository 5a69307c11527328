"""The copy of a training TOML that is rehearsed: the same document with tiny figures, writing to a folder of its own.

The source is never touched; the copy is made with the lossless editor, so that what is rehearsed differs from it in
the edited values alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.config import TomlDocument
from primebeaker.launch.topology import Kind
from primebeaker.rehearsal.options import DEFAULT_STEPS, RehearsalOptions

__all__ = ["TomlCopy", "copy_toml"]

_SPLITS = ("train", "eval")


@dataclass(frozen=True)
class TomlCopy:
    """The rewritten document, how many steps it runs, and what it leaves out of the source."""

    document: TomlDocument
    steps: int
    left_out: tuple[str, ...]


def copy_toml(
    source: TomlDocument,
    kind: Kind,
    options: RehearsalOptions,
    *,
    work_dir: Path,
    base: Path,
    keep_resume: bool = False,
) -> TomlCopy:
    """Rewrite a training TOML for a rehearsal.

    Args:
        source: The user's document.
        kind: ``sft`` or ``rl``.
        options: What the user asked for.
        work_dir: Where the copy's run writes.
        base: What relative data paths of the source are relative to.
        keep_resume: Keep the resume step and the output directory, which lie in an earlier rehearsal.
    """
    editor = _Editor(source)
    most = editor.number("max_steps")
    steps = options.steps or min(most or DEFAULT_STEPS, DEFAULT_STEPS)
    if keep_resume:
        steps = options.steps or most or DEFAULT_STEPS
    editor.put("max_steps", steps)
    _checkpoints(editor, steps, work_dir, keep_resume=keep_resume)
    if kind == "rl":
        _rl(editor, options, base)
    else:
        _sft(editor, steps, base)
    return TomlCopy(editor.document, steps, tuple(editor.left_out))


class _Editor:
    def __init__(self, document: TomlDocument) -> None:
        self.document = document
        self.left_out: list[str] = []

    def has(self, path: str) -> bool:
        return self.document.get(path) is not None

    def number(self, path: str) -> int | None:
        value = self.document.get(path)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def put(self, path: str, value: Any) -> None:
        self.document = self.document.with_value(path, value, create=True)

    def at_most(self, path: str, most: int) -> None:
        """Lower a number that is there."""
        value = self.number(path)
        if value is not None and value > most:
            self.put(path, most)

    def drop(self, path: str, reason: str) -> None:
        """Leave a key out, and say so."""
        if self.has(path):
            self.document = self.document.without_value(path)
            self.left_out.append(f"{path}: {reason}")


def _checkpoints(editor: _Editor, steps: int, work_dir: Path, *, keep_resume: bool) -> None:
    editor.at_most("ckpt.interval", max(steps // 2, 1))
    if keep_resume:
        return
    editor.put("output_dir", str(work_dir / "output"))
    if editor.has("ckpt.output_dir"):
        editor.put("ckpt.output_dir", str(work_dir / "checkpoints"))
    resume = editor.number("ckpt.resume_step")
    if resume is not None and resume >= 0:
        editor.drop("ckpt.resume_step", "a rehearsal starts in an empty directory")
    for key in ("clean_output_dir", "clean"):
        if editor.document.get(key) is True:
            editor.put(key, False)


def _rl(editor: _Editor, options: RehearsalOptions, base: Path) -> None:
    editor.put("orchestrator.batch_size", options.rollouts * options.examples)
    editor.put("orchestrator.group_size", options.rollouts)
    for split in _SPLITS:
        for place, entry in _entries(editor.document, f"orchestrator.{split}.source"):
            if split == "eval":
                editor.at_most(f"{place}.num_examples", options.examples)
                if not editor.has(f"{place}.num_examples"):
                    editor.put(f"{place}.num_examples", options.examples)
            if split == "train" and "group_size" in entry:
                editor.put(f"{place}.group_size", options.rollouts)
            legacy = entry.get("legacy")
            arguments = legacy.get("args") if isinstance(legacy, Mapping) else None
            for name, value in (arguments or {}).items():
                path = f"{place}.legacy.args.{name}"
                if name == "local_search_model_path" and value not in options.services:
                    editor.drop(path, "no local-search service runs in a rehearsal")
                elif isinstance(value, str):
                    _absolute(editor, path, value, base)
    # The launcher of RL refuses an offline top level; the two processes that log may be offline.
    for component in ("trainer", "orchestrator"):
        editor.put(f"{component}.wandb.offline", True)


def _sft(editor: _Editor, steps: int, base: Path) -> None:
    editor.at_most("val.interval", max(min(steps, editor.number("ckpt.interval") or steps), 1))
    for table in ("data", "val.data"):
        editor.at_most(f"{table}.batch_size", 2)
        editor.at_most(f"{table}.micro_batch_size", 1)
        name = editor.document.get(f"{table}.name")
        if isinstance(name, str):
            _absolute(editor, f"{table}.name", name, base)
    if editor.has("wandb"):
        editor.put("wandb.offline", True)


def _absolute(editor: _Editor, path: str, value: str, base: Path) -> None:
    """Make a relative path that exists absolute: the rehearsal runs in a folder of its own."""
    if not value or "://" in value or os.path.isabs(value):  # noqa: PTH117
        return
    found = base / Path(value).expanduser()
    if ("/" in value or "." in value) and found.exists():
        editor.put(path, str(found.resolve()))


def _entries(document: TomlDocument, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    values = document.get(path)
    for index, value in enumerate(values if isinstance(values, list) else []):
        if isinstance(value, Mapping):
            yield f"{path}[{index}]", value
