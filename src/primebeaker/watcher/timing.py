"""Times as the index stores them: UTC, ISO-8601 with ``+00:00`` and microseconds."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["from_ns", "now", "parse_time"]


def now() -> str:
    """The present moment."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def from_ns(nanoseconds: int) -> str | None:
    """A file's time (nanoseconds since 1970); None when no calendar holds it."""
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="microseconds")
    except (OverflowError, OSError, ValueError):
        return None


def parse_time(value: object) -> str | None:
    """A time of any ISO-8601 spelling (without a zone: UTC), or seconds since 1970, in the stored form."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return from_ns(int(value * 1e9)) if abs(value) < 1e11 else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")
