"""The commands of ``primebeaker watcher`` that scan, write or serve."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.output import Result, warn
from primebeaker.cli.watcher_common import (
    DatabaseOptions,
    Flat,
    database_of,
    existing,
    find_checkpoint,
    result,
    warn_line,
)
from primebeaker.cli.watcher_flags import ScanFlags
from primebeaker.errors import UserError
from primebeaker.watcher import details, rebuild, serving
from primebeaker.watcher.database import open_reader, reading
from primebeaker.watcher.roots import choose_roots, extended, report_roots, stored_roots
from primebeaker.watcher.update import update as run_update

__all__ = ["config", "index", "prune", "rebuild_index", "serve", "update"]


@dataclass(kw_only=True)
class UpdateOptions(ScanFlags):
    """The flags of ``watcher update``."""

    skip_indexed: Annotated[bool, boolean("Do not read unchanged files again.", name="skip-indexed")] = True
    details: Annotated[bool, boolean("List the indexed checkpoints.", name="details")] = False
    strict: Annotated[bool, boolean("Exit 1 when there is an issue of severity error.", name="strict")] = False
    full: Annotated[bool, boolean("Read every file, also unchanged ones.", name="full")] = False
    dry_run: Annotated[bool, boolean("Scan without changing the index.", name="dry-run")] = False


def update(options: Annotated[UpdateOptions | None, Flat] = None) -> Result:
    """Scan what changed. One bad file never stops it."""
    options = options or UpdateOptions()
    scan = options.scan(full=options.full or not options.skip_indexed, details=options.details)
    answer = run_update(database_of(options), options.given(), scan, warn=warn_line, dry_run=options.dry_run)
    return result(answer, exit_code=int(options.strict and answer["issues"].get("error", 0) > 0))


@dataclass(kw_only=True)
class RebuildFlags(ScanFlags):
    """The flags of ``watcher rebuild``."""

    backup: Annotated[bool, boolean("Keep a copy of the old index.", name="backup")] = True
    keep_backups: Annotated[int, integer("How many backups remain.", least=1, default="5")] = 5
    require_clean: Annotated[bool, boolean("Refuse when a training TOML is unreadable.", name="require-clean")] = True
    require_models: Annotated[bool, boolean("Refuse when there is no checkpoint.", name="require-models")] = True
    details: Annotated[bool, boolean("List the indexed checkpoints.", name="details")] = False


def rebuild_index(options: Annotated[RebuildFlags | None, Flat] = None) -> Result:
    """Scan into a fresh index, check it, and swap it in whole."""
    options = options or RebuildFlags()
    rules = rebuild.RebuildOptions(
        backup=options.backup,
        keep_backups=options.keep_backups,
        require_clean=options.require_clean,
        require_models=options.require_models,
    )
    scan = options.scan(details=options.details, full=True)
    return result(rebuild.rebuild(database_of(options), options.given(), scan, rules, warn=warn_line))


@dataclass(kw_only=True)
class IndexOptions(ScanFlags):
    """The flags of ``watcher index``."""

    rl_config: Annotated[str | None, text("The TOML of an RL checkpoint.")] = None
    sft_config: Annotated[str | None, text("The TOML of the SFT run it starts from.")] = None
    rl_wandb_run_id: Annotated[str | None, text("W&B run id of the RL run.")] = None
    sft_wandb_run_id: Annotated[str | None, text("W&B run id of the SFT run.")] = None


def index(model: str, /, options: Annotated[IndexOptions | None, Flat] = None) -> Result:
    """Index or refresh one checkpoint with its ancestors and evaluations, and show it."""
    options = options or IndexOptions()
    given = options.given()
    base = given.repo_root or os.environ.get("JTC_ROOT") or str(Path.cwd())
    wanted = [str(existing(value, base).parent) for value in (options.rl_config, options.sft_config) if value]
    path = str(existing(model, base))
    database = database_of(options)
    stored: Mapping[str, Any] = {}
    if database.exists():
        connection = open_reader(database, warn=warn_line)
        stored = stored_roots(connection)
        connection.close()
    elif not Path(path).exists():
        # Only an index that is there may still know a checkpoint that is gone.
        raise UserError("no such directory", file=path, hint="give the directory of a checkpoint")
    roots = choose_roots(given, stored, os.environ)
    given = extended(given, roots, train=wanted, model=path)
    flags = {
        stage: [value] for stage, value in (("rl", options.rl_wandb_run_id), ("sft", options.sft_wandb_run_id)) if value
    }
    run_update(database, given, options.scan(wandb_flags=flags), warn=warn_line, kind="index")
    with reading(database, warn=warn_line) as connection:
        checkpoint = find_checkpoint(connection, path, base, "the scan found no checkpoint there")
        return result(details.show_model(connection, checkpoint))


@dataclass(kw_only=True)
class PruneOptions(DatabaseOptions):
    """The flags of ``watcher prune``."""

    missing_days: Annotated[float, number("How long it must have been missing.", least=0, default="30")] = 30.0
    dry_run: Annotated[bool, boolean("Only count.", name="dry-run")] = False
    wait: Annotated[float, number("Seconds to wait for a scan.", least=0, default="0")] = 0.0


def prune(options: Annotated[PruneOptions | None, Flat] = None) -> Result:
    """Forget what has been missing for long."""
    options = options or PruneOptions()
    answer = rebuild.prune(
        database_of(options),
        missing_days=options.missing_days,
        dry_run=options.dry_run,
        wait=options.wait,
        warn=warn_line,
    )
    return result(answer)


def config(options: Annotated[ScanFlags | None, Flat] = None) -> Result:
    """Print the effective roots, where each comes from, and whether it exists."""
    options = options or ScanFlags()
    database = database_of(options)
    stored: Mapping[str, Any] = {}
    if database.exists():
        connection = open_reader(database, warn=warn_line)
        stored = stored_roots(connection)
        connection.close()
    roots = choose_roots(options.given(), stored, os.environ)
    rows = [row._asdict() for row in report_roots(roots)]
    return result({"database": str(database), "roots": rows, "effective": roots.to_json()})


@dataclass(kw_only=True)
class ServeFlags(ScanFlags):
    """The flags of ``watcher serve``."""

    host: Annotated[str, text("Address to bind.", panel="Server", default="127.0.0.1")] = "127.0.0.1"
    port: Annotated[int, integer("Port; 0 picks a free one.", least=0, most=65535, panel="Server", default="8790")] = (
        8790
    )
    scan_interval: Annotated[
        float, number("Seconds between scans; 0 never scans.", least=0, panel="Server", default="0")
    ] = 0.0
    allowed_host: Annotated[
        tuple[str, ...], repeated("A further name of the Host header.", split_commas=True, panel="Server")
    ] = ()
    auth: Annotated[
        str, choice("Ask for a token: auto unless only this machine can connect.", ("auto", "token", "none"))
    ] = "auto"
    token_file: Annotated[Path | None, path("File that holds the token.", panel="Server")] = None
    base_path: Annotated[str, text("Path under which everything is served.", panel="Server", default="/")] = "/"
    wandb_secret: Annotated[
        str | None, text("Beaker secret that holds the W&B key, when WANDB_API_KEY is not set.", panel="Server")
    ] = None
    open: Annotated[bool, boolean("Open the pages in the browser.", name="open", panel="Server")] = False
    reload: Annotated[bool, boolean("Accepted and ignored.", name="reload", panel="Server")] = False


def serve(options: Annotated[ServeFlags | None, Flat] = None) -> int:
    """Serve the pages and the JSON interface until Ctrl-C."""
    options = options or ServeFlags()
    if options.reload:
        warn(["--reload is ignored"])
    settings = serving.ServeOptions(
        host=options.host,
        port=options.port,
        scan_interval=options.scan_interval,
        allowed_hosts=options.allowed_host,
        auth=options.auth,
        token_file=options.token_file,
        base_path=options.base_path,
        open=options.open,
        wandb_secret=options.wandb_secret,
    )
    return serving.serve(database_of(options), settings, options.given(), options.scan(), warn=warn_line)
