"""Rehearse a joint run on this machine: the stack's own services where they can run, and the training's stand-ins.

The services register where the rehearsed training looks, and the training's leader stops them at its end, as it would
on Beaker.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primebeaker.beaker.models import ENDED
from primebeaker.beaker.spec import spec_json
from primebeaker.errors import ExternalError, Mistakes, UserError
from primebeaker.fileio import atomic_write
from primebeaker.joint.registry import derive_registry, native_head
from primebeaker.joint.run_file import MANAGED_ID, TOKEN, RunFile, read_run_file
from primebeaker.launch.settings import LaunchSettings
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.follow import follow
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.prepare import PreparedRehearsal, Problem, prepare
from primebeaker.rehearsal.report import build_report
from primebeaker.services.deployment import plan_deployment
from primebeaker.services.stack_config import build_launcher, given_by_flags
from primebeaker.services.stacks import STACKS, NativeStack, load_native

__all__ = ["rehearse_run"]

_WORKSPACE = "rehearsal/local"
#: Programs the native terminal task asks for before it starts.
_TERMINAL_PROGRAMS = ("rg", "xsv", "pandoc", "jq")
_CLEANUP_SECONDS = 15.0
_REQUIRED = "REQUIRED_LITEREGISTRY_SERVICES"


@dataclass(frozen=True)
class _Services:
    """The stack's part of a rehearsal.

    Args:
        experiment_id: The stack's experiment on the embedded engine.
        running: Names of the services that run natively.
        left_out: Why others do not run here.
    """

    experiment_id: str
    running: tuple[str, ...]
    left_out: tuple[Problem, ...]


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
        The training's report with ``services`` in it: which ran natively, and whether the training stopped them.

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
    prepared = prepare("rl", _settings(file), options)
    chosen = engine or LocalEngine()
    services: _Services | None = None
    try:
        services = _start(prepared, native, config, chosen)
        progress(f"started services {', '.join(services.running)} ({services.experiment_id})")
        prepared = _joined(prepared, file, services)
        followed = follow(prepared, chosen, progress)
        stopped = _stopped_by_training(chosen, services.experiment_id) if file.lifecycle.cleanup else None
        return _report(build_report(prepared, followed, chosen), services, stopped)
    finally:
        if services is not None:
            chosen.stop(services.experiment_id)
        prepared.remove()


def _settings(file: RunFile) -> LaunchSettings:
    """The ``rl`` section with the registry it would have; which services it waits for is decided later."""
    try:
        registry = derive_registry(file.rl, file.service, file.path)
    except UserError:
        # The rehearsal has a registry of its own and tells that the launch would lack one.
        registry = None
    return replace(file.rl, registry=registry, required_services=())


def _start(prepared: PreparedRehearsal, native: NativeStack, config: Any, engine: LocalEngine) -> _Services:
    """Start those services of the stack that can run here, one replica each, in the rehearsal's own registry."""
    missing = [program for program in _TERMINAL_PROGRAMS if shutil.which(program) is None]
    left_out = [
        Problem(f"service.{field}", "not rehearsed: this service does not run on this machine")
        for field in ("web_search_replicas", "local_search_replicas", "generation_replicas", "classification_replicas")
        if getattr(config, field)
    ]
    terminal = min(config.terminal_replicas, 1)
    if terminal and missing:
        terminal = 0
        left_out.append(Problem("service.terminal_replicas", f"not rehearsed: {', '.join(missing)} not on PATH"))
    values = {
        "registry": f"sqlite:///{prepared.work_dir}/registry.sqlite3",
        "python_replicas": min(config.python_replicas, 1),
        "terminal_replicas": terminal,
        "web_search_replicas": 0,
        "gateway_workers": 1,
        "python_pool_size": 2,
        "name_prefix": "rehearsal",
        "shared_dir": str(prepared.work_dir / "shared"),
    }
    name, spec = build_launcher(native, given_by_flags(values)).build_spec()
    tasks = [{key: value for key, value in task.items() if key != "datasets"} for task in spec["tasks"]]
    path = prepared.work_dir / "services.json"
    atomic_write(path, spec_json({**spec, "tasks": tasks}))
    created = engine.create(path, name=name, workspace=_WORKSPACE, rehearsal={})
    if created.experiment_id is None:
        raise ExternalError("the embedded engine gave no experiment id")
    return _Services(created.experiment_id, tuple(task["name"] for task in tasks), tuple(left_out))


def _joined(prepared: PreparedRehearsal, file: RunFile, services: _Services) -> PreparedRehearsal:
    """The rehearsal that waits for the services that run, and stops them at its end."""
    required = dict(file.rl.required_services)
    awaited = {name: 1 for name in required if name in services.running}
    others = [name for name in required if name not in awaited]
    problems = [*prepared.problems, *services.left_out]
    if others:
        problems.append(Problem("rl.required_services", f"not rehearsed: {', '.join(others)} not waited for here"))
    more: dict[str, str] = {}
    if file.lifecycle.cleanup:
        # The embedded engine's own `beaker` asks for no token, but the role insists on one.
        more = {MANAGED_ID: services.experiment_id, TOKEN: "rehearsal"}
    plan = replace(prepared.plan, spec=_with_variables(prepared.plan.spec, awaited, more))
    atomic_write(Path(plan.paths.spec), spec_json(plan.spec), mode=0o600)
    return replace(prepared, plan=plan, problems=tuple(dict.fromkeys(problems)))


def _with_variables(spec: Mapping[str, Any], awaited: Mapping[str, int], more: Mapping[str, str]) -> dict[str, Any]:
    counts = json.dumps(dict(sorted(awaited.items())))

    def changed(entry: Mapping[str, str]) -> Mapping[str, str]:
        return {"name": _REQUIRED, "value": counts} if entry["name"] == _REQUIRED else entry

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


def _report(report: dict[str, Any], services: _Services, stopped: bool | None) -> dict[str, Any]:
    report["services"] = {
        "experiment_id": services.experiment_id,
        "native": list(services.running),
        "stopped_by_training": stopped,
    }
    if stopped is False:
        report["ok"] = False
        report["verdict"] += "; the training did not stop its services"
    return report
