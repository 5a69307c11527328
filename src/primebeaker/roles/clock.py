"""The time as people read it."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["utc_now"]


def utc_now() -> str:
    """The time for people, never for decisions: clocks of hosts differ."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
