"""``primebeaker watcher``: index training runs and evaluations, ask about them, serve the pages.

The commands are named here and imported when they are used: ``status`` is to answer at once.
"""

from primebeaker.cli.app import new_app

__all__ = ["app"]

app = new_app("watcher", "Index training runs and evaluations, ask where a checkpoint came from, serve the pages.")

_COMMANDS = {
    "status": ("status:status", "Print what the index holds and whether it is whole. Writes nothing."),
    "update": ("scan:update", "Scan what changed. One bad file never stops it."),
    "rebuild": ("scan:rebuild_index", "Scan into a fresh index, check it, and swap it in whole."),
    "index": ("scan:index", "Index or refresh one checkpoint with its ancestors and evaluations, and show it."),
    "show": ("ask:show", "Print everything the index knows about one checkpoint."),
    "runs": ("ask:runs", "List runs."),
    "evals": ("ask:evals", "List evaluations."),
    "lineage": ("ask:show_lineage", "Print what an entity is made of and what was made of it."),
    "diff": ("ask:diff", "Compare the configurations of two runs, checkpoints or TOML files."),
    "compare": ("ask:compare_entities", "Scores and configurations of 2 to 10 entities side by side."),
    "sync": ("sync:sync", "Read metric files and fetch W&B runs into the cache of curves."),
    "issues": ("ask:issues", "List problems of single files, the worst first."),
    "serve": ("scan:serve", "Serve the pages and the JSON interface until Ctrl-C."),
    "prune": ("scan:prune", "Forget what has been missing for long."),
    "config": ("scan:config", "Print the effective roots and where each comes from."),
}
for _name, (_target, _sentence) in _COMMANDS.items():
    app.command(f"primebeaker.cli.watcher_{_target}", name=_name, help=_sentence)
