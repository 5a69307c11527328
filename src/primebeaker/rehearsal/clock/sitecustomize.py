"""Shifts the wall clock of every Python process of one replica, in rehearsals on the embedded engine only.

Python imports a module of this name at its start when it finds one.  The monotonic clock stays as it is, as it does
on a host whose wall clock is wrong.
"""

import datetime
import os
import time

_CLOCKS = dict(part.split("=") for part in os.environ.get("PRIMEBEAKER_REHEARSAL_CLOCKS", "").split())
_OWN = _CLOCKS.get(os.environ.get("BEAKER_REPLICA_RANK", "0"))
_REAL = datetime.datetime


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        # Moments made before, or by C code, are of the real class.
        return isinstance(value, _REAL)


class _Shifted(datetime.datetime, metaclass=_Kind):
    """The real class, but for what time it is."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Shifted":
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> "_Shifted":
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


def _shift(seconds: float) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    _Shifted.__name__ = _Shifted.__qualname__ = "datetime"
    datetime.datetime = _Shifted  # type: ignore[misc]


if (
    _OWN is not None
    and os.environ.get("PRIMEBEAKER_REHEARSAL") == "1"
    and os.environ.get("PRIMEBEAKER_LOCAL_ENGINE") == "1"
):
    _shift(float(_OWN))
