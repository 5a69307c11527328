"""Whether the rows that a rehearsal's environments read are on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from primebeaker.config import TomlDocument
from primebeaker.errors import UserError
from primebeaker.launch.data import is_data_path
from primebeaker.prime_rl.tables import lookup

__all__ = ["missing_rows"]


def missing_rows(document: TomlDocument, file: Path, base: Path) -> Iterator[UserError]:
    """One mistake for each ``dataset`` of an RL TOML that is a path and is not here.

    Args:
        document: The training TOML.
        file: Where it is, for the messages.
        base: What its relative paths are relative to.
    """
    for split in ("train", "eval"):
        sources = lookup(document.values, f"orchestrator.{split}.source", [])
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            name = lookup(source, "legacy.args.dataset")
            key = f"orchestrator.{split}.source[{index}].legacy.args.dataset"
            if not isinstance(name, str) or not is_data_path(name):
                continue
            path = base / Path(name).expanduser()
            if not path.exists():
                yield UserError(
                    f"{path} is not on this machine",
                    hint="put a few rows there, or rehearse without them: --no-rollouts",
                    file=file,
                    line=document.line_of(key),
                    key=f'{key} = "{name}"',
                )
