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

__all__ = ["GatewayPort", "gateway_port", "is_free", "own_ports", "port_block"]

_GATEWAY_PORT = 1212
#: Each rehearsal takes a block of this many ports (inference, weights, rollouts on two, the gateway) from this range.
#: Like the router's metrics port, 21000 above, it lies below the ports that systems give to outgoing connections.
_BLOCK = 5
_GATEWAY_PLACE = 4
_FIRST_PORT = 10000
_RANGE = 1700
#: What else a run listens on, as offsets from its inference port: the first engine and the router's metrics.
_BESIDE = (100, 21000)


def is_free(port: int) -> bool:
    """Whether a port can be listened on, on every address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  bound and closed at once, to see whether it is taken
        except OSError:
            return False
    return True


def port_block(launch_id: str) -> int:
    """The first port of a rehearsal's own block.

    Args:
        launch_id: Spreads rehearsals over the range.
    """
    blocks = _RANGE // _BLOCK
    first = int(hashlib.sha256(launch_id.encode()).hexdigest(), 16) % blocks
    starts = [_FIRST_PORT + (first + turn) % blocks * _BLOCK for turn in range(blocks)]
    return next((start for start in starts if _is_usable(start)), starts[0])


def _is_usable(start: int) -> bool:
    return all(is_free(start + offset) for offset in (*range(_BLOCK), *_BESIDE))


def own_ports(document: TomlDocument, base: int) -> TomlDocument:
    """Give a rehearsed RL run ports of its own.

    On Beaker every replica has a host to itself.  Here two rehearsals at once, or one beside a server of somebody
    else's, would meet on the ports as they stand in the file.

    Args:
        document: The copy that is rehearsed.
        base: What :func:`port_block` gave.
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
