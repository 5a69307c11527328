"""Walking the roots: each directory is listed once, links to directories are followed once, cycles are cut."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.reading import Stat, io_issue

__all__ = ["Found", "Walk", "child_directories", "is_utf8"]

_SKIPPED = frozenset({"__pycache__", "node_modules"})


class Found(NamedTuple):
    """A file of a walked root."""

    path: str
    stat: Stat


@dataclass
class Walk:
    """One scan's walking state.

    Attributes:
        exclude: Paths and names to skip.
        shown: Turns a local path into the stored one, for issues.
        issues: What could not be listed.
        seen: (device, inode) of every directory listed so far.
        unreadable: Directories that exist but cannot be listed.
    """

    exclude: re.Pattern[str] | None = None
    shown: Callable[[str], str] = str
    issues: list[Issue] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)

    def files(self, root: str, suffixes: tuple[str, ...]) -> Iterator[Found]:
        """Every file below ``root`` with one of the suffixes (any case), in the order of names."""
        stack = [root]
        while stack:
            directory = stack.pop()
            try:
                stat = os.stat(directory)  # noqa: PTH116
                identity = (stat.st_dev, stat.st_ino)
                if identity in self.seen:
                    continue
                self.seen.add(identity)
                with os.scandir(directory) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                self.issues.append(io_issue(self.shown(directory), error))
                self.unreadable.append(directory)
                continue
            deeper: list[str] = []
            for entry in entries:
                if self._is_skipped(entry):
                    continue
                try:
                    if entry.is_dir():
                        deeper.append(entry.path)
                    elif entry.name.lower().endswith(suffixes) and entry.is_file():
                        found = entry.stat()
                        yield Found(entry.path, Stat(found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.issues.append(io_issue(self.shown(entry.path), error))
            stack.extend(reversed(deeper))

    def directories(self, root: str) -> list[str]:
        """The immediate child directories of an output root."""
        try:
            return [path for path in child_directories(root) if not self._is_excluded(path)]
        except OSError as error:
            self.issues.append(io_issue(self.shown(root), error))
            self.unreadable.append(root)
            return []

    def _is_skipped(self, entry: os.DirEntry[str]) -> bool:
        if entry.name in _SKIPPED or entry.name.startswith("."):
            return True
        if not is_utf8(entry.name):
            shown = self.shown(entry.path).encode("utf-8", "backslashreplace").decode()
            self.issues.append(issue("io_error", shown, "its name is not UTF-8", hint="rename it"))
            return True
        return self._is_excluded(entry.path)

    def _is_excluded(self, path: str) -> bool:
        return self.exclude is not None and bool(
            self.exclude.match(path) or self.exclude.match(os.path.basename(path))  # noqa: PTH119
        )


def child_directories(root: str) -> list[str]:
    """The visible immediate child directories, sorted; links to directories count.

    Raises:
        OSError: It cannot be listed.
    """
    with os.scandir(root) as listing:
        return sorted(
            entry.path
            for entry in listing
            if not entry.name.startswith(".")
            and entry.name not in _SKIPPED
            and is_utf8(entry.name)
            and _is_directory(entry)
        )


def is_utf8(name: str) -> bool:
    """Whether a name can be stored as text: the system hands undecodable bytes over as lone surrogates."""
    if name.isascii():
        return True
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
