"""``primebeaker rehearse``: the whole launch on this machine, before a GPU is paid for."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.launching import RLLaunchOptions, explain_unknown_flags, launch_settings
from primebeaker.cli.output import Result
from primebeaker.errors import UserError

if TYPE_CHECKING:
    from primebeaker.rehearsal.options import RehearsalOptions

__all__ = ["RehearsalFlags", "rehearsal_options", "rehearse", "tell"]

_REHEARSAL = "Rehearsal"
_ELSEWHERE = {
    "--engine": "a rehearsal always runs on the embedded engine",
    "--skip-preflight": "a rehearsal asks Beaker nothing",
    "--write-spec": "it belongs to preview",
}


@dataclass(kw_only=True)
class RehearsalFlags:
    """How to rehearse, apart from what."""

    steps: Annotated[
        int | None, integer("Training steps.", least=1, panel=_REHEARSAL, default="max_steps, at most 4")
    ] = None
    rollouts: Annotated[int, integer("Rollouts an example.", least=1, panel=_REHEARSAL, default="2")] = 2
    examples: Annotated[int, integer("Examples a step.", least=1, panel=_REHEARSAL, default="2")] = 2
    keep: Annotated[bool, boolean("Keep the work folder.", name="keep", panel=_REHEARSAL)] = False
    work_dir: Annotated[
        Path | None, path("Folder everything is written to.", panel=_REHEARSAL, default="new temporary folder")
    ] = None
    fault: Annotated[
        tuple[str, ...], repeated("Fault to inject, WHAT[:key=value,...][@WHEN] (repeat).", panel=_REHEARSAL)
    ] = ()
    list_faults: Annotated[
        bool, boolean("Print the faults that can be injected, and stop.", name="list-faults", panel=_REHEARSAL)
    ] = False
    model: Annotated[
        str | None,
        text("What answers: bandit, scripted, scripted:FILE, or a URL.", panel=_REHEARSAL, default="bandit"),
    ] = None
    no_rollouts: Annotated[
        bool, boolean("Let the orchestrator invent rollouts.", name="no-rollouts", panel=_REHEARSAL)
    ] = False
    timeout: Annotated[
        float | None,
        number("Seconds it may take.", above=0, panel=_REHEARSAL, default="120, 10 more a replica beyond 2"),
    ] = None
    seed: Annotated[int, integer("Seeds everything random.", least=0, panel=_REHEARSAL, default="0")] = 0


@dataclass(kw_only=True)
class RehearseOptions(RLLaunchOptions, RehearsalFlags):
    """The flags of ``rehearse``: those of a launch, and its own."""

    kind: Annotated[
        str | None, choice("Which kind of training.", ("sft", "rl"), panel="Input", default="from the TOML")
    ] = None


def rehearse(options: Annotated[RehearseOptions | None, Parameter(name="*")] = None) -> Result:
    """Run the whole launch on this machine with CPU stand-ins for the GPU programs, and report."""
    from primebeaker.config import TomlDocument, kind_of_toml
    from primebeaker.rehearsal.report import exit_code
    from primebeaker.rehearsal.report_text import report_text
    from primebeaker.rehearsal.run import rehearse as run

    options = options or RehearseOptions()
    if options.list_faults:
        return _faults()
    settings = launch_settings(options)
    kind = options.kind or kind_of_toml(TomlDocument.from_path(settings.toml).values)
    report = run(
        "rl" if kind == "rl" else "sft",
        settings,
        rehearsal_options(options),
        progress=tell,
    )
    return Result(report, text=lambda: report_text(report), exit_code=exit_code(report))


def rehearsal_options(options: RehearsalFlags) -> "RehearsalOptions":
    """The flags as the library takes them.

    Raises:
        UserError: ``--model`` is nothing that can answer.
    """
    from primebeaker.rehearsal.options import RehearsalOptions

    return RehearsalOptions(
        steps=options.steps,
        rollouts=options.rollouts,
        examples=options.examples,
        keep=options.keep,
        work_dir=options.work_dir,
        faults=options.fault,
        model=_model(options.model or "bandit"),
        no_rollouts=options.no_rollouts,
        timeout=options.timeout,
        seed=options.seed,
    )


def _faults() -> Result:
    from primebeaker.rehearsal.faults import FAULTS

    rows = [
        {"fault": name, "keys": dict(kind.keys), "effect": kind.effect, "expected": kind.expected}
        for name, kind in FAULTS.items()
    ]

    def table() -> str:
        lines = []
        for name, kind in FAULTS.items():
            keys = ",".join(f"{key}={'…' if default is None else default}" for key, default in kind.keys.items())
            lines.append(f"{name}:{keys}\n  does      {kind.effect}\n  expected  {kind.expected}")
        return "\n".join([*lines, "moments: @step=N, @phase=NAME, @after=SECONDS; default @step=1"])

    return Result(rows, text=table)


def _model(value: str) -> str:
    if value in ("bandit", "scripted") or value.startswith(("http://", "https://")):
        return value
    if value.startswith("scripted:") and Path(value.partition(":")[2]).is_file():
        return f"scripted:{Path(value.partition(':')[2]).resolve()}"
    raise UserError(f"--model = {value!r}: expected bandit, scripted, scripted:FILE (an existing file) or a URL")


def tell(line: str) -> None:
    """Write one line of progress to stderr."""
    sys.stderr.write(f"rehearsal: {line}\n")
    sys.stderr.flush()


explain_unknown_flags(rehearse, RehearseOptions, _ELSEWHERE)
