"""Free ports: found by binding, and held bound until their process is about to start."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping

from primebeaker.errors import UserError

__all__ = ["HeldPorts", "hold_engine_ports", "is_free", "next_free", "refuse_equal_ports"]

_STEP = 100
_TRIES = 20
_HIGHEST = 65535


class HeldPorts:
    """A block of ports kept bound so that no other replica on this host can choose them.

    Attributes:
        base: The first port.
    """

    def __init__(self, base: int, sockets: list[socket.socket]) -> None:
        self.base = base
        self._sockets = sockets

    def release(self) -> None:
        """Give the ports free, right before their processes bind them."""
        while self._sockets:
            self._sockets.pop().close()


def hold_engine_ports(preferred: int, count: int) -> HeldPorts:
    """Bind ``count`` ports in a row at the first base at or above ``preferred``, in steps of 100, 20 tries.

    Raises:
        UserError: No base has all its ports free.
    """
    for base in range(preferred, preferred + _STEP * _TRIES, _STEP):
        if base + count - 1 > _HIGHEST:
            break
        held: list[socket.socket] = []
        try:
            for port in range(base, base + count):
                held.append(_bind(port))
        except OSError:
            HeldPorts(base, held).release()
            continue
        return HeldPorts(base, held)
    raise UserError(
        f"inference.backend_port = {preferred}: no {count} free ports in a row at it or at any of the next "
        f"{_TRIES - 1} bases in steps of {_STEP}",
        hint="set inference.backend_port to a free range",
    )


def is_free(port: int) -> bool:
    """Whether the port can be bound on every interface now."""
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


def next_free(
    preferred: int,
    *,
    width: int = 1,
    highest: int = _HIGHEST,
    taken: Iterable[int] = (),
    free: Callable[[int], bool] = is_free,
) -> int:
    """The first port at or above ``preferred`` at which ``width`` ports in a row are free.

    Args:
        preferred: Where to begin.
        width: Ports needed in a row.
        highest: The last port the block may end at.
        taken: Ports promised to others of ours.
        free: Tells whether a port can be bound.

    Raises:
        UserError: None is free.
    """
    promised = frozenset(taken)
    for base in range(preferred, highest - width + 2):
        block = range(base, base + width)
        if promised.isdisjoint(block) and all(free(port) for port in block):
            return base
    raise UserError(f"no free port from {preferred} to {highest}")


def refuse_equal_ports(blocks: Mapping[str, range]) -> None:
    """Refuse a configuration in which two of our ports are the same.

    Args:
        blocks: What the ports are for (the key to change) -> the ports.

    Raises:
        UserError: The first pair that overlaps.
    """
    names = list(blocks)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            shared = sorted(set(blocks[name]) & set(blocks[other]))
            if shared:
                raise UserError(f"{name} and {other} both take port {shared[0]}", hint="change one of them")


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port in TIME_WAIT is free for the servers we start, which set this option too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", port))  # noqa: S104  the servers started here bind every interface
        listener.listen(1)
    except OSError:
        with contextlib.suppress(OSError):
            listener.close()
        raise
    return listener
