"""Columns and lengths of time for people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from primebeaker.cli.tables import columns, duration, span
from primebeaker.errors import UserError


def test_columns_line_up():
    assert columns(("A", "LONG"), [("xyz", 1), (None, ""), ("", "y")]) == "A    LONG\nxyz  1\n-    -\n-    y"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0.4, "0s"), (59.9, "59s"), (61, "1m01s"), (3600, "1h00m"), (90061, "1d01h"), (-1, "0s")],
)
def test_spans(seconds: float | None, text: str | None):
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", timedelta(days=7)), ("12h", timedelta(hours=12)), ("1h30m", timedelta(minutes=90)), ("0s", timedelta(0))],
)
def test_durations(text: str, expected: timedelta):
    assert duration("--max-age", text) == expected


@pytest.mark.parametrize("text", ["", "x", "1w", "-1d", "1h 3"])
def test_no_durations(text: str):
    with pytest.raises(UserError, match=r"--max-age = .*: expected a duration like 7d, 12h or 30m"):
        duration("--max-age", text)
