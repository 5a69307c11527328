"""Canonical paths and keys of entities: pure text, nothing here touches the file system."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PathMap", "checkpoint_step", "entity_key", "is_below", "normalise", "run_dir_of"]

_STEP = re.compile(r"step[_-]?(\d+)")
_CHECKPOINT_FOLDERS = ("weights", "checkpoints")


def normalise(path: str, base: str = "") -> str:
    """The absolute, lexically normalised form; links are not resolved and trailing slashes never count.

    Args:
        path: As written in a file or on the command line.
        base: What a relative path is taken from.
    """
    if path.startswith("~"):
        path = os.path.expanduser(path)  # noqa: PTH111 (text in, text out)
    text = posixpath.normpath(posixpath.join(base or os.getcwd(), path))  # noqa: PTH109
    # POSIX lets two leading slashes stand; they never mean another file here.
    return "/" + text.lstrip("/") if text.startswith("//") else text


def entity_key(kind: str, *parts: str) -> str:
    r"""The public key: 12 hexadecimal digits of SHA-256 over ``kind``, NUL and the parts joined by NUL."""
    text = "\0".join((kind, *parts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def checkpoint_step(path: str) -> int | None:
    """The step when the last component of a path is ``step_N``, ``step-N`` or ``stepN``."""
    match = _STEP.fullmatch(posixpath.basename(path))
    return int(match[1]) if match and len(match[1]) < 16 else None


def run_dir_of(checkpoint: str) -> str:
    """The run directory of a checkpoint path: above ``weights``/``checkpoints``, else its parent."""
    parent = posixpath.dirname(checkpoint)
    return posixpath.dirname(parent) if posixpath.basename(parent) in _CHECKPOINT_FOLDERS else parent


def is_below(path: str, root: str) -> bool:
    """Whether ``path`` is ``root`` or lies under it, by whole components."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


@dataclass(frozen=True)
class PathMap:
    """Where paths of files are found on this machine.

    Attributes:
        pairs: ``(old, new)``: files say ``old``, this machine opens ``new``.  The index holds and shows the old form,
            so that indexes made on two machines agree.
    """

    pairs: tuple[tuple[str, str], ...] = ()

    def local(self, path: str) -> str:
        """The path to open."""
        return _replace(path, self.pairs) if self.pairs else path

    def stored(self, path: str) -> str:
        """The path to store and show."""
        return _replace(path, [(new, old) for old, new in self.pairs]) if self.pairs else path


def _replace(path: str, pairs: Sequence[tuple[str, str]]) -> str:
    best: tuple[str, str] | None = None
    for old, new in pairs:
        if is_below(path, old) and (best is None or len(old) > len(best[0])):
            best = (old, new)
    if best is None:
        return path
    rest = path[len(best[0]) :].lstrip("/")
    return posixpath.join(best[1], rest) if rest else best[1]
