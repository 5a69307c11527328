"""The engine's tunables, read from ``PRIMEBEAKER_LOCAL_*`` variables."""

from __future__ import annotations

from collections.abc import Mapping

from primebeaker.errors import UserError

__all__ = ["grace_seconds", "most_log_bytes"]

# Long enough for tool services, which need up to 12 seconds to leave their registry.
_GRACE_SECONDS = 15.0
_MOST_LOG_MB = 1024.0


def grace_seconds(environment: Mapping[str, str]) -> float:
    """Seconds between TERM and KILL (``PRIMEBEAKER_LOCAL_GRACE_SECONDS``)."""
    return _number(environment, "PRIMEBEAKER_LOCAL_GRACE_SECONDS", _GRACE_SECONDS, least=0)


def most_log_bytes(environment: Mapping[str, str]) -> int:
    """How large a job's log may grow (``PRIMEBEAKER_LOCAL_LOG_MAX_MB``)."""
    return int(_number(environment, "PRIMEBEAKER_LOCAL_LOG_MAX_MB", _MOST_LOG_MB, least=0.01) * 1024 * 1024)


def _number(environment: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise UserError(f"{name} = {text!r}: expected a number of at least {least:g}")
    return value
