"""Submit a launch: ask the engine what it knows, write the files, create the experiment once, write a receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primebeaker.beaker.engine import Engine, PreflightAnswers
from primebeaker.beaker.models import CreatedExperiment
from primebeaker.errors import ExternalError, Interrupted, UserError, UserErrors
from primebeaker.launch.files import write_launch_files, write_receipt
from primebeaker.launch.images import spec_image
from primebeaker.launch.plan import LaunchPlan
from primebeaker.launch.preview import masked, wandb_run

__all__ = ["Preflight", "create", "how_to_look", "preflight", "refuse_unready", "submit"]


@dataclass(frozen=True)
class Preflight:
    """A plan as the engine can run it, and what it had to say about it."""

    plan: LaunchPlan
    warnings: tuple[str, ...] = ()


def submit(plan: LaunchPlan, engine: Engine, *, skip_preflight: bool = False) -> dict[str, Any]:
    """Submit a launch and return its receipt.

    Args:
        plan: The launch.
        engine: Where it runs.
        skip_preflight: Do not ask the engine about account, secrets and image first.

    Raises:
        UserError: Something a preview only warns about, or a file that cannot be written.
        ExternalError: The engine refused, or its answer is unclear; the creating call is never repeated.
        Interrupted: Interrupted; the message says what may exist.
    """
    refuse_unready(plan)
    warnings = [*plan.warnings, *plan.submit_warnings]
    if not skip_preflight:
        checked = preflight(plan, engine)
        plan = checked.plan
        warnings += checked.warnings
    try:
        write_launch_files(plan)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted while the launch files were written; no experiment was created") from error
    return create(plan, engine, warnings)


def refuse_unready(plan: LaunchPlan) -> None:
    """Refuse what a preview only warns about.

    Raises:
        UserError: A placeholder is left, or the output directory holds checkpoints of another launch.
    """
    if plan.refusals:
        raise plan.refusals[0] if len(plan.refusals) == 1 else UserErrors(plan.refusals)


def preflight(plan: LaunchPlan, engine: Engine) -> Preflight:
    """Ask the engine for account, secrets and image before anything is written.

    Raises:
        ExternalError: Not logged in, a secret is missing, or the image is missing or unfinished. On the embedded
            engine a missing secret is a warning: the submitting shell may provide it.
        Interrupted: Interrupted; nothing was written or created.
    """
    image = spec_image(plan.image).get("beaker")
    try:
        answers = engine.preflight(plan.settings.workspace, [image] if image else [])
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted during the pre-flight; nothing was written or created") from error
    warnings = [f"pre-flight: {problem}; going on without this check" for problem in answers.problems.values()]
    if answers.secrets is not None:
        plan, missing = _match_secrets(plan, answers.secrets)
        if missing:
            message = _missing_secrets(missing, plan.settings.workspace, engine.name)
            if engine.name != "local":
                raise message
            warnings.append(str(message))
    if image is not None and image in answers.images:
        warnings += _check_image(answers, image, plan.settings.workspace)
    return Preflight(plan, tuple(warnings))


def create(plan: LaunchPlan, engine: Engine, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Create the experiment whose files are written, once, and write the receipt.

    Raises:
        ExternalError: The engine refused, or its answer is unclear.
        Interrupted: Interrupted; the experiment may exist.
    """
    try:
        created = engine.create(Path(plan.paths.spec), name=plan.experiment_name, workspace=plan.settings.workspace)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted: the experiment {plan.experiment_name} may exist; {how_to_look(plan, engine)} "
            f"(spec file: {plan.paths.spec})"
        ) from error
    receipt = _receipt(plan, engine, created, [*warnings, *_unrecognised(created)])
    try:
        write_receipt(plan, receipt)
    except UserError as error:
        # The experiment exists; that the receipt does not must not hide it.
        receipt["warnings"].append(f"the receipt was not written: {error}")
    return receipt


def how_to_look(plan: LaunchPlan, engine: Engine) -> str:
    """How to find out whether the experiment exists."""
    workspace = plan.settings.workspace
    command = (
        f"primebeaker local list --workspace={workspace}"
        if engine.name == "local"
        else f"beaker workspace experiments {workspace}"
    )
    return f"look with '{command}' before you submit again"


def _match_secrets(plan: LaunchPlan, listed: Sequence[str]) -> tuple[LaunchPlan, list[str]]:
    """The plan with secrets as the workspace spells them (Beaker ignores their case), and the names it lacks."""
    by_lower = {name.lower(): name for name in listed}
    exact = set(listed)
    known = {
        name: name if name in exact else by_lower[name.lower()]
        for name in plan.secrets.values()
        if name in exact or name.lower() in by_lower
    }
    missing = sorted({name for name in plan.secrets.values() if name not in known})
    return plan.with_secret_names(known), missing


def _missing_secrets(missing: Sequence[str], workspace: str, engine: str) -> ExternalError:
    one = len(missing) == 1
    program = "primebeaker local" if engine == "local" else "beaker"
    return ExternalError(
        f"workspace {workspace} lacks the secret{'' if one else 's'} {', '.join(missing)}",
        hint="add "
        + ("it" if one else "each")
        + f" with '{program} secret write --workspace {workspace} {missing[0] if one else 'NAME'}'",
    )


def _check_image(answers: PreflightAnswers, image: str, workspace: str) -> list[str]:
    record = answers.images[image]
    if record is None:
        raise ExternalError(f"--image: Beaker knows no image {image}", hint="see 'primebeaker-images list'")
    if record.committed is None:
        raise ExternalError(f"--image: the image {image} is not committed: its upload has not ended")
    if record.workspace and record.workspace != workspace:
        return [f"--image: the image {image} belongs to workspace {record.workspace}, not to {workspace}"]
    return []


def _unrecognised(created: CreatedExperiment) -> list[str]:
    if created.experiment_id is not None:
        return []
    return ["the engine's answer names no experiment; it is under 'stdout'"]


def _receipt(plan: LaunchPlan, engine: Engine, created: CreatedExperiment, warnings: Sequence[str]) -> dict[str, Any]:
    return {
        "experiment_name": plan.experiment_name,
        "launch_id": plan.launch_id,
        "experiment_id": created.experiment_id,
        "experiment_url": created.url,
        "workspace": plan.settings.workspace,
        "engine": engine.name,
        "submitted_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "spec_path": plan.paths.spec,
        "stdout": created.stdout,
        "wandb_run": wandb_run(plan),
        "warnings": masked(list(dict.fromkeys(warnings))),
    }
