"""``primebeaker rl resume`` and ``rl checkpoints``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.beaker.engine import Engine, choose_engine_name
from primebeaker.cli.app import new_app
from primebeaker.cli.engines import open_engine
from primebeaker.cli.flags import boolean, integer, path, text
from primebeaker.cli.launching import (
    PlacementOptions,
    ServiceOptions,
    engine_flag,
    explain_unknown_flags,
    given_settings,
)
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.tables import columns
from primebeaker.config import TomlDocument, detect_generation
from primebeaker.errors import Mistakes, UserError
from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule, rl_rule_of
from primebeaker.prime_rl.checkpoints import list_steps, summary_of_missing
from primebeaker.resume.run import dry_run, run_resume
from primebeaker.resume.source import ResumeSettings

__all__ = ["checkpoints_app", "resume_app"]


@dataclass(kw_only=True)
class ResumeOptions(ServiceOptions, PlacementOptions):
    """The flags of ``rl resume``; what is not given is as in the source."""

    from_experiment: Annotated[str | None, text("The source: id or owner/name (required).", panel="Source")] = None
    config: Annotated[Path | None, path("Training TOML to resume with.", panel="Source", default="the source's")] = None
    resume_step: Annotated[
        int | None, integer("Step to continue after.", panel="Source", default="newest complete step")
    ] = None
    output_dir: Annotated[
        Path | None, path("Another spelling of the source's output directory.", panel="Source", default="the source's")
    ] = None
    experiment_name: Annotated[
        str | None, text("Base of the new name.", panel="Runtime", default="the source's name")
    ] = None
    attempt_id: Annotated[str | None, text("Id of this attempt.", panel="Runtime", default="new uuid4 hex")] = None
    dry_run: Annotated[bool, boolean("Only plan.", name="dry-run", panel="Output")] = False
    skip_preflight: Annotated[
        bool, boolean("Do not ask for account, secrets and image first.", name="skip-preflight", panel="Output")
    ] = False
    force: Annotated[
        bool, boolean("Skip the checks that may be wrong about a dead run.", name="force", panel="Output")
    ] = False
    rehearse: Annotated[
        bool, boolean("Continue a rehearsal as a rehearsal; needs --engine=local.", name="rehearse", panel="Output")
    ] = False
    engine: Annotated[str | None, engine_flag()] = None


def resume(options: Annotated[ResumeOptions | None, Parameter(name="*")] = None) -> Result:
    """Start a fresh complete topology from a step both sides finished; what is not given is as in the source."""
    options = options or ResumeOptions()
    mistakes = Mistakes()
    values = given_settings(options, ResumeSettings, mistakes)
    if options.from_experiment is None:
        mistakes.add(UserError("--from-experiment is missing", hint="pass the source's id"))
    mistakes.raise_if_any()
    settings = ResumeSettings(**values)
    engine = _rehearsing(settings, options.engine) if options.rehearse else open_engine(options.engine)
    document = dry_run(settings, engine) if options.dry_run else run_resume(settings, engine)
    warn(document["warnings"])
    return Result(document, text=lambda: _resume_text(document), template_safe=True)


def _rehearsing(settings: ResumeSettings, engine: str | None) -> Engine:
    if choose_engine_name(engine) != "local":
        raise UserError("--rehearse needs the embedded engine", hint="pass --engine=local")
    # Imported here: everybody else resumes without the rehearsal's parts.
    from primebeaker.rehearsal.resumed import RehearsingEngine

    return RehearsingEngine(settings.from_experiment)


def _resume_text(document: dict[str, Any]) -> str:
    found = document["resume"]
    rows = [
        ["source", f"{found['source_experiment_name']} ({found['source_experiment_id']})"],
        ["continues after", f"step {found['checkpoint']['step']}"],
        ["experiment", found["experiment_name"]],
        ["attempt", found["attempt_id"]],
        ["manifest", found["manifest_path"]],
        *(["moves aside", f"{move['from']} -> {move['to']}"] for move in found["moves_planned"]),
    ]
    if "child_experiment_id" in document:
        rows.append(["submitted as", str(document["child_experiment_url"] or document["child_experiment_id"])])
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


@dataclass(kw_only=True)
class CheckpointOptions(OutputOptions):
    """The flags of ``rl checkpoints``."""

    output_dir: Annotated[Path | None, path("Output directory of the run (required).")] = None
    toml: Annotated[Path | None, path("Training TOML, for trainer ranks and layout.")] = None
    ranks: Annotated[int | None, integer("Trainer ranks, instead of the TOML's.", least=1)] = None


def checkpoints(options: Annotated[CheckpointOptions | None, Parameter(name="*")] = None) -> Result:
    """List every checkpoint step with what it lacks."""
    options = options or CheckpointOptions()
    if options.output_dir is None:
        raise UserError("--output-dir is missing")
    if options.toml is None and options.ranks is None:
        raise UserError("--toml is missing", hint="pass it, or --ranks")
    values: dict[str, Any] = {}
    generation = None
    if options.toml is not None:
        values = TomlDocument.from_path(options.toml).values
        generation = detect_generation(values, "rl")
    rule = rl_rule_of(values, generation=generation or "0.7") if options.toml is not None else None
    if options.ranks is not None:
        rule = rl_rule(options.ranks, policy_files=rule.policy_files if rule else False)
    assert rule is not None
    other = (values.get("ckpt") or {}).get("output_dir")
    layout = find_layout(
        options.output_dir, generation=generation, checkpoint_dir=Path(other) if isinstance(other, str) else None
    )
    states = list_steps(layout, rule)
    if not states:
        raise UserError(f"no checkpoint steps under {layout.trainer_checkpoints} and {layout.orchestrator_checkpoints}")
    latest = max((state.step for state in states if state.complete), default=None)
    document = {
        "output_dir": str(options.output_dir),
        "layout": layout.generation,
        "expected_shards": rule.ranks,
        "steps": [state.as_dict() for state in states],
        "latest": latest,
    }

    def readable() -> str:
        rows = [
            [
                str(state.step),
                "complete" if state.complete else "incomplete",
                str(state.bytes),
                summary_of_missing(state.missing),
            ]
            for state in states
        ]
        return columns(["step", "state", "bytes", "missing"], rows)

    return Result(document, text=readable)


resume_app = new_app("resume", resume.__doc__ or "")
resume_app.default(explain_unknown_flags(resume, ResumeOptions, {"--toml": "a resume takes --config"}))
checkpoints_app = new_app("checkpoints", checkpoints.__doc__ or "")
checkpoints_app.default(checkpoints)
