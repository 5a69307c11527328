"""The files of one checkpoint step: what the trainer, the orchestrator and the policy's transport left, and what lacks.

Reads names, sizes and the trainer's ``.metadata``; see :mod:`primebeaker.prime_rl.checkpoints` for the conditions.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule
from primebeaker.prime_rl.inert_pickle import Inert, loads
from primebeaker.prime_rl.layout import Layout, step_name

__all__ = [
    "METADATA",
    "ProgressFiles",
    "Shard",
    "TrainerFiles",
    "entries",
    "policy_dir",
    "read_progress",
    "read_trainer",
]

METADATA = ".metadata"
_STABLE = "STABLE"
_PICKLE = b"\x80"
_ZIP = b"PK\x03\x04"
_SHARD_NAME = re.compile(r"__(0|[1-9][0-9]*)_(0|[1-9][0-9]*)\.distcp", re.ASCII)
_WEIGHTS = (".safetensors", ".bin", ".pt")


class Shard(NamedTuple):
    """One file of a distributed checkpoint: its name in the trainer's folder and its size in bytes."""

    name: str
    size: int


class TrainerFiles(NamedTuple):
    """The trainer's part of a step.

    Attributes:
        missing: What it lacks (conditions 1 to 4).
        warnings: What could not be verified.
        shards: Every ``*.distcp`` file, by name.
        size: Bytes of all its files.
        modified: Their newest change, seconds since the epoch; 0 without files.
        saving: Whether a save seems to be under way (condition 7).
    """

    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    shards: tuple[Shard, ...]
    size: int
    modified: float
    saving: bool


class ProgressFiles(NamedTuple):
    """The orchestrator's part of a step: what it lacks (condition 5), what is not verified, bytes, newest change."""

    missing: str
    warnings: tuple[str, ...]
    size: int
    modified: float


def read_trainer(directory: Path, rule: CompletenessRule) -> TrainerFiles:
    """Judge ``step_N/trainer``.

    Raises:
        UserError: The directory exists but cannot be read.
    """
    sizes: dict[str, int] = {}
    modified = total = 0.0
    metadata_time: float | None = None
    temporary_time: float | None = None
    for entry in entries(directory):
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        name = entry.name
        modified = max(modified, status.st_mtime)
        total += status.st_size
        if name.endswith(".distcp"):
            sizes[name] = status.st_size
        elif name == METADATA and entry.is_file():
            metadata_time = status.st_mtime if status.st_size else None
        elif name.startswith(METADATA) and name.endswith(".tmp"):
            temporary_time = max(temporary_time or 0.0, status.st_mtime)
    missing = [] if metadata_time is not None else ["trainer .metadata"]
    extents, warnings = _read_metadata(directory / METADATA) if metadata_time is not None else ({}, ())
    ranks = rule.ranks
    if ranks is None and not extents:
        # Nothing says how many ranks wrote it, so at least nobody in the middle may be absent.
        ranks = max((rank for rank in map(_rank_of, sizes) if rank is not None), default=0) + 1
    missing += _judge_shards(sizes, ranks, strict=rule.ranks is not None)
    missing += _judge_extents(directory, sizes, extents) if extents is not None else ["truncated .metadata"]
    saving = temporary_time is not None and temporary_time > (metadata_time or 0.0)
    shards = tuple(Shard(name, size) for name, size in sorted(sizes.items()))
    return TrainerFiles(tuple(missing), warnings, shards, int(total), modified, saving)


def _judge_shards(sizes: dict[str, int], ranks: int | None, *, strict: bool) -> Iterator[str]:
    """Conditions 2 and, when ``strict``, 3."""
    if ranks is None:
        return
    present = set()
    unexpected = []
    for name, size in sizes.items():
        rank = _rank_of(name)
        if rank is None or rank >= ranks:
            unexpected.append(name)
        elif size:
            present.add(rank)
    yield from (f"trainer shard __{rank}_0.distcp" for rank in range(ranks) if rank not in present)
    if strict:
        yield from (f"unexpected shard {name} (expected R={ranks} ranks)" for name in sorted(unexpected))


def _judge_extents(directory: Path, sizes: dict[str, int], extents: dict[str, int]) -> Iterator[str]:
    """Condition 4: every file named by ``.metadata`` is at least as long as the largest ``offset + length``."""
    for name, needed in extents.items():
        if name.startswith("/") or ".." in name.split("/"):
            yield f"shard {name} lies outside the checkpoint"
            continue
        size = sizes.get(name)
        if size is None:
            try:
                size = (directory / name).stat().st_size
            except (OSError, ValueError):
                yield f"shard {name} is missing, needs {needed}"
                continue
        if size < needed:
            yield f"shard {name} is {size} bytes, needs {needed}"


def _read_metadata(path: Path) -> tuple[dict[str, int] | None, tuple[str, ...]]:
    """File name -> bytes needed, by ``.metadata``; None when it is a damaged pickle; and what is not verified."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}, ()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not data.startswith(_PICKLE):
        return {}, (f"{path}: not verified (not a pickle)",)
    try:
        root = loads(data)
    except ValueError:
        return None, ()
    stored = root.state.get("storage_data") if isinstance(root, Inert) and isinstance(root.state, dict) else None
    if not isinstance(stored, dict):
        return {}, (f"{path}: not verified (it names no shards)",)
    extents: dict[str, int] = {}
    for info in stored.values():
        state = info.state if isinstance(info, Inert) else None
        if not isinstance(state, dict):
            return {}, (f"{path}: not verified (unknown records)",)
        name, offset, length = state.get("relative_path"), state.get("offset", 0), state.get("length", 0)
        if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
            return {}, (f"{path}: not verified (unknown records)",)
        if offset + length > extents.get(name, -1):
            extents[name] = offset + length
    return extents, ()


def read_progress(path: Path) -> ProgressFiles:
    """Judge the orchestrator's ``progress.pt``.

    Raises:
        UserError: The file exists but cannot be read.
    """
    absent = ProgressFiles("orchestrator progress.pt", (), 0, 0.0)
    try:
        status = path.stat()
        with path.open("rb") as stream:
            head = stream.read(len(_ZIP))
            if not head:
                return absent._replace(modified=status.st_mtime)
            if head != _ZIP:
                return ProgressFiles("", (f"{path}: not verified (not a zip file)",), status.st_size, status.st_mtime)
            zipfile.ZipFile(stream).close()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return absent
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return absent._replace(size=status.st_size, modified=status.st_mtime)
    except OSError as error:
        raise _unreadable(path, error) from error
    return ProgressFiles("", (), status.st_size, status.st_mtime)


def policy_dir(layout: Layout, step: int) -> Path | None:
    """Condition 6: where the orchestrator would load the policy of ``step`` from."""
    broadcast = layout.broadcast(step)
    if (broadcast / _STABLE).is_file() and any(
        entry.name.endswith(_WEIGHTS) and entry.stat().st_size for entry in entries(broadcast)
    ):
        return broadcast
    directory = layout.orchestrator_checkpoints / step_name(step)
    weight = directory / "weight"
    return weight if weight.is_dir() and (directory / _STABLE).is_file() else None


def entries(directory: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory; none when it does not exist.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with os.scandir(directory) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error


def _rank_of(shard: str) -> int | None:
    match = _SHARD_NAME.fullmatch(shard)
    return int(match[1]) if match else None


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read ({error.strerror or error})")
