"""Ids in the manner of Beaker's: 26 characters of Crockford's base 32 that sort by time of creation."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["boot_id", "derived_id", "is_id", "machine_id", "new_id", "timestamp"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26


def new_id() -> str:
    """A new id: 48 bits of milliseconds, 80 random bits."""
    return _encode(time.time_ns() // 1_000_000 << 80 | secrets.randbits(80))


def derived_id(kind: str, name: str) -> str:
    """The id of something that has only a name, such as a workspace: always the same for the same name."""
    digest = int.from_bytes(hashlib.sha256(f"{kind}\0{name}".encode()).digest()[:15])
    return "01" + _encode(digest)[2:]


def is_id(text: str) -> bool:
    """Whether ``text`` has the shape of an id."""
    return len(text) == LENGTH and set(text) <= set(_ALPHABET)


def machine_id() -> str:
    """The id of this machine."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return derived_id("machine", text)
    return derived_id("machine", platform.node())


def boot_id() -> str:
    """What tells one start of this machine from the next, so that a process of before a reboot is never taken for one
    of now.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Where start times are wall-clock times they already differ between boots.
        return os.name


def timestamp() -> str:
    """Now, in UTC, as RFC 3339 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _encode(number: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(LENGTH)))
