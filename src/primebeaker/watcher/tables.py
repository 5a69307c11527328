"""Plain aligned text of JSON answers, for ``--format=text``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_table", "as_tree"]

_WIDTH = 60


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return str(len(value))
    text = " ".join(str(value).split())
    return text if len(text) <= _WIDTH else "…" + text[1 - _WIDTH :]


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a row, columns aligned; columns that are empty everywhere are left out."""
    if not rows:
        return "nothing matches\n"
    names = [name for name in rows[0] if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
    padded = ("  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)) for line in cells)
    return "".join(line.rstrip() + "\n" for line in padded)


def as_tree(value: Any, indent: int = 0) -> str:
    """Nested facts as indented lines."""
    pad = "  " * indent
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            if isinstance(item, list) and item and all(isinstance(row, Mapping) for row in item):
                table = as_table(item)
                lines.append(f"{pad}{key}:\n" + "".join(f"{pad}  {line}\n" for line in table.splitlines()))
            elif isinstance(item, Mapping | list) and item:
                lines.append(f"{pad}{key}:\n{as_tree(item, indent + 1)}")
            else:
                lines.append(f"{pad}{key}: {_cell(item)}\n")
        return "".join(lines)
    if isinstance(value, list):
        return "".join(f"{pad}{_cell(item)}\n" for item in value)
    return f"{pad}{_cell(value)}\n"
