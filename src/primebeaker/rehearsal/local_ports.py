"""Ports of a rehearsal: ones that are free on this machine, so that rehearsals do not meet each other."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from primebeaker.config import TomlDocument
from primebeaker.prime_rl.contract import GEN_0_7

__all__ = ["GatewayPort", "PortBlock", "claim_block", "gateway_port", "is_free", "own_ports", "port_block"]

_GATEWAY_PORT = 1212
_GATEWAY_PLACE = 4
#: A rehearsal owns this many ports in a row (inference, weights, rollouts on two, the gateway, the claim), and the same
#: places of the hundreds above them: Prime-RL puts a replica's engines 100 above its inference port, and replicas that
#: share a host move on by 100.
_BLOCK = 10
_CLAIM_PLACE = 9
_ENGINES = 100
#: Where blocks lie, best first.  Like the router's metrics port, 21000 above, they stay below the ports that systems
#: give to outgoing connections (32768 on).
_FIRST_PORTS = (10000, 7000)
_METRICS = GEN_0_7.ports.router_metrics_offset


class PortBlock:
    """Ports of one rehearsal, claimed on this machine until :meth:`release` or the end of this process.

    The claim is a bound socket that nobody connects to: the system takes it back however the process ends.

    Attributes:
        base: The first port.
    """

    def __init__(self, base: int, claim: socket.socket | None) -> None:
        self.base = base
        self._claim = claim

    def release(self) -> None:
        """Leave the ports to others."""
        if self._claim is not None:
            self._claim.close()


def is_free(port: int) -> bool:
    """Whether a port can be listened on, on every address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  bound and closed at once, to see whether it is taken
        except OSError:
            return False
    return True


def port_block(launch_id: str) -> PortBlock:
    """Claim the ports of a rehearsal.

    Where no block is wholly free, the first one comes unclaimed: whoever listens there is named when a program of the
    rehearsal meets it.

    Args:
        launch_id: Spreads rehearsals over the blocks.
    """
    places = range(0, _ENGINES, _BLOCK)
    turn = int(hashlib.sha256(launch_id.encode()).hexdigest(), 16) % len(places)
    for first in _FIRST_PORTS:
        for place in (*places[turn:], *places[:turn]):
            claim = _claim(first + place)
            if claim is not None:
                return PortBlock(first + place, claim)
    return PortBlock(_FIRST_PORTS[0] + places[turn], None)


def claim_block(base: int) -> PortBlock | None:
    """Claim a certain block, for a run that goes on in it; None while somebody else has it."""
    claim = _claim(base)
    return None if claim is None else PortBlock(base, claim)


def _claim(base: int) -> socket.socket | None:
    """The claim on a block, if nobody has it and its ports are free."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        claim.bind(("127.0.0.1", base + _CLAIM_PLACE))
    except OSError:
        claim.close()
        return None
    own = (*range(base, base + _CLAIM_PLACE), base + _ENGINES, base + _METRICS)
    if all(is_free(port) for port in own):
        return claim
    claim.close()
    return None


def own_ports(document: TomlDocument, base: int) -> TomlDocument:
    """Give a rehearsed RL run ports of its own.

    On Beaker every replica has a host to itself.  Here two rehearsals at once, or one beside a server of somebody
    else's, would meet on the ports as they stand in the file.

    Args:
        document: The copy that is rehearsed.
        base: The first port of its :class:`PortBlock`.
    """
    if document.get("inference") is None:
        return document
    single_node = document.get("deployment.type", "single_node") == "single_node"
    server = document.get("inference.server.port", GEN_0_7.ports.router)
    document = document.with_value("inference.server.port", base, create=True)
    if document.get("weight_broadcast") is None and not single_node and document.get("trainer.model.lora") is None:
        # What Prime-RL would resolve to, written out so that it can have a port.
        document = document.with_value("weight_broadcast.type", "nccl", create=True)
    if document.get("rollout_transport") is None:
        document = document.with_value("rollout_transport.type", "zmq", create=True)
    for table, place in (("weight_broadcast", 1), ("rollout_transport", 2)):
        if document.get(f"{table}.type") in ("nccl", "zmq"):
            document = document.with_value(f"{table}.port", base + place, create=True)
    # Multi-node roles tell the orchestrator where the router is.
    return _point_rollouts(document, server, base) if single_node else document


def _point_rollouts(document: TomlDocument, port: int, moved: int) -> TomlDocument:
    """Send rollouts where inference listens now: Prime-RL's own default is the default port, wherever that is."""
    key = "orchestrator.model.client.base_url"
    urls = document.get(key, [f"http://localhost:{port}/v1"])
    local = re.compile(rf"(https?://(?:127\.0\.0\.1|localhost)):{port}(?=/|$)")
    listed = [local.sub(rf"\g<1>:{moved}", str(url)) for url in (urls if isinstance(urls, list) else [urls])]
    return document.with_value(key, listed, create=True)


@dataclass(frozen=True)
class GatewayPort:
    """The gateway's port in the TOML's world and the one it has here."""

    wanted: int
    number: int

    def rewrite(self, document: TomlDocument) -> TomlDocument:
        """Point the environment arguments that name the local gateway at its port of this rehearsal."""
        if self.wanted == self.number:
            return document
        local = re.compile(rf"(https?://(?:127\.0\.0\.1|localhost)):{self.wanted}(?=/|$)")
        for split in ("train", "eval"):
            sources = document.get(f"orchestrator.{split}.source")
            for index, source in enumerate(sources if isinstance(sources, list) else []):
                arguments: Any = source.get("legacy", {}).get("args", {}) if isinstance(source, Mapping) else {}
                for name, value in arguments.items():
                    if isinstance(value, str) and local.search(value):
                        path = f"orchestrator.{split}.source[{index}].legacy.args.{name}"
                        document = document.with_value(path, local.sub(rf"\g<1>:{self.number}", value))
        return document


def gateway_port(wanted: int | None, base: int) -> GatewayPort:
    """Where the gateway of this rehearsal listens."""
    return GatewayPort(wanted or _GATEWAY_PORT, base + _GATEWAY_PLACE)
