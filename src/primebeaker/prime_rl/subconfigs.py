"""The resolved sub-configs as files: rendered, written whole, and checked by digest before a process reads one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.fileio import atomic_write
from primebeaker.prime_rl.contract import Contract
from primebeaker.prime_rl.tables import without_nulls

__all__ = ["WrittenConfig", "digest", "render", "write_subconfigs"]


class WrittenConfig(NamedTuple):
    """A sub-config on disk and the SHA-256 of its bytes."""

    path: str
    sha256: str


def render(table: Mapping[str, Any], contract: Contract) -> str:
    """The text of a sub-config in the version's format (TOML for 0.7, JSON for 0.8)."""
    if contract.files.suffix == ".json":
        return json.dumps(table, indent=2) + "\n"
    # Roles read digests here and write nothing: their start must not wait for the TOML layer.
    from primebeaker.config import dump_toml_document

    return dump_toml_document(without_nulls(table))


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_subconfigs(
    directory: Path, tables: Mapping[str, Mapping[str, Any]], contract: Contract, *, stamp: str
) -> dict[str, WrittenConfig]:
    """Write several sub-configs so that no reader sees a part of one.

    All are rendered and written into a directory beside the target first, so that a full disk changes nothing.

    Args:
        directory: ``configs/`` of the run; created.
        tables: File name -> content.
        contract: Decides the format.
        stamp: Makes the temporary directory's name unique (the epoch).

    Returns:
        File name -> path and digest.
    """
    directory.mkdir(parents=True, exist_ok=True)
    staging = directory / f".{stamp}.tmp"
    staging.mkdir(exist_ok=True)
    written: dict[str, WrittenConfig] = {}
    try:
        for name, table in tables.items():
            data = render(table, contract).encode()
            atomic_write(staging / name, data)
            written[name] = WrittenConfig(str(directory / name), digest(data))
        for name in tables:
            (staging / name).replace(directory / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return written
