"""``primebeaker watcher sync``."""

from dataclasses import dataclass
from typing import Annotated

from primebeaker.cli.flags import choice, number, repeated, text
from primebeaker.cli.output import Result
from primebeaker.cli.watcher_common import DatabaseOptions, Flat, database_of, result, warn_line
from primebeaker.watcher import sync as filling

__all__ = ["sync"]


@dataclass(kw_only=True)
class SyncFlags(DatabaseOptions):
    """The flags of ``watcher sync``."""

    runs: Annotated[tuple[str, ...], repeated("Only these runs.", split_commas=True)] = ()
    metrics: Annotated[
        tuple[str, ...], repeated("Globs of metrics to fetch.", split_commas=True, default="the first curves")
    ] = ()
    source: Annotated[
        str, choice("Metric files, W&B, or what no file holds from W&B.", ("auto", "local", "wandb"), default="auto")
    ] = "auto"
    max_requests_per_minute: Annotated[float, number("Most requests to W&B.", above=0, default="60")] = 60.0
    wandb_secret: Annotated[
        str | None, text("Beaker secret that holds the W&B key, when WANDB_API_KEY is not set.")
    ] = None


def sync(options: Annotated[SyncFlags | None, Flat] = None) -> Result:
    """Read metric files and fetch W&B runs into the cache of curves."""
    options = options or SyncFlags()
    chosen = filling.SyncOptions(
        runs=options.runs,
        metrics=options.metrics,
        source=options.source,
        rate=options.max_requests_per_minute,
        secret=options.wandb_secret,
    )
    answer = filling.sync(database_of(options), chosen, warn=warn_line)
    failed = sum(item["source"] == "wandb" for item in answer["failures"])
    return result(answer, exit_code=int(options.source == "wandb" and 0 < answer["wandb_runs"] <= failed))
