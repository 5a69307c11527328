"""What the command modules of ``primebeaker watcher`` share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli.flags import choice, path
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.errors import UserError
from primebeaker.watcher.references import resolve_reference
from primebeaker.watcher.tables import as_table, as_tree

__all__ = ["DatabaseOptions", "Flat", "database_of", "existing", "expanded", "find_checkpoint", "result", "warn_line"]

Flat = Parameter(name="*")


def expanded(value: str) -> str:
    """The value with ``~`` and ``$VAR`` put in."""
    return os.path.expanduser(os.path.expandvars(value))  # noqa: PTH111 (the shell's own meaning)


@dataclass(kw_only=True)
class DatabaseOptions(OutputOptions):
    """Which index."""

    format: Annotated[
        str | None, choice("How to print the result.", ("json", "text"), panel="Output", default="json")
    ] = "json"
    database: Annotated[Path | None, path("The index.", default="watcher.sqlite3")] = None


def database_of(options: DatabaseOptions) -> Path:
    """The index a command works on, absolute."""
    chosen = options.database
    if chosen is None:
        return Path.cwd() / "watcher.sqlite3"
    return Path.cwd() / expanded(str(chosen))


def warn_line(line: str) -> None:
    """Write one warning."""
    warn([line])


def result(data: Any, *, exit_code: int = 0, rows: str | None = None) -> Result:
    """A command's answer; ``rows`` names the list that the text form shows."""
    return Result(data, text=lambda: as_table(data[rows]) if rows else as_tree(data), exit_code=exit_code)


def existing(value: str, base: str) -> Path:
    """A path of the current directory when it exists there, else one of the repository."""
    path = Path(os.path.expandvars(value)).expanduser()
    return Path.cwd() / path if path.is_absolute() or (Path.cwd() / path).exists() else Path(base) / path


def find_checkpoint(connection: Any, model: str, base: str, hint: str) -> Any:
    """The indexed checkpoint a word names; ``hint`` says what to do when there is none."""
    try:
        return resolve_reference(connection, model, base=base, kinds=("checkpoint",))
    except UserError as error:
        if "names no indexed" not in str(error):
            raise
        raise UserError(f"model is not indexed: {model}", hint=hint) from None
