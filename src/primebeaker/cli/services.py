"""``primebeaker services``: preview, launch, look at and stop LiteRegistry service stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from primebeaker.beaker.engine import choose_engine_name
from primebeaker.cli.app import new_app
from primebeaker.cli.engines import open_engine
from primebeaker.cli.flags import boolean, choice
from primebeaker.cli.output import OutputOptions, Result
from primebeaker.cli.stack_engine import engine_parameter
from primebeaker.cli.tables import columns
from primebeaker.services.control import planned_stop, stack_status, stop_stack
from primebeaker.services.fields import stack_fields
from primebeaker.services.stacks import STACKS, load_native

__all__ = ["app"]

app = new_app("services", "Preview, launch, look at and stop LiteRegistry service stacks.")


@dataclass(kw_only=True)
class StatusOptions(OutputOptions):
    """The flags of ``status``."""

    engine: Annotated[str | None, engine_parameter()] = None


@dataclass(kw_only=True)
class StopOptions(OutputOptions):
    """The flags of ``stop``."""

    dry_run: Annotated[bool, boolean("Only print the command.", name="dry-run")] = False
    engine: Annotated[str | None, engine_parameter()] = None


@dataclass(kw_only=True)
class FieldsOptions(OutputOptions):
    """The flags of ``fields``."""

    stack: Annotated[str, choice("Whose fields.", tuple(STACKS), default="base")] = "base"


def status(experiment_id: str, /, options: Annotated[StatusOptions | None, Parameter(name="*")] = None) -> Result:
    """Print the state of a stack's experiment, of its tasks and their replicas."""
    options = options or StatusOptions()
    found = stack_status(open_engine(options.engine), experiment_id)

    def text() -> str:
        rows = [
            (task["name"], replica["rank"], replica["state"], replica["exit_code"], replica["message"])
            for task in found["tasks"]
            for replica in task["replicas"]
        ]
        head = f"{found['experiment_name']} ({found['experiment_id']}) in {found['workspace']}: {found['state']}"
        return f"{head}\n\n{columns(('TASK', 'RANK', 'STATE', 'EXIT', 'MESSAGE'), rows)}"

    return Result(found, text=text)


def stop(experiment_id: str, /, options: Annotated[StopOptions | None, Parameter(name="*")] = None) -> Result:
    """Stop a stack's experiment."""
    options = options or StopOptions()
    if options.dry_run:
        return Result(planned_stop(experiment_id, choose_engine_name(options.engine)))
    return Result(stop_stack(open_engine(options.engine), experiment_id))


def fields(options: Annotated[FieldsOptions | None, Parameter(name="*")] = None) -> Result:
    """Print every field a stack accepts: name, type, default, and what it is."""
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


def _add_stack(group: App, module: str) -> None:
    # Registered by name: importing a native config takes longer than everything else the command line does.
    group.command(f"{module}:preview", name="preview", help="Render the stack. Touches nothing.")
    group.command(f"{module}:launch", name="launch", help="Submit the stack and print the receipt.")
    group.command(f"{module}:yaml", name="yaml", help="The same, with the fields from a YAML file.")
    group.command(status)
    group.command(stop)


_podman = new_app("podman", "The same for the Podman stack.")
_add_stack(app, "primebeaker.cli.services_base")
_add_stack(_podman, "primebeaker.cli.services_podman")
app.command(_podman)
app.command(fields)
app.command(
    "primebeaker.cli.services_images:app", name="images", help="Build the stacks' images and import them into Beaker."
)
