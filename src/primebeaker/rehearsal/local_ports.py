"""Ports of a rehearsal: those of the TOML where they are free on this machine, else the next ones that are."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from primebeaker.config import TomlDocument
from primebeaker.prime_rl.contract import GEN_0_7

__all__ = ["GatewayPort", "free_gateway_port", "is_free", "move_busy_ports"]

_GATEWAY_PORT = 1212
_TRIES = 200


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


def move_busy_ports(document: TomlDocument) -> TomlDocument:
    """Give a single-node run ports that are free here; multi-node roles find theirs by themselves."""
    if document.get("deployment.type", "single_node") != "single_node":
        return document
    ports = GEN_0_7.ports
    wanted = (
        ("inference.server.port", ports.router, 1, "inference"),
        ("weight_broadcast.port", ports.nccl, 1, "weight_broadcast"),
    )
    for key, default, width, table in wanted:
        port = document.get(key, default)
        if isinstance(port, int) and document.get(table) is not None and not is_free(port):
            moved = next_free(port + 1, width=width)
            document = document.with_value(key, moved, create=True)
            if table == "inference":
                document = _point_rollouts(document, port, moved)
    return document


def _point_rollouts(document: TomlDocument, port: int, moved: int) -> TomlDocument:
    """Send rollouts where inference listens now: Prime-RL's own default is the default port, wherever that is."""
    key = "orchestrator.model.client.base_url"
    urls = document.get(key, [f"http://localhost:{port}/v1"])
    local = re.compile(rf"(https?://(?:127\.0\.0\.1|localhost)):{port}(?=/|$)")
    listed = [local.sub(rf"\1:{moved}", str(url)) for url in (urls if isinstance(urls, list) else [urls])]
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


def free_gateway_port(wanted: int | None) -> GatewayPort:
    """Where the gateway of this rehearsal listens."""
    port = wanted or _GATEWAY_PORT
    return GatewayPort(port, next_free(port))
