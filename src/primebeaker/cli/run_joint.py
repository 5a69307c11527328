"""``primebeaker run``: a service stack and the RL run that needs it, from one file."""

# No deferred annotations: option classes inherit from each other, see primebeaker.cli.output.

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.engines import open_engine
from primebeaker.cli.flags import boolean, path
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.rehearse import RehearsalFlags, rehearsal_options, tell
from primebeaker.cli.stack_engine import beaker_directory, engine_parameter
from primebeaker.errors import UserError

if TYPE_CHECKING:
    from primebeaker.joint.receipt import Receipt

__all__ = ["app"]

app = new_app("run", "A service stack and the RL run that needs it, from one file.")

_ORPHANED = 4


@dataclass(kw_only=True)
class ConfigOptions(OutputOptions):
    """The flags that say which run file, and where."""

    config: Annotated[Path | None, path("The run YAML.", panel="Input")] = None
    engine: Annotated[str | None, engine_parameter()] = None


@dataclass(kw_only=True)
class PreviewOptions(ConfigOptions):
    """The flags of ``run preview``."""

    preflight: Annotated[
        bool, boolean("Also ask Beaker whether the secrets and images are there.", name="preflight")
    ] = False


@dataclass(kw_only=True)
class LaunchOptions(ConfigOptions):
    """The flags of ``run launch``."""

    skip_preflight: Annotated[bool, boolean("Do not check secrets and images first.", name="skip-preflight")] = False
    force: Annotated[
        bool, boolean("Launch although an earlier run of the output directory is active.", name="force")
    ] = False


@dataclass(kw_only=True)
class RehearseRunOptions(OutputOptions, RehearsalFlags):
    """The flags of ``run rehearse``."""

    config: Annotated[Path | None, path("The run YAML.", panel="Input")] = None


@dataclass(kw_only=True)
class StatusOptions(ConfigOptions):
    """The flags of ``run status``."""

    receipt: Annotated[Path | None, path("The receipt of a launch, instead of --config.", panel="Input")] = None


@dataclass(kw_only=True)
class StopOptions(StatusOptions):
    """The flags of ``run stop``."""

    dry_run: Annotated[bool, boolean("Only print the commands.", name="dry-run")] = False


@app.command
def preview(options: Annotated[PreviewOptions | None, Parameter(name="*")] = None) -> Result:
    """Check everything and show both experiments. Creates nothing."""
    from primebeaker.joint.launch import preflight_run
    from primebeaker.joint.plan import plan_run

    options = options or PreviewOptions()
    plan = plan_run(_config(options))
    warn(plan.warnings)
    if options.preflight:
        plan, warnings = preflight_run(plan, open_engine(options.engine))
        warn(warnings)
    return Result(plan.preview())


@app.command
def launch(options: Annotated[LaunchOptions | None, Parameter(name="*")] = None) -> Result:
    """Submit the services, then the training; when one cannot be created, neither stays."""
    from primebeaker.joint.launch import launch_run, preflight_run, refuse_active
    from primebeaker.joint.plan import plan_run
    from primebeaker.services.mounts import mount_warnings
    from primebeaker.services.registries import directory_warnings

    options = options or LaunchOptions()
    plan = plan_run(_config(options))
    plan.require_ready()
    engine = open_engine(options.engine)
    warn([*plan.warnings, *directory_warnings(plan.service.launcher)])
    if engine.name == "local":
        warn(mount_warnings(plan.service.spec))
    if not options.force:
        warn(refuse_active(plan, engine))
    if not options.skip_preflight:
        plan, warnings = preflight_run(plan, engine)
        warn(warnings)
    return Result(launch_run(plan, engine, beaker_directory=beaker_directory(engine), say=_say))


@app.command
def rehearse(options: Annotated[RehearseRunOptions | None, Parameter(name="*")] = None) -> Result:
    """Run both on this machine, with stand-ins for the GPU programs, and report; exit 4 when something failed."""
    from primebeaker.joint.rehearse import rehearse_run, services_text
    from primebeaker.rehearsal.report import exit_code
    from primebeaker.rehearsal.report_text import report_text
    from primebeaker.services.detached import ending_on_signals

    options = options or RehearseRunOptions()
    if options.config is None:
        raise UserError("--config is required", hint="give the run YAML with --config=FILE")
    with ending_on_signals():
        report = rehearse_run(options.config, rehearsal_options(options), progress=tell)

    def text() -> str:
        return f"{services_text(report)}\n\n{report_text(report)}"

    return Result(report, text=text, exit_code=exit_code(report))


@app.command
def status(options: Annotated[StatusOptions | None, Parameter(name="*")] = None) -> Result:
    """Print the states of both experiments; exit 4 when the services outlived the training."""
    from primebeaker.joint.control import run_status

    options = options or StatusOptions()
    receipt = _receipt(options)
    found = run_status(receipt, open_engine(options.engine or receipt.engine))
    if found.orphaned:
        stop_words = f"primebeaker run stop --receipt={found.receipt.path}"
        warn([f"the training is {found.rl} but its services still run; stop them with `{stop_words}`"])
    return Result(found.document(), exit_code=_ORPHANED if found.orphaned else 0)


@app.command
def stop(options: Annotated[StopOptions | None, Parameter(name="*")] = None) -> Result:
    """Stop the training, then the services."""
    from primebeaker.joint.control import stop_run

    options = options or StopOptions()
    receipt = _receipt(options)
    return Result(stop_run(receipt, None if options.dry_run else open_engine(options.engine or receipt.engine)))


def _config(options: ConfigOptions) -> Path:
    if options.config is None:
        raise UserError("--config is required", hint="give the run YAML with --config=FILE")
    return options.config


def _receipt(options: StatusOptions) -> "Receipt":
    from primebeaker.joint.receipt import find_receipt, read_receipt

    if (options.receipt is None) == (options.config is None):
        raise UserError("give either --receipt=PATH or --config=FILE")
    return read_receipt(options.receipt) if options.receipt is not None else find_receipt(_config(options))


def _say(line: str) -> None:
    sys.stderr.write(f"primebeaker: {line}\n")
    sys.stderr.flush()
