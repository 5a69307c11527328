"""``runtime.json``: what the leader decided for one epoch, written once and read by every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.errors import UserError
from primebeaker.prime_rl.subconfigs import WrittenConfig
from primebeaker.roles.topology import Engine

__all__ = ["SCHEMA", "RuntimePlan", "check_schema"]

SCHEMA = "primebeaker.runtime/v1"


@dataclass(frozen=True, kw_only=True)
class RuntimePlan:
    """The decisions of one epoch; see :meth:`as_json` for the file's shape.

    Attributes:
        generation: The Prime-RL generation of the sub-configs.
        resume_step: The step trainer and orchestrator both continue from; None starts fresh.
        env: Component -> variables that come after the role's own environment.
        moves: What must be moved aside before the trainer starts, ``(from, to)``.
    """

    epoch: str
    kind: str
    generation: str
    config_sha256: str
    resume_step: int | None
    master_addr: str
    configs: Mapping[str, WrittenConfig]
    env: Mapping[str, Mapping[str, str]] = field(repr=False)
    ranks_filter: str
    model: str = ""
    router_port: int = 0
    router_policy: str = ""
    router_url: str = ""
    engines: tuple[Engine, ...] = ()
    tp: int = 1
    broadcast: str = ""
    transport: str = ""
    nccl_port: int | None = None
    zmq_ports: tuple[int, ...] = ()
    master_port: int = 0

    @property
    def admin_urls(self) -> tuple[str, ...]:
        """One URL an engine, in rank order."""
        return tuple(f"{engine.url}/v1" for engine in self.engines)

    def as_json(self) -> dict[str, Any]:
        """The file's content."""
        value: dict[str, Any] = {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "kind": self.kind,
            "config_sha256": self.config_sha256,
            "resume_step": self.resume_step,
        }
        if self.kind == "rl":
            value |= {
                "router": {"port": self.router_port, "policy": self.router_policy, "url": self.router_url},
                "engines": [
                    {"rank": engine.rank, "replica": engine.replica, "gpus": list(engine.gpus), "url": engine.url}
                    for engine in self.engines
                ],
                "admin_urls": list(self.admin_urls),
                "tp": self.tp,
                "ranks_filter": self.ranks_filter,
                "broadcast": self.broadcast,
                "transport": self.transport,
                "master_addr": self.master_addr,
                "ports": {"nccl": self.nccl_port, "zmq": list(self.zmq_ports)},
            }
        else:
            value |= {
                "ranks_filter": self.ranks_filter,
                "master_addr": self.master_addr,
                "master_port": self.master_port,
            }
        return value | {
            "configs": {name: list(written) for name, written in self.configs.items()},
            "env": {name: dict(variables) for name, variables in self.env.items()},
            "model": self.model,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RuntimePlan:
        """Read the file; unknown keys are ignored.

        Raises:
            UserError: Written by another version of the package.
        """
        check_schema(value, SCHEMA, "runtime.json")
        router = value.get("router", {})
        ports = value.get("ports", {})
        return cls(
            epoch=value["epoch"],
            kind=value["kind"],
            generation=value.get("generation", "0.7"),
            config_sha256=value["config_sha256"],
            resume_step=value["resume_step"],
            master_addr=value["master_addr"],
            configs={name: WrittenConfig(*written) for name, written in value["configs"].items()},
            env=value["env"],
            ranks_filter=value["ranks_filter"],
            model=value.get("model", ""),
            router_port=router.get("port", 0),
            router_policy=router.get("policy", ""),
            router_url=router.get("url", ""),
            engines=tuple(
                Engine(
                    rank=entry["rank"],
                    replica=entry["replica"],
                    gpus=tuple(entry["gpus"]),
                    port=int(entry["url"].rpartition(":")[2]),
                    url=entry["url"],
                )
                for entry in value.get("engines", ())
            ),
            tp=value.get("tp", 1),
            broadcast=value.get("broadcast", ""),
            transport=value.get("transport", ""),
            nccl_port=ports.get("nccl"),
            zmq_ports=tuple(ports.get("zmq", ())),
            master_port=value.get("master_port", 0),
        )


def check_schema(value: Mapping[str, Any], expected: str, name: str) -> None:
    """Refuse a file of another schema version.

    Raises:
        UserError: Naming both versions.
    """
    if value.get("schema") != expected:
        raise UserError(f"{name} has schema {value.get('schema')!r}: expected {expected!r}")
