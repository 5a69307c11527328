"""Addresses of a node: which IP peers reach it at, the interface that owns it, the InfiniBand devices.

Read from the kernel and ``/sys``; no external program is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from primebeaker.errors import UserError

__all__ = [
    "Interface",
    "NodeAddress",
    "infiniband_devices",
    "interface_of",
    "interfaces",
    "node_address",
    "pick_address",
]

_SIOCGIFADDR = 0x8915
_VIRTUAL = ("docker", "virbr", "veth", "cni")
_INFINIBAND = Path("/sys/class/infiniband")
# Nothing is sent to it: connecting a datagram socket only asks the kernel for a route.
_ELSEWHERE = "192.0.2.1"


class Interface(NamedTuple):
    """A network interface with an IPv4 address."""

    name: str
    address: str


class NodeAddress(NamedTuple):
    """The address peers use, and the rule that gave it."""

    ip: str
    rule: str


def node_address(
    *, override: str | None, leader: bool, leader_hostname: str | None, nodes: int, allow_loopback: bool
) -> NodeAddress:
    """The IP of this node.

    Args:
        override: ``PRIMEBEAKER_NODE_IP``.
        leader: Whether this is rank 0.
        leader_hostname: ``BEAKER_LEADER_REPLICA_HOSTNAME`` when known.
        nodes: Replicas of the topology.
        allow_loopback: The embedded engine runs all replicas on one machine.

    Raises:
        UserError: No usable address exists.
    """
    return pick_address(
        override=override,
        own_hostname=_resolve(leader_hostname or socket.gethostname()) if leader else None,
        towards_leader=_source_address(_resolve(leader_hostname)) if leader_hostname and not leader else None,
        towards_default=_source_address(_ELSEWHERE),
        interfaces=interfaces(),
        loopback=allow_loopback or nodes == 1,
    )


def pick_address(
    *,
    override: str | None,
    own_hostname: str | None,
    towards_leader: str | None,
    towards_default: str | None,
    interfaces: Sequence[Interface],
    loopback: bool,
) -> NodeAddress:
    """Choose among what the kernel said; the first rule that fits wins.

    Args:
        override: Taken as it is when given.
        own_hostname: Leader: the address its own hostname resolves to.
        towards_leader: Follower: the source address the kernel picks towards the leader.
        towards_default: The source address towards a default route.
        interfaces: Local interfaces in the kernel's order.
        loopback: Whether a loopback address may be used.

    Raises:
        UserError: Nothing fits.
    """
    if override:
        return NodeAddress(override, "PRIMEBEAKER_NODE_IP")
    local = {interface.address for interface in interfaces}
    candidates = (
        (towards_leader, "source address towards the leader"),
        (own_hostname if own_hostname in local or _is_loopback(own_hostname) else None, "own hostname"),
        (towards_default, "source address towards the default route"),
        (_first_real(interfaces), "first interface"),
        ("127.0.0.1" if loopback else None, "loopback"),
    )
    for address, rule in candidates:
        if address and (loopback or not _is_loopback(address)):
            return NodeAddress(address, rule)
    raise UserError(
        "no address of this node can be reached by its peers", hint="set PRIMEBEAKER_NODE_IP to the right one"
    )


def interfaces() -> tuple[Interface, ...]:
    """The interfaces that have an IPv4 address, in the kernel's order."""
    found: list[Interface] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(Interface(name, socket.inet_ntoa(answer[20:24])))
    return tuple(found)


def interface_of(ip: str, known: Sequence[Interface]) -> str | None:
    """The name of the interface that owns ``ip`` (``GLOO_SOCKET_IFNAME``), None when none does."""
    return next((interface.name for interface in known if interface.address == ip), None)


def infiniband_devices(root: Path = _INFINIBAND) -> tuple[str, ...]:
    """Devices with an active InfiniBand port, sorted (``NCCL_IB_HCA``)."""
    devices = set()
    for port in root.glob("*/ports/*"):
        with contextlib.suppress(OSError):
            layer = (port / "link_layer").read_text().strip()
            state = (port / "state").read_text()
            if layer == "InfiniBand" and "ACTIVE" in state:
                devices.add(port.parent.parent.name)
    return tuple(sorted(devices))


def _first_real(known: Sequence[Interface]) -> str | None:
    for interface in known:
        address = ipaddress.ip_address(interface.address)
        if not (address.is_loopback or address.is_link_local or interface.name.startswith(_VIRTUAL)):
            return interface.address
    return None


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _resolve(hostname: str | None) -> str | None:
    if not hostname:
        return None
    try:
        answers = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    # IPv4 first: the programs started here bind 0.0.0.0.
    ordered = sorted(answers, key=lambda answer: answer[0] != socket.AF_INET)
    return str(ordered[0][4][0]) if ordered else None


def _source_address(target: str | None) -> str | None:
    if target is None:
        return None
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None
