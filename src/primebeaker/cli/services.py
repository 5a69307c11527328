"""``primebeaker services``: preview, launch, look at and stop LiteRegistry service stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.flags import choice
from primebeaker.cli.output import OutputOptions, Result
from primebeaker.services.stacks import STACKS

__all__ = ["app"]

app = new_app("services", "Preview, launch, look at and stop LiteRegistry service stacks.")


def _add_stack(group: App, module: str) -> None:
    # Registered by name: importing a native config takes longer than everything else the command line does.
    group.command(f"{module}:preview", name="preview", help="Render the stack. Touches nothing.")


_add_stack(app, "primebeaker.cli.services_base")
_podman = new_app("podman", "The same for the Podman stack.")
_add_stack(_podman, "primebeaker.cli.services_podman")
app.command(_podman)
app.command(
    "primebeaker.cli.services_images:app", name="images", help="Build the stacks' images and import them into Beaker."
)


@dataclass(kw_only=True)
class FieldsOptions(OutputOptions):
    """The flags of ``services fields``."""

    stack: Annotated[str, choice("Whose fields.", tuple(STACKS), default="base")] = "base"


@app.command
def fields(options: Annotated[FieldsOptions | None, Parameter(name="*")] = None) -> Result:
    """Print every field a stack accepts: name, type, default, and what it is."""
    from primebeaker.services.fields import stack_fields
    from primebeaker.services.stacks import load_native

    options = options or FieldsOptions()
    found = stack_fields(load_native(STACKS[options.stack]).config_class).values()
    rows = [
        {"name": one.name, "flag": one.flag, "type": one.type_text, "default": one.default, "help": one.help}
        for one in found
    ]

    def text() -> str:
        cells = [(one.name, one.type_text, one.default_text, one.help) for one in found]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in cells
        )

    return Result(rows, text=text)
