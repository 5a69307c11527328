"""What a training TOML must hold before an edit makes sense."""

from __future__ import annotations

from primebeaker.config.document import TomlDocument
from primebeaker.errors import Mistakes, UserError

__all__ = ["need_sft_data", "need_tables"]


def need_tables(document: TomlDocument, *paths: str) -> None:
    """Raise every table of ``paths`` that is missing or is no table."""
    mistakes = Mistakes()
    for path in paths:
        if not isinstance(document.get(path), dict):
            line = document.line_of(path)
            mistakes.add(UserError(f"the table [{path}] is missing", file=document.file, line=line, key=path))
    mistakes.raise_if_any()


def need_sft_data(document: TomlDocument) -> None:
    """Raise when there is no ``[data]`` with ``type = "sft"`` or no ``[val.data]``."""
    need_tables(document, "data", "val.data")
    found = document.get("data.type")
    if found != "sft":
        raise UserError(
            f"expected 'sft', found {'nothing' if found is None else repr(found)}",
            hint='write type = "sft" in [data]',
            file=document.file,
            line=document.line_of("data.type") or document.line_of("data"),
            key="data.type",
        )
