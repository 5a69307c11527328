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

__all__ = ["GatewayPort", "free_gateway_port", "is_free", "own_ports"]

_GATEWAY_PORT = 1212
_TRIES = 200
#: Single-node rehearsals use blocks of this many ports (inference, weights, and rollouts on two) from this range,
#: below the ports that systems give to outgoing connections.
_BLOCK = 4
_FIRST_PORT = 20000
_RANGE = 8000


def is_free(port: int) -> bool:
    """Whether a port can be listened on, on every address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  bound and closed at once, to see whether it is taken
        except OSError:
            return False
    return True


def next_free(port: int, *, step: int = 1, width: int = 1) -> int:
    """The first of ``port``, ``port + step``, … from which ``width`` ports are free."""
    for candidate in range(port, port + step * _TRIES, step):
        if all(is_free(candidate + offset) for offset in range(width)):
            return candidate
    return port


def own_ports(document: TomlDocument, launch_id: str) -> TomlDocument:
    """Give a single-node run ports of its own; multi-node roles find theirs by themselves.

    Prime-RL's single-node launcher takes the ports as they stand in the file, so two rehearsals at once, or one beside
    a server of somebody else's, would meet on them.

    Args:
        document: The copy that is rehearsed.
        launch_id: Spreads rehearsals over the range.
    """
    if document.get("deployment.type", "single_node") != "single_node":
        return document
    offset = int(hashlib.sha256(launch_id.encode()).hexdigest(), 16) % (_RANGE // _BLOCK) * _BLOCK
    base = next_free(_FIRST_PORT + offset, step=_BLOCK, width=_BLOCK)
    server = document.get("inference.server.port", GEN_0_7.ports.router)
    tables = (
        ("inference", "inference.server.port", 0),
        ("weight_broadcast", "weight_broadcast.port", 1),
        ("rollout_transport", "rollout_transport.port", 2),
    )
    for table, key, place in tables:
        if table == "rollout_transport" and document.get(table) is None:
            document = document.with_value("rollout_transport.type", "zmq", create=True)
        if document.get(table) is not None and _has_port(document, table):
            document = document.with_value(key, base + place, create=True)
    if document.get("inference") is not None:
        document = _point_rollouts(document, server, base)
    return document


def _point_rollouts(document: TomlDocument, port: int, moved: int) -> TomlDocument:
    """Send rollouts where inference listens now: Prime-RL's own default is the default port, wherever that is."""
    key = "orchestrator.model.client.base_url"
    urls = document.get(key, [f"http://localhost:{port}/v1"])
    local = re.compile(rf"(https?://(?:127\.0\.0\.1|localhost)):{port}(?=/|$)")
    listed = [local.sub(rf"\g<1>:{moved}", str(url)) for url in (urls if isinstance(urls, list) else [urls])]
    return document.with_value(key, listed, create=True)


def _has_port(document: TomlDocument, table: str) -> bool:
    return table == "inference" or document.get(f"{table}.type") in ("nccl", "zmq")


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


def free_gateway_port(wanted: int | None) -> GatewayPort:
    """Where the gateway of this rehearsal listens."""
    port = wanted or _GATEWAY_PORT
    return GatewayPort(port, next_free(port))
