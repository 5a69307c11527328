"""Write checkpoints in Prime-RL's true layout and in its order: shards, then ``.metadata``, committed last."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.prime_rl.layout import Layout, parse_step
from primebeaker.rehearsal.standins import disk

__all__ = ["Retention", "commit", "read_progress", "remove_old", "write_progress", "write_shard", "write_weights"]

_SHARD_BYTES = 128
_PROGRESS = "progress"


@dataclass(frozen=True)
class TensorIndex:
    """Names one stored tensor."""

    fqn: str
    offset: tuple[int, ...]


@dataclass
class StorageInfo:
    """Where a stored tensor lies: file, first byte, bytes."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """What ``.metadata`` holds: every stored tensor and where it lies."""

    storage_data: dict[TensorIndex, StorageInfo]


@dataclass(frozen=True)
class Retention:
    """Which old steps stay: the last ``keep_last``, and every multiple of ``keep_interval``; all without both."""

    keep_last: int | None = None
    keep_interval: int | None = None


def write_shard(layout: Layout, step: int, rank: int, *, seed: int) -> int:
    """Write rank's shard of ``step``: 128 seeded bytes. Returns its size."""
    path = layout.trainer_shard(step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = random.Random(f"{seed}:{step}:{rank}").randbytes(_SHARD_BYTES)  # noqa: S311  filler, not a secret
    disk.save(path, content)
    return len(content)


def commit(layout: Layout, step: int, sizes: Sequence[int]) -> None:
    """Write ``.metadata`` for the shards of all ranks: to a temporary name, synced, then renamed."""
    half = [size // 2 for size in sizes]
    stored = {
        TensorIndex(f"model.layer.{part}", (rank,)): StorageInfo(f"__{rank}_0.distcp", first, length)
        for rank, size in enumerate(sizes)
        for part, (first, length) in enumerate(((0, half[rank]), (half[rank], size - half[rank])))
    }
    path = layout.trainer_metadata(step)
    temporary = path.with_name(path.name + ".tmp")
    disk.save(temporary, pickle.dumps(Metadata(stored)))
    temporary.rename(path)


def write_progress(path: Path, values: dict[str, Any]) -> None:
    """Write the orchestrator's ``progress.pt``: a zip file with one record, replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{_PROGRESS}/data.json", json.dumps(values))
    disk.replace(path, buffer.getvalue())


def read_progress(path: Path) -> dict[str, Any]:
    """Read back a ``progress.pt``.

    Raises:
        UserError: It is missing or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return dict(json.loads(archive.read(f"{_PROGRESS}/data.json")))
    except FileNotFoundError:
        raise UserError("orchestrator checkpoint not found", file=path) from None
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise UserError(f"not an orchestrator checkpoint: {error}", file=path) from error


def write_weights(directory: Path, weights: bytes, *, model: str) -> None:
    """Write a Hugging Face style folder: config, weights, tokenizer config."""
    directory.mkdir(parents=True, exist_ok=True)
    disk.replace(directory / "model.safetensors", weights)
    note = {"_name_or_path": model, "model_type": "rehearsal", "architectures": ["RehearsalPolicy"]}
    disk.replace(directory / "config.json", json.dumps(note, indent=2) + "\n")
    disk.replace(directory / "tokenizer_config.json", json.dumps({"tokenizer_class": "Rehearsal"}, indent=2) + "\n")


def remove_old(root: Path, retention: Retention, *, newest: int) -> None:
    """Remove the steps of ``root`` that the retention gives up, as the real programs do after a save."""
    if retention.keep_last is None and retention.keep_interval is None:
        return
    steps = sorted(step for step in (parse_step(entry.name) for entry in _listed(root)) if step is not None)
    recent = set(steps[-retention.keep_last :]) if retention.keep_last else set()
    for step in steps:
        periodic = retention.keep_interval and step % retention.keep_interval == 0
        if step not in recent and not periodic and step < newest:
            shutil.rmtree(root / f"step_{step}", ignore_errors=True)


def _listed(root: Path) -> list[Path]:
    return list(root.iterdir()) if root.is_dir() else []
