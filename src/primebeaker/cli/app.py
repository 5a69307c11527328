"""The command tree. Groups are registered by name only: their modules are imported when they are used."""

from __future__ import annotations

from cyclopts import App

__all__ = ["GROUPS", "build_app", "new_app"]

#: Group -> (module that holds its ``app``, one sentence for ``primebeaker --help``).
#: To add a command group, write ``cli/<name>.py`` with ``app = new_app("<name>", "…")`` and add its line here.
#: A command without a group names its function: ``module:function``.
GROUPS: dict[str, tuple[str, str]] = {
    "sft": ("primebeaker.cli.sft", "Preview and submit supervised fine-tuning."),
    "rl": ("primebeaker.cli.rl", "Preview and submit reinforcement learning."),
    "rehearse": ("primebeaker.cli.rehearse:rehearse", "Run a whole launch on this machine with CPU stand-ins."),
    "toml": ("primebeaker.cli.toml", "Read, edit, bind, check and compare training TOMLs."),
    "env": ("primebeaker.cli.env", "List, show, check and try the bundled environments."),
    "run": ("primebeaker.cli.run_joint", "A service stack and the RL run that needs it, from one file."),
    "services": ("primebeaker.cli.services", "Preview, launch, look at and stop LiteRegistry service stacks."),
    "list": ("primebeaker.cli.experiments:list_experiments", "List experiments, newest first."),
    "status": ("primebeaker.cli.experiments:status", "Print the state of an experiment and of each replica."),
    "logs": ("primebeaker.cli.experiments:logs", "Print an experiment's log lines."),
    "follow": ("primebeaker.cli.experiments:follow", "Follow an experiment until it ends."),
    "stop": ("primebeaker.cli.experiments:stop", "Stop experiments."),
    "local": ("primebeaker.cli.local", "Look after experiments of the engine on this machine."),
    "watcher": ("primebeaker.cli.watcher", "Index runs and evaluations, show where a checkpoint came from."),
}


def new_app(name: str, help_text: str) -> App:
    """A command group (or the root) with our conventions: no positional words, help without a pager."""
    return App(name=name, help=help_text, version_flags=(), result_action="return_value", help_format="plaintext")


def build_app() -> App:
    """The ``primebeaker`` command with all its groups."""
    app = App(
        name="primebeaker",
        help="Check, preview, rehearse and launch Prime-RL training on Beaker or on one machine.",
        version=_version,
        result_action="return_value",
        help_format="plaintext",
    )
    for name, (module, sentence) in GROUPS.items():
        app.command(module if ":" in module else f"{module}:app", name=name, help=sentence)
    return app


def _version() -> str:
    from primebeaker import __version__

    return str(__version__)
