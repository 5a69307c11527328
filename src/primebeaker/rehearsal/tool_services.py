"""The tool services of a rehearsal: an experiment beside the run, on the same engine, for as long as the run lasts."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from primebeaker.errors import ExternalError
from primebeaker.fileio import atomic_write
from primebeaker.local import LocalEngine, Rehearsal
from primebeaker.rehearsal.follow import stopped_on_failure
from primebeaker.rehearsal.prepare import PreparedRehearsal
from primebeaker.rehearsal.settings import REHEARSAL
from primebeaker.rehearsal.tools import Tool

__all__ = ["TOOLS_FILE", "running_tools"]

#: The services' spec in the work folder.
TOOLS_FILE = "tools.json"
_MARGIN_SECONDS = 60
_MODULE = "primebeaker.rehearsal.standins.tool_service"
_STAND_INS = "primebeaker.rehearsal.standins.services"


@contextlib.contextmanager
def running_tools(
    prepared: PreparedRehearsal, engine: LocalEngine, progress: Callable[[str], None]
) -> Iterator[str | None]:
    """Run the services the rehearsal's environments call; their experiment's id, or None when there are none.

    Raises:
        ExternalError: The engine did not create the experiment.
    """
    if not prepared.tools.here:
        yield None
        return
    path = prepared.work_dir / TOOLS_FILE
    atomic_write(path, json.dumps(_spec(prepared), indent=2) + "\n")
    name, workspace = f"{prepared.experiment_name}-tools", prepared.plan.settings.workspace
    with stopped_on_failure(engine, name):
        created = engine.create(path, name=name, workspace=workspace, rehearsal=Rehearsal(env={REHEARSAL: "1"}))
        if created.experiment_id is None:
            raise ExternalError("the embedded engine gave no experiment id")
        progress(f"started the services {', '.join(prepared.tools.names)} ({created.experiment_id})")
        yield created.experiment_id
    engine.stop(created.experiment_id)


def _spec(prepared: PreparedRehearsal) -> dict[str, Any]:
    directory = prepared.work_dir / "rehearsal"

    registry = str(prepared.plan.settings.registry)

    def task(number: int, tool: Tool) -> dict[str, Any]:
        words = [_MODULE, "--service", tool.name, "--registry", registry, "--directory", str(directory)]
        if tool.stand_in is not None:
            folder = prepared.work_dir / "services" / str(number)
            words = [_STAND_INS, tool.stand_in, "--name", tool.name, "--registry", registry, "--folder", str(folder)]
        return {
            "name": tool.name if tool.stand_in is None else f"stand-in-{number}",
            "image": {"beaker": Path(prepared.plan.image.removeprefix("beaker://")).name},
            "command": [sys.executable, "-m", *words],
            "result": {"path": "/result"},
            "context": {"priority": "normal"},
            "resources": {"gpuCount": 0},
            # Should this process be killed, nobody would stop them.
            "timeout": f"{int(prepared.timeout) + _MARGIN_SECONDS}s",
            # One service may fail without the others, as in a stack on Beaker.
            "propagateFailure": False,
        }

    return {
        "version": "v2",
        "description": "Tool services of a rehearsal",
        "tasks": [task(number, tool) for number, tool in enumerate(prepared.tools.here)],
    }
