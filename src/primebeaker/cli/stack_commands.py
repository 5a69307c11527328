"""The commands of one service stack, with flags from its installed native config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.stack_flags import given_values, options_class, unknown_flag
from primebeaker.services.deployment import plan_deployment
from primebeaker.services.stacks import NativeStack, Stack, load_native

__all__ = ["preview_command"]


@dataclass(kw_only=True)
class PreviewOptions(OutputOptions):
    """The flags of a preview that are not fields."""


def preview_command(stack: Stack) -> App:
    """``preview`` of a stack."""
    native = load_native(stack)
    options_type = options_class(native, PreviewOptions)

    def preview(options: Any = None) -> Result:
        """Render the stack as the native launcher does. Touches nothing."""
        return _preview(native, options or options_type())

    return _command(stack, preview, "preview", options_type)


def _preview(native: NativeStack, options: Any) -> Result:
    deployment = plan_deployment(native, given_values(options, native))
    warn(deployment.warnings)
    return Result(deployment.preview())


def _command(stack: Stack, function: Any, name: str, options_type: type[Any]) -> App:
    """An app with one command, whose options are of a class made at run time."""
    function.__annotations__ = {"options": Annotated[options_type | None, Parameter(name="*")], "return": Result}
    function.unknown_flag = unknown_flag(stack, options_type)
    app = new_app(name, function.__doc__ or "")
    app.default(function)
    return app
