"""Run one role in this process, from its first look at the environment to its exit code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from primebeaker.redaction import Redactor
from primebeaker.roles.causes import Cause, ExitCode
from primebeaker.roles.events import EventLog
from primebeaker.roles.managed import ManagedServices, take_managed_services
from primebeaker.roles.process_role import ProcessRole
from primebeaker.roles.rl_role import RLRole
from primebeaker.roles.sft_role import SFTRole
from primebeaker.roles.single_role import SingleRole
from primebeaker.supervision import Child, Console, StopSignals, Supervisor

__all__ = ["run_role", "run_single"]

_FINISHING = {"rl": frozenset({"trainer", "orchestrator"}), "sft": frozenset({"trainer"}), "single": frozenset({"rl"})}


def run_role(kind: Literal["rl", "sft"]) -> int:
    """Run a replica of a multi-node task; returns its exit code."""
    role: type[ProcessRole] = RLRole if kind == "rl" else SFTRole
    return asyncio.run(_run(kind, role, _rank()))


def run_single(config: Path) -> int:
    """Run a single-node RL task with its gateway; returns its exit code."""

    def configure(role: ProcessRole) -> None:
        assert isinstance(role, SingleRole)
        role.config = config

    return asyncio.run(_run("single", SingleRole, 0, configure))


def _rank() -> int:
    text = os.environ.get("BEAKER_REPLICA_RANK", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


async def _run(
    kind: str, role_type: type[ProcessRole], rank: int, configure: Callable[[ProcessRole], None] = lambda role: None
) -> int:
    managed: ManagedServices | None = None
    refused: Exception | None = None
    try:
        managed = take_managed_services(os.environ, rank=rank)
    except ValueError as error:
        refused = error
    console = Console()
    redact = Redactor([managed.token] if managed is not None else [])
    events = EventLog(rank, "rl" if kind == "single" else kind, console.line, redact)
    role: ProcessRole | None = None

    def ended(child: Child) -> None:
        if role is not None:
            role.child_ended(child)

    try:
        async with Supervisor(console=console, report=events.say, on_exit=ended) as supervisor:
            role = role_type(
                rank=rank,
                supervisor=supervisor,
                events=events,
                env=dict(os.environ),
                cwd=Path.cwd(),
                finishing=_FINISHING[kind],
            )
            role.managed = managed
            configure(role)
            if refused is not None:
                role.end(Cause(code=ExitCode.MISTAKE, cause="mistake", message=str(refused)))
            with StopSignals(again=supervisor.hurry) as signals:
                code = await role.run(signals)
            events.say(_last_line(role, code))
    finally:
        console.close()
    return code


def _last_line(role: ProcessRole, code: int) -> str:
    if code == 0:
        return "ended with 0: complete"
    first = role.first_cause
    return f"ended with {code}; first cause: {first.message if first is not None else 'unknown'}"
