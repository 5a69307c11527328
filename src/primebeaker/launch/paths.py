"""The mount rule: inside the task only the mounted bucket exists, so every path of a launch must lie under it.

A path is judged by its real location (links and ``..`` resolved) and written into the spec under the mount path as
the user typed it.  Nothing needs to exist here, since the submitting machine may not mount the bucket.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from primebeaker.errors import UserError

__all__ = ["RESULT_PATH", "DataReference", "Mount", "classify_data_name"]

#: Where Beaker collects a task's results; always on the node's own disk.
RESULT_PATH = "/tmp/beaker-result"  # noqa: S108 - a path inside the task
_HUB_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Mount:
    """The place where the bucket is mounted, as typed (without a trailing slash) and for real."""

    path: str
    real: str
    #: Accept every path as it is: a rehearsal runs on the machine that submits it.
    anywhere: bool = False

    @classmethod
    def at(cls, typed: str) -> Mount:
        """The mount at ``--mount-path``.

        Raises:
            UserError: It is not absolute, is ``/``, or lies inside the result directory.
        """
        parts = typed.split("/")
        if not typed.startswith("/") or ".." in parts or "\0" in typed or "\n" in typed:
            raise UserError(
                f"--mount-path = {typed!r}: expected an absolute path without '..'", hint="for example /weka"
            )
        # Two leading slashes mean the same as one here.
        path = "/" + posixpath.normpath(typed).lstrip("/")
        real = os.path.realpath(path)
        if path == "/" or real == "/":
            raise UserError(f"--mount-path = {typed!r}: expected a directory below /", hint="for example /weka")
        if _inside(path, RESULT_PATH):
            raise UserError(
                f"--mount-path = {typed!r}: {RESULT_PATH} is where Beaker collects results", hint="mount elsewhere"
            )
        return cls(path, real)

    @property
    def visible(self) -> bool:
        """Whether the mount exists on this machine."""
        return Path(self.path).is_dir()

    def task_path(
        self,
        path: str | Path,
        origin: str,
        *,
        base: str | None = None,
        file: object | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> str:
        """The path as the task sees it: under the mount as typed.

        Args:
            path: An absolute path, or one relative to ``base``.
            origin: The flag or TOML key with its value, for the message.
            base: What relative paths are relative to.
            file: The TOML the path comes from.
            line: Its line there.
            hint: The mend, when the usual one does not fit.

        Raises:
            UserError: The real path is outside the mount, or holds a newline or NUL.
        """
        text = os.fspath(path)
        if "\0" in text or "\n" in text or "\r" in text:
            raise UserError("expected a path without newline or NUL", file=file, line=line, key=origin)
        full = text if text.startswith("/") or base is None else str(Path(base) / text)
        real = os.path.realpath(full)
        if self.anywhere:
            return real
        if not _inside(real, self.real):
            raise UserError(
                f"{real} is not under the mount {self.path}, the only shared place inside the task",
                hint=hint or f"use a path under {self.path}, or pass --mount-path",
                file=file,
                line=line,
                key=origin,
            )
        relative = os.path.relpath(real, self.real)
        return self.path if relative == "." else f"{self.path}/{relative}"


@dataclass(frozen=True)
class DataReference:
    """What ``data.name`` means: a local path, or the id of a dataset on the hub."""

    name: str
    local: bool


def classify_data_name(name: str, working_dir: str) -> DataReference | None:
    """Whether a dataset name is a local path or a hub id; None when it can be neither."""
    if name.startswith(("/", ".", "~")) or os.path.exists(os.path.join(working_dir, name)):  # noqa: PTH110, PTH118
        return DataReference(name, local=True)
    return DataReference(name, local=False) if _HUB_DATASET.fullmatch(name) else None


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
