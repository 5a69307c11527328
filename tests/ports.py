"""Ports for tests that cannot leave the choice to the system: no two test processes of this machine get the same."""

from __future__ import annotations

import contextlib
import random
import socket
from functools import cache

#: Below the ports of outgoing connections, even 21000 higher, where a router's metrics are, and beside those that
#: rehearsals claim for themselves.
_FIRST, _LAST, _REGION = 4000, 6940, 490
_CLAIMS: list[socket.socket] = []
_next = 0


def free_block(count: int) -> int:
    """The first of ``count`` ports in a row, free now and in this process's own region."""
    global _next
    region, room = _region(), _REGION - 1
    for _ in range(room):
        if _next + count > room:
            _next = 0
        base = region + _next
        if all(_is_free(port) for port in (*range(base, base + count), base + 21000)):
            _next += count
            return base
        _next += 1
    raise AssertionError(f"no {count} free ports in a row from {region}")


@cache
def _region() -> int:
    """A region whose last port this process holds until it ends; any of them where all are taken."""
    regions = list(range(_FIRST, _LAST, _REGION))
    random.shuffle(regions)
    for region in regions:
        claim = socket.socket()
        with contextlib.suppress(OSError):
            claim.bind(("127.0.0.1", region + _REGION - 1))
            _CLAIMS.append(claim)
            return region
        claim.close()
    return regions[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("0.0.0.0", port))
        return True
    return False
