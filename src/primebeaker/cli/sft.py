"""``primebeaker sft``: preview and submit supervised fine-tuning."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean
from primebeaker.cli.launch_commands import ONLY_PREVIEW, ONLY_RL, ONLY_SUBMIT, run_preview, run_submit
from primebeaker.cli.launching import LaunchOptions, engine_flag, explain_unknown_flags, planned
from primebeaker.cli.output import Result

__all__ = ["app"]

app = new_app("sft", "Preview and submit supervised fine-tuning.")


@dataclass(kw_only=True)
class PreviewOptions(LaunchOptions):
    """The flags of ``sft preview``."""

    write_spec: Annotated[bool, boolean("Write the spec file as submit would.", name="write-spec", panel="Output")] = (
        False
    )


@dataclass(kw_only=True)
class SubmitOptions(LaunchOptions):
    """The flags of ``sft submit``."""

    engine: Annotated[str | None, engine_flag()] = None
    skip_preflight: Annotated[
        bool, boolean("Do not ask for account, secrets and image first.", name="skip-preflight", panel="Output")
    ] = False


def preview(options: Annotated[PreviewOptions | None, Parameter(name="*")] = None) -> Result:
    """Print the launch. Creates nothing and never calls Beaker."""
    options = options or PreviewOptions()
    return run_preview("sft", options, write_spec=options.write_spec)


def submit(options: Annotated[SubmitOptions | None, Parameter(name="*")] = None) -> Result:
    """Create the experiment and print a receipt."""
    options = options or SubmitOptions()
    return run_submit("sft", options, engine=options.engine, skip_preflight=options.skip_preflight)


app.command(explain_unknown_flags(preview, PreviewOptions, {**ONLY_RL, **ONLY_SUBMIT}, partial(planned, "sft")))
app.command(explain_unknown_flags(submit, SubmitOptions, {**ONLY_RL, **ONLY_PREVIEW}, partial(planned, "sft")))
