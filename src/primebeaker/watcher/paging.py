"""Keyset paging: no row is skipped or repeated while rows are inserted, and no page costs more than the first."""

from __future__ import annotations

import base64
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from primebeaker.errors import UserError

__all__ = ["Filter", "Page", "fetch_page", "word_filter"]


class Page(NamedTuple):
    """Ids of one page."""

    ids: list[int]
    next_cursor: str | None


@dataclass
class Filter:
    """Conditions that are AND-ed, with bound values."""

    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, condition: str, *values: Any) -> None:
        """One more condition."""
        self.conditions.append(condition)
        self.values.extend(values)

    def but(self, condition: str, *values: Any) -> Filter:
        """A copy with one more condition."""
        return Filter([*self.conditions, condition], [*self.values, *values])

    def sql(self, *more: str) -> str:
        """The WHERE clause."""
        parts = [*self.conditions, *(part for part in more if part)]
        return f" WHERE {' AND '.join(parts)}" if parts else ""


def word_filter(filters: Filter, column: str, q: str) -> None:
    """Every word of ``q`` as a literal, case-insensitive substring of a case-folded column."""
    for word in q.casefold().split():
        filters.add(f"instr({column}, ?) > 0", word)


def _decode(cursor: str) -> tuple[int, Any, Any]:
    try:
        phase, value, tie = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=="))
        if phase not in (0, 1) or isinstance(value, list | dict) or not isinstance(tie, str | int):
            raise ValueError
    except (ValueError, TypeError, UnicodeEncodeError):
        raise UserError("cursor: expected a next_cursor of an earlier answer") from None
    return phase, value, tie


def _encode(phase: int, value: Any, tie: Any) -> str:
    text = json.dumps([phase, value, tie], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def fetch_page(
    connection: sqlite3.Connection,
    tables: str,
    id_column: str,
    value: str,
    tie: str,
    filters: Filter,
    *,
    descending: bool,
    limit: int,
    cursor: str | None,
    nulls: tuple[str, Filter] | None = None,
    nullable: bool = True,
) -> Page:
    """One page of ids: rows with a value first, then those without.

    Args:
        connection: The index.
        tables: The FROM clause; it is ours, never a user's.
        id_column: What is returned.
        value: The sorted expression.
        tie: What orders equal values.
        filters: Which rows.
        descending: The order of values and ties.
        limit: Rows of a page.
        cursor: Where the page before ended.
        nulls: FROM clause and filter of the rows without a value, when they come from other tables.
        nullable: Whether there can be rows without a value.
    """
    phase, last, last_tie = _decode(cursor) if cursor else (0, None, None)
    order, sign = ("DESC", "<") if descending else ("ASC", ">")
    rows: list[tuple[int, int, Any, Any]] = []
    if phase == 0:
        after = f"({value}, {tie}) {sign} (?, ?)" if cursor else ""
        sql = f"SELECT {id_column}, {value}, {tie} FROM {tables}{filters.sql(f'{value} IS NOT NULL', after)}"  # noqa: S608
        sql += f" ORDER BY {value} {order}, {tie} {order} LIMIT ?"
        values = [*filters.values, *([last, last_tie] if cursor else []), limit + 1]
        rows = [(0, *row) for row in connection.execute(sql, values)]
    if nullable and len(rows) <= limit:
        null_tables, unvalued = nulls or (tables, Filter([*filters.conditions, f"{value} IS NULL"], filters.values))
        after = f"l.key {sign} ?" if phase == 1 else ""
        sql = f"SELECT {id_column}, NULL, l.key FROM {null_tables}{unvalued.sql(after)}"  # noqa: S608
        sql += f" ORDER BY l.key {order} LIMIT ?"
        values = [*unvalued.values, *([last_tie] if phase == 1 else []), limit + 1 - len(rows)]
        rows += [(1, *row) for row in connection.execute(sql, values)]
    following = _encode(rows[limit - 1][0], rows[limit - 1][2], rows[limit - 1][3]) if len(rows) > limit else None
    return Page([row[1] for row in rows[:limit]], following)
