"""Rehearse a joint run on this machine: the stack's own services where they can run, and the training's stand-ins.

The services register where the rehearsed training looks, and the training's leader stops them at its end, as it would
on Beaker.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primebeaker.beaker.models import ENDED
from primebeaker.beaker.spec import spec_json
from primebeaker.errors import Mistakes, UserError
from primebeaker.fileio import atomic_write
from primebeaker.joint.registry import derive_registry, native_head
from primebeaker.joint.rehearsed_services import (
    Needed,
    Services,
    failures_of,
    needed_services,
    plan_services,
    problems_of,
    start_services,
)
from primebeaker.joint.run_file import MANAGED_ID, TOKEN, RunFile, read_run_file
from primebeaker.launch.settings import LaunchSettings
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.prepare import PreparedRehearsal, prepare
from primebeaker.rehearsal.run import run_prepared
from primebeaker.services.deployment import plan_deployment
from primebeaker.services.stacks import STACKS, load_native

__all__ = ["STAND_IN_TOKEN", "rehearse_run", "services_text"]

_CLEANUP_SECONDS = 15.0
_REQUIRED = "REQUIRED_LITEREGISTRY_SERVICES"
#: The embedded engine's own `beaker` asks for no token, but the role insists on one.
STAND_IN_TOKEN = "token-of-a-rehearsal"  # noqa: S105 - no secret


def rehearse_run(
    path: str | os.PathLike[str],
    options: RehearsalOptions,
    *,
    engine: LocalEngine | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a joint run on this machine, and report.

    Args:
        path: The run file.
        options: How to rehearse it.
        engine: Where; by default the user's embedded engine.
        progress: Takes one line of progress at a time.

    Returns:
        The training's report with ``run_file`` and ``services`` in it: which ran natively, which stand-ins ran and how
        often they were asked, and whether the training stopped them.

    Raises:
        UserError: A mistake found before anything was started.
    """
    mistakes = Mistakes()
    native = load_native(STACKS["base"])
    file = read_run_file(path, native, mistakes)
    config: Any = None
    with mistakes.collect():
        config = plan_deployment(native, native_head(file.service)).launcher.config
    mistakes.raise_if_any()
    needed = needed_services(config, [name for name, _ in file.rl.required_services], file.rl.toml)
    prepared = prepare("rl", _settings(file), replace(options, services=needed.names))
    with contextlib.ExitStack() as ended:
        ended.callback(prepared.remove)
        chosen = engine or LocalEngine()
        planned = plan_services(prepared, native, needed)
        # By name, since a signal can come between a creation and its answer; the training goes first.
        ended.callback(_stop, chosen, planned.name)
        ended.callback(_stop, chosen, prepared.experiment_name)
        services = start_services(planned, prepared.work_dir, chosen)
        running = dict.fromkeys((*services.native, *needed.names))
        progress(f"started services {', '.join(running)} ({services.experiment_id})")
        prepared = _joined(prepared, file, needed, services)
        report = run_prepared(prepared, chosen, progress)
        stopped = _stopped_by_training(chosen, services.experiment_id) if file.lifecycle.cleanup else None
        report["problems"] += [problem.as_dict() for problem in failures_of(services, chosen)]
        return {"run_file": str(path), **_report(report, services, stopped)}


def _stop(engine: LocalEngine, name: str) -> None:
    # What was never created need not be stopped.
    with contextlib.suppress(UserError):
        engine.stop(name)


def services_text(report: Mapping[str, Any]) -> str:
    """The services of a report, for a reader at a terminal."""
    services = report["services"]
    ended = {True: "stopped by the training", False: "NOT stopped by the training", None: "left to their owner"}
    lines = [f"native: {', '.join(services['native'])}"]
    lines += [
        f"stand-in: {one['name']} for {one['stands_for']}, {one['requests']} requests" for one in services["stand_ins"]
    ]
    lines.append(ended[services["stopped_by_training"]])
    return "\n".join(["Services", *(f"  {line}" for line in lines)])


def _settings(file: RunFile) -> LaunchSettings:
    """The ``rl`` section with the registry it would have; which services it waits for is decided later."""
    try:
        registry = derive_registry(file.rl, file.service, file.path)
    except UserError:
        # The rehearsal has a registry of its own and tells that the launch would lack one.
        registry = None
    return replace(file.rl, registry=registry, required_services=())


def _joined(prepared: PreparedRehearsal, file: RunFile, needed: Needed, services: Services) -> PreparedRehearsal:
    """The rehearsal that waits for the services that run, and stops them at its end."""
    awaited = {name: 1 for name, _ in file.rl.required_services if name in needed.names}
    more: dict[str, str] = {}
    if file.lifecycle.cleanup:
        more = {MANAGED_ID: services.experiment_id, TOKEN: STAND_IN_TOKEN}
    plan = replace(prepared.plan, spec=_with_variables(prepared.plan.spec, awaited, more))
    atomic_write(Path(plan.paths.spec), spec_json(plan.spec), mode=0o600)
    problems = (*prepared.problems, *problems_of(needed))
    return replace(prepared, plan=plan, problems=tuple(dict.fromkeys(problems)))


def _with_variables(spec: Mapping[str, Any], awaited: Mapping[str, int], more: Mapping[str, str]) -> dict[str, Any]:
    def changed(entry: Mapping[str, str]) -> Mapping[str, str]:
        if entry["name"] != _REQUIRED:
            return entry
        # A fault may have put a service there that never comes.
        counts = {**json.loads(entry["value"]), **awaited}
        return {"name": _REQUIRED, "value": json.dumps(dict(sorted(counts.items())))}

    added = [{"name": name, "value": value} for name, value in more.items()]
    tasks = [{**task, "envVars": [*map(changed, task["envVars"]), *added]} for task in spec["tasks"]]
    return {**spec, "tasks": tasks}


def _stopped_by_training(engine: LocalEngine, experiment_id: str) -> bool:
    deadline = time.monotonic() + _CLEANUP_SECONDS
    while time.monotonic() < deadline:
        if engine.get(experiment_id).state in ENDED:
            return True
        time.sleep(0.2)
    return False


def _report(report: dict[str, Any], services: Services, stopped: bool | None) -> dict[str, Any]:
    report["tools"]["services"] = [name for name in services.native if name != "gateway"]
    report["services"] = {**services.document(), "stopped_by_training": stopped}
    # A leader that a fault has killed cannot clean up.
    if stopped is False and not report["faults"]:
        report["ok"] = False
        report["verdict"] += "; the training did not stop its services"
    return report
