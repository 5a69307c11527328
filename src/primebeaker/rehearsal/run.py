"""Rehearse a launch: the one function behind ``primebeaker rehearse``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from primebeaker.launch.settings import LaunchSettings
from primebeaker.launch.topology import Kind
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.busy_ports import taken
from primebeaker.rehearsal.faults import parse_faults
from primebeaker.rehearsal.follow import follow
from primebeaker.rehearsal.injection import Injector
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.prepare import PreparedRehearsal, prepare
from primebeaker.rehearsal.report import build_report
from primebeaker.rehearsal.signals import orderly_end
from primebeaker.rehearsal.tool_services import running_tools

__all__ = ["rehearse", "run_prepared"]


def rehearse(
    kind: Kind,
    settings: LaunchSettings,
    options: RehearsalOptions,
    *,
    engine: LocalEngine | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a whole launch on this machine with CPU stand-ins for the GPU programs, and report.

    Args:
        kind: ``sft`` or ``rl``.
        settings: The launch, as for preview and submit.
        options: How to rehearse it.
        engine: Where; by default the user's embedded engine.
        progress: Takes one line of progress at a time.

    Returns:
        The report; ``ok`` says whether everything held.

    Raises:
        UserError: A mistake found before anything was started.
        KeyboardInterrupt: Interrupted; nothing is left running.
        Interrupted: Ended by another signal; nothing is left running.
    """
    with orderly_end():
        prepared = prepare(kind, settings, options, with_tools=True)
        try:
            return run_prepared(prepared, engine or LocalEngine(), progress)
        finally:
            prepared.remove()


def run_prepared(prepared: PreparedRehearsal, engine: LocalEngine, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run a prepared rehearsal with the faults it asks for, and report; its work folder stays."""
    faults = parse_faults(prepared.options.faults)
    injector = Injector(faults, prepared.work_dir / "rehearsal", progress, prepared.plan)
    with taken(prepared.busy), running_tools(prepared, engine, progress):
        followed = follow(prepared, engine, progress, injector)
    injector.end()
    return build_report(prepared, followed, engine, injector)
