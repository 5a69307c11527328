"""The ports of a launch by what they are for, and how a fault takes one before the launch starts."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence

from primebeaker.launch.topology import Topology
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.faults import Fault

__all__ = ["busy_ports", "named_ports", "taken"]

GATEWAY = "gateway"


def named_ports(values: Table, topology: Topology, gateway: int | None) -> dict[str, int]:
    """The fixed ports of a launch, by what they are for.

    Args:
        values: The training TOML.
        topology: The launch's.
        gateway: The gateway's port; None without a gateway.
    """
    defaults = GEN_0_7.ports
    if topology.kind == "sft":
        return {"torchrun rendezvous": defaults.torchrun} if topology.multi_node else {}
    ports = {} if gateway is None else {GATEWAY: gateway}
    if "inference" in values:
        server = int(lookup(values, GEN_0_7.keys.router_port, defaults.router))
        engine = int(lookup(values, GEN_0_7.keys.backend_port, server + defaults.backend_offset))
        ports |= {"router": server, "first engine": engine, "router metrics": server + defaults.router_metrics_offset}
    memory = topology.multi_node and lookup(values, "trainer.model.lora") is None
    if lookup(values, "weight_broadcast.type", "nccl" if memory else None) == "nccl":
        ports["weight broadcast"] = int(lookup(values, "weight_broadcast.port", defaults.nccl))
    if lookup(values, "rollout_transport.type", "zmq") == "zmq":
        port = int(lookup(values, "rollout_transport.port", defaults.zmq))
        ports |= {"rollouts": port, "rollouts of other ranks": port + 1}
    return ports


def busy_ports(faults: Sequence[Fault], written: Mapping[str, int], here: Mapping[str, int]) -> dict[str, int]:
    """The ports to take, by the texts of their faults.

    Args:
        faults: All faults of the rehearsal.
        written: The ports as they stand in the user's launch.
        here: The same ports in the rehearsal, which has its own.
    """
    uses = {port: use for use, port in written.items()}
    wanted = [fault for fault in faults if fault.what == "port-busy"]
    return {fault.text: here[uses[int(fault.values["port"])]] for fault in wanted}


@contextlib.contextmanager
def taken(ports: Sequence[int]) -> Iterator[None]:
    """Keep ports busy; one that somebody else has is busy already."""
    with contextlib.ExitStack() as held:
        for port in ports:
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # Closed connections of an earlier run do not keep a port from being taken.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind(("0.0.0.0", port))  # noqa: S104  the programs bind every address, too
                listener.listen(1)
        yield
