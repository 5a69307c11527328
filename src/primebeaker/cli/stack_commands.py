"""The commands of one service stack, with flags from its installed native config."""

# No deferred annotations: option classes made at run time inherit these, see primebeaker.cli.output.

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.engines import open_engine
from primebeaker.cli.flags import boolean, path
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.stack_engine import beaker_directory, engine_parameter
from primebeaker.cli.stack_flags import given_values, options_class, unknown_flag
from primebeaker.errors import UserError
from primebeaker.services.deployment import Deployment, plan_deployment
from primebeaker.services.detached import ending_on_signals
from primebeaker.services.mounts import mount_warnings
from primebeaker.services.preflight import preflight_stack
from primebeaker.services.registries import directory_warnings
from primebeaker.services.stacks import NativeStack, Stack, load_native
from primebeaker.services.submission import submit_stack

__all__ = ["LaunchStackOptions", "PreviewStackOptions", "StackCommands", "stack_commands"]


@dataclass(kw_only=True)
class PreviewStackOptions(OutputOptions):
    """The flags of a preview that are not fields."""

    preflight: Annotated[
        bool, boolean("Also ask Beaker whether the secrets and images are there.", name="preflight", panel="Checks")
    ] = False
    engine: Annotated[str | None, engine_parameter()] = None


@dataclass(kw_only=True)
class LaunchStackOptions(OutputOptions):
    """The flags of a launch that are not fields."""

    skip_preflight: Annotated[
        bool, boolean("Do not check secrets and images first.", name="skip-preflight", panel="Checks")
    ] = False
    yes: Annotated[
        bool, boolean("Do not warn of a directory that is made world-writable.", name="yes", panel="Checks")
    ] = False
    engine: Annotated[str | None, engine_parameter()] = None


@dataclass(kw_only=True)
class _FileOptions:
    config: Annotated[Path | None, path("The services YAML; flags override its fields.", panel="Input")] = None


@dataclass(kw_only=True)
class _PreviewFileOptions(PreviewStackOptions, _FileOptions):
    pass


@dataclass(kw_only=True)
class _LaunchFileOptions(LaunchStackOptions, _FileOptions):
    pass


class StackCommands(NamedTuple):
    """The commands of one stack that take its fields as flags."""

    preview: App
    launch: App
    yaml: App


def stack_commands(stack: Stack) -> StackCommands:
    """Make the commands of a stack.

    Raises:
        UserError: Its distribution is not installed.
    """
    native = load_native(stack)
    preview_help, launch_help = "Render the stack. Touches nothing.", "Submit the stack and print the receipt."
    yaml = new_app("yaml", "The same, with the fields from a YAML file.")
    yaml.command(_command(native, "preview", preview_help, _PreviewFileOptions, _preview))
    yaml.command(_command(native, "launch", launch_help, _LaunchFileOptions, _launch))
    return StackCommands(
        preview=_command(native, "preview", preview_help, PreviewStackOptions, _preview),
        launch=_command(native, "launch", launch_help, LaunchStackOptions, _launch),
        yaml=yaml,
    )


def _command(
    native: NativeStack, name: str, help_text: str, base: type[Any], action: Callable[[NativeStack, Any], Result]
) -> App:
    """An app with one command, whose options are of a class made at run time."""
    options_type = options_class(native, base)

    def command(options: Any = None) -> Result:
        return action(native, options or options_type())

    command.__annotations__ = {"options": Annotated[options_type | None, Parameter(name="*")], "return": Result}
    command.unknown_flag = unknown_flag(native.stack, options_type)  # type: ignore[attr-defined]
    app = new_app(name, help_text)
    app.default(command)
    return app


def _plan(native: NativeStack, options: Any) -> Deployment:
    given = given_values(options, native)
    if isinstance(options, _FileOptions):
        from primebeaker.services.stack_file import override, read_stack_file

        if options.config is None:
            raise UserError("--config is required", hint="give the services YAML with --config=FILE")
        given = override(read_stack_file(options.config, native), given)
    return plan_deployment(native, given)


def _preview(native: NativeStack, options: Any) -> Result:
    deployment = _plan(native, options)
    warn(deployment.warnings)
    if options.preflight:
        warn(preflight_stack(open_engine(options.engine), deployment))
    return Result(deployment.preview())


def _launch(native: NativeStack, options: Any) -> Result:
    deployment = _plan(native, options)
    deployment.require_ready()
    engine = open_engine(options.engine)
    warn(deployment.warnings)
    if engine.name == "local":
        warn(mount_warnings(deployment.spec))
    if not options.yes:
        warn(directory_warnings(deployment.launcher))
    if not options.skip_preflight:
        warn(preflight_stack(engine, deployment))
    with ending_on_signals():
        return Result(
            submit_stack(deployment, engine=engine.name, beaker_directory=beaker_directory(engine)).document()
        )
