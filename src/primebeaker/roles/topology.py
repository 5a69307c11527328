"""Who runs what on which GPUs: pure functions from the inputs to slices, engines and roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from primebeaker.errors import UserError
from primebeaker.roles.inputs import RoleInputs

__all__ = [
    "Engine",
    "Member",
    "Slice",
    "engines_of",
    "inference_slice",
    "role_name",
    "table",
    "trainer_slice",
    "visible",
]

RoleName = Literal["mixed", "trainer", "inference", "sft"]


@dataclass(frozen=True)
class Slice:
    """A range of GPU indexes of one replica."""

    start: int
    count: int

    @property
    def indexes(self) -> tuple[int, ...]:
        """The GPU indexes."""
        return tuple(range(self.start, self.start + self.count))


@dataclass(frozen=True, kw_only=True)
class Member:
    """One replica of a started topology.

    Attributes:
        rank: 0-based; rank 0 leads.
        instance: Random id of the process; a restarted replica has another.
        slice: Its inference GPUs.
        backend_port: Port of its first engine.
        probe_port: Port on which it can be reached before anything else is started.
    """

    rank: int
    instance: str
    host: str
    ip: str
    slice: Slice
    backend_port: int
    probe_port: int = 0
    job_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Member:
        """Read the JSON form; unknown keys are ignored.

        Raises:
            KeyError, TypeError: A needed key is missing.
        """
        known = {name: value[name] for name in ("rank", "instance", "host", "ip", "backend_port")}
        size = value["slice"]
        return cls(
            **known,
            slice=Slice(size["start"], size["count"]),
            probe_port=value.get("probe_port", 0),
            job_id=value.get("job_id"),
        )


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One inference engine.

    Attributes:
        rank: The replica it runs on.
        replica: Its number inside that replica (its local data-parallel rank).
        gpus: GPU indexes of the replica.
        url: ``http://host:port`` without a path.
    """

    rank: int
    replica: int
    gpus: tuple[int, ...]
    port: int
    url: str


def role_name(inputs: RoleInputs, rank: int | None = None) -> RoleName:
    """``mixed``, ``trainer``, ``inference`` or ``sft``."""
    if inputs.kind == "sft":
        return "sft"
    if (inputs.rank if rank is None else rank) > 0:
        return "inference"
    return "mixed" if inputs.mixed_infer_gpus else "trainer"


def trainer_slice(inputs: RoleInputs) -> Slice:
    """The trainer's GPUs: the first ones of rank 0 (RL), or all of every replica (SFT)."""
    if inputs.kind == "sft":
        return Slice(0, inputs.gpus_per_node)
    return Slice(0, inputs.trainer_gpus if inputs.leads else 0)


def inference_slice(inputs: RoleInputs, rank: int | None = None) -> Slice:
    """The inference GPUs of a replica: those behind the trainer on rank 0, all elsewhere."""
    if inputs.kind == "sft":
        return Slice(0, 0)
    if (inputs.rank if rank is None else rank) > 0:
        return Slice(0, inputs.gpus_per_node)
    return Slice(inputs.trainer_gpus, inputs.mixed_infer_gpus)


def engines_of(members: Sequence[Member], tp: int) -> tuple[Engine, ...]:
    """All engines, replica by replica and inside a replica by number.

    The order matters: the orchestrator gives engine i of its admin list the rank offset i × tp.
    """
    return tuple(
        Engine(
            rank=member.rank,
            replica=number,
            gpus=tuple(range(member.slice.start + number * tp, member.slice.start + (number + 1) * tp)),
            port=member.backend_port + number,
            url=f"http://{bracketed(member.ip)}:{member.backend_port + number}",
        )
        for member in sorted(members, key=lambda member: member.rank)
        for number in range(member.slice.count // tp)
    )


def bracketed(host: str) -> str:
    """A host as it stands in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def visible(indexes: Sequence[int], env: Mapping[str, str]) -> str:
    """``CUDA_VISIBLE_DEVICES`` of a process that owns GPU ``indexes`` of this replica.

    Where the role's own variable is set, the indexes count into that list, which may hold UUIDs.

    Raises:
        UserError: The role's list is too short.
    """
    own = env.get("CUDA_VISIBLE_DEVICES")
    if own is None:
        return ",".join(str(index) for index in indexes)
    devices = [device.strip() for device in own.split(",") if device.strip()]
    if indexes and max(indexes) >= len(devices):
        raise UserError(f"CUDA_VISIBLE_DEVICES = {own!r}: expected at least {max(indexes) + 1} devices")
    return ",".join(devices[index] for index in indexes)


def table(inputs: RoleInputs, members: Sequence[Member], tp: int) -> list[str]:
    """The topology as lines: rank, role, host, trainer GPUs, inference GPUs, engines, ports."""
    engines = engines_of(members, tp)
    rows = [("rank", "role", "host", "trainer GPUs", "inference GPUs", "engines", "ports")]
    for member in sorted(members, key=lambda member: member.rank):
        own = [engine for engine in engines if engine.rank == member.rank]
        trains = inputs.kind == "sft" or member.rank == 0
        trainer = (
            Slice(0, inputs.gpus_per_node if inputs.kind == "sft" else inputs.trainer_gpus) if trains else Slice(0, 0)
        )
        rows.append(
            (
                str(member.rank),
                role_name(inputs, member.rank),
                member.host,
                _span(trainer),
                _span(member.slice),
                str(len(own)),
                f"{own[0].port}-{own[-1].port}" if len(own) > 1 else str(own[0].port) if own else "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _span(part: Slice) -> str:
    if part.count == 0:
        return "-"
    return f"{part.start}-{part.start + part.count - 1}" if part.count > 1 else str(part.start)
