"""``primebeaker env``: list, show, check and try the bundled environments."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.env_output import conversation, described, figures_table, progress_line
from primebeaker.cli.env_stand_in import STAND_IN, stand_in_model
from primebeaker.cli.flags import integer, number, path, repeated, text
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.tables import columns
from primebeaker.config.document import TomlDocument
from primebeaker.config.environments import bundled_module, entries, unknown_bundled_ids
from primebeaker.environments.inspection import (
    CheckedEnvironment,
    check_environment,
    describe,
    listing,
    parse_arguments,
)
from primebeaker.environments.reachable import silent_services
from primebeaker.environments.trying import Plan, Progress, SavedRollouts, run_rollouts, summarize
from primebeaker.errors import Mistakes, UserError

app = new_app("env", "List, show, check and try the bundled environments.")


@app.command(name="list")
def list_environments(options: Annotated[OutputOptions | None, Parameter(name="*")] = None) -> Result:
    """List the environments of this installation."""
    found = listing()

    def readable() -> str:
        rows = [(entry["name"], ", ".join(entry["tools"]), entry["summary"]) for entry in found]
        return columns(("NAME", "TOOLS", "WHAT IT IS"), rows)

    return Result(found, text=readable)


@app.command
def show(name: str, /, options: Annotated[OutputOptions | None, Parameter(name="*")] = None) -> Result:
    """Show one environment: arguments, tools, rewards with their formulas, and a TOML block to paste."""
    found = describe(name)
    return Result(found, text=lambda: described(found))


@dataclass(kw_only=True)
class ArgumentOptions(OutputOptions):
    """The arguments of an environment."""

    args: Annotated[
        tuple[str, ...],
        repeated("Argument of the environment as KEY=VALUE, or a JSON object; repeats.", panel="Environment"),
    ] = ()


@dataclass(kw_only=True)
class CheckOptions(ArgumentOptions):
    """What ``env check`` takes."""

    toml: Annotated[Path | None, path("Check every bundled environment this RL TOML names.", panel="Environment")] = (
        None
    )


@app.command
def check(name: str | None = None, /, options: Annotated[CheckOptions | None, Parameter(name="*")] = None) -> Result:
    """Check arguments, templates and every row of an environment, or of all that a TOML names; contacts no service."""
    options = options or CheckOptions()
    if (name is None) == (options.toml is None):
        raise UserError(
            "expected a NAME with --args, or --toml", hint="for example: primebeaker env check --toml rl.toml"
        )
    if options.toml is not None:
        if options.args:
            raise UserError("--args goes with a NAME; with --toml the arguments are those of the TOML")
        results = _check_toml(options.toml)
    else:
        results = [_check_one(name or "", parse_arguments(options.args))]

    def readable() -> str:
        rows = [
            (entry.get("key"), entry["name"], entry["rows"], "ok" if entry["checked"] else "not ours")
            for entry in results
        ]
        return columns(("KEY", "ENVIRONMENT", "ROWS", "STATE"), rows)

    return Result(results, text=readable)


def _check_one(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    checked = check_environment(name, arguments)
    warn(checked.warnings)
    return {"name": checked.name, "rows": checked.rows, "warnings": list(checked.warnings), "checked": True}


def _check_toml(file: Path) -> list[dict[str, Any]]:
    document = TomlDocument.from_path(file)
    mistakes = Mistakes()
    results: list[dict[str, Any]] = []
    unknown = {found.path: found for found in unknown_bundled_ids(document.values)}
    for place, entry in entries(document.values):
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        legacy = entry.get("legacy")
        identifier = legacy.get("id") if isinstance(legacy, dict) else None
        if not isinstance(identifier, str):
            continue
        module = bundled_module(identifier)
        if (*place, "legacy", "id") in unknown:
            near = unknown[*place, "legacy", "id"].hint
            wrong = f"{identifier!r} is no environment of this package"
            mistakes.add(UserError(wrong, hint=near or "primebeaker env list", file=file, key=f"{key}.legacy.id"))
            continue
        if module is None:
            results.append({"key": key, "name": identifier, "rows": None, "warnings": [], "checked": False})
            continue
        arguments = legacy.get("args", {}) if isinstance(legacy, dict) else {}
        if not isinstance(arguments, dict):
            mistakes.add(UserError("expected a table of arguments", file=file, key=f"{key}.legacy.args"))
            continue
        try:
            results.append({"key": key, **_check_one(module, arguments)})
        except UserError as error:
            mistakes.add(UserError(str(error), file=file, key=f"{key}.legacy.args"))
    mistakes.raise_if_any()
    if not results:
        warn([f"{file}: no environment with a legacy.id"])
    return results


@dataclass(kw_only=True)
class TryOptions(ArgumentOptions):
    """What ``env try`` takes."""

    model: Annotated[
        str | None, text("Name of the model at the endpoint; 'stand-in' without --base-url needs none.", panel="Model")
    ] = None
    base_url: Annotated[str | None, text("OpenAI-compatible endpoint, ending in /v1.", panel="Model")] = None
    api_key_var: Annotated[
        str, text("Environment variable with the endpoint's key.", panel="Model", default="OPENAI_API_KEY")
    ] = "OPENAI_API_KEY"
    max_tokens: Annotated[int | None, integer("Most tokens of one reply.", least=1, panel="Model")] = None
    temperature: Annotated[float | None, number("Sampling temperature.", least=0, panel="Model")] = None
    rollouts: Annotated[int, integer("How many rollouts.", least=1, panel="Run", default="8")] = 8
    concurrency: Annotated[int, integer("How many at a time.", least=1, panel="Run", default="8")] = 8
    save: Annotated[Path | None, path("Keep rollouts in this JSONL file; a rerun continues it.", panel="Run")] = None
    show: Annotated[int, integer("Print so many conversations.", least=0, panel="Output", default="0")] = 0


@app.command(name="try")
def try_environment(name: str, /, options: Annotated[TryOptions | None, Parameter(name="*")] = None) -> Result:
    """Run real rollouts against an OpenAI-compatible endpoint and show rewards and metrics."""
    options = options or TryOptions()
    mistakes = Mistakes()
    if options.model is None:
        mistakes.add(UserError("--model is missing: the model's name at the endpoint"))
    if options.base_url is None and options.model != STAND_IN:
        wanted = "an OpenAI-compatible endpoint such as http://127.0.0.1:8000/v1"
        without = f"without one at hand, --model {STAND_IN} draws right and wrong replies"
        mistakes.add(UserError(f"--base-url is missing: {wanted}", hint=without))
    if options.base_url is not None and not options.base_url.startswith(("http://", "https://")):
        mistakes.add(UserError(f"--base-url = {options.base_url!r}: expected an http:// or https:// URL"))
    mistakes.raise_if_any()
    arguments = parse_arguments(options.args)
    checked = check_environment(name, arguments)
    warn([*checked.warnings, *silent_services(checked)])
    sampling = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    sampling = {key: value for key, value in sampling.items() if value is not None}
    model = options.model or ""
    identity = {"environment": checked.name, "args": arguments, "model": model, "sampling": sampling}
    saved = SavedRollouts(options.save, identity)
    started = time.monotonic()
    with _endpoint(options, checked) as base_url:
        plan = Plan(
            model=model,
            base_url=base_url,
            rollouts=options.rollouts,
            concurrency=options.concurrency,
            api_key_var=options.api_key_var,
            sampling=sampling,
        )
        rollouts = run_rollouts(checked, plan, saved, on_progress=_show_progress)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    summary = summarize(rollouts)
    data = {
        "environment": checked.name,
        "model": model,
        "rows": checked.rows,
        "seconds": round(time.monotonic() - started, 3),
        **asdict(summary),
    }

    def readable() -> str:
        shown = [conversation(entry) for entry in rollouts[: options.show]]
        return "\n\n".join([*shown, figures_table(data)])

    # Without a single scored rollout the figures say nothing: the endpoint or a service has failed.
    if not summary.scored:
        asked = f"--base-url = {options.base_url}" if options.base_url else f"--model = {STAND_IN}"
        warn([f"{asked}: no rollout could be scored; the first error: {summary.first_error}"])
    return Result(data, text=readable, exit_code=0 if summary.scored else 3)


@contextmanager
def _endpoint(options: TryOptions, checked: CheckedEnvironment) -> Iterator[str]:
    if options.base_url is not None:
        yield options.base_url
        return
    rows = checked.environment.get_dataset()
    with stand_in_model([rows[number] for number in range(min(options.rollouts, len(rows)))]) as base_url:
        yield base_url


def _show_progress(progress: Progress) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{progress_line(progress)}")
        sys.stderr.flush()
