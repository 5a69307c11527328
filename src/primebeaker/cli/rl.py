"""``primebeaker rl``: preview and submit reinforcement learning."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean
from primebeaker.cli.launch_commands import ONLY_PREVIEW, ONLY_SUBMIT, run_preview, run_submit
from primebeaker.cli.launching import RLLaunchOptions, engine_flag, explain_unknown_flags, planned
from primebeaker.cli.output import Result

__all__ = ["app"]

app = new_app("rl", "Preview and submit reinforcement learning.")


@dataclass(kw_only=True)
class PreviewOptions(RLLaunchOptions):
    """The flags of ``rl preview``."""

    write_spec: Annotated[bool, boolean("Write the spec file as submit would.", name="write-spec", panel="Output")] = (
        False
    )


@dataclass(kw_only=True)
class SubmitOptions(RLLaunchOptions):
    """The flags of ``rl submit``."""

    engine: Annotated[str | None, engine_flag()] = None
    skip_preflight: Annotated[
        bool, boolean("Do not ask for account, secrets and image first.", name="skip-preflight", panel="Output")
    ] = False


def preview(options: Annotated[PreviewOptions | None, Parameter(name="*")] = None) -> Result:
    """Print the launch. Creates nothing and never calls Beaker."""
    options = options or PreviewOptions()
    return run_preview("rl", options, write_spec=options.write_spec)


def submit(options: Annotated[SubmitOptions | None, Parameter(name="*")] = None) -> Result:
    """Create the experiment and print a receipt."""
    options = options or SubmitOptions()
    return run_submit("rl", options, engine=options.engine, skip_preflight=options.skip_preflight)


# By name: neither is needed for a preview.
app.command(
    "primebeaker.cli.rl_resume:resume_app",
    name="resume",
    help="Start a fresh complete topology from a step that trainer and orchestrator both finished.",
)
app.command(
    "primebeaker.cli.rl_resume:checkpoints_app",
    name="checkpoints",
    help="List every checkpoint step with what it lacks.",
)
app.command(explain_unknown_flags(preview, PreviewOptions, ONLY_SUBMIT, partial(planned, "rl")))
app.command(explain_unknown_flags(submit, SubmitOptions, ONLY_PREVIEW, partial(planned, "rl")))
