"""Ask the engine, before submitting, whether the secrets and images of a spec are there.

The check never blocks a launch that Beaker itself would accept: what cannot be answered is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.beaker.engine import Engine, PreflightAnswers
from primebeaker.errors import ExternalError
from primebeaker.services.deployment import Deployment

__all__ = ["Checked", "check_spec", "check_stack", "preflight_stack"]


@dataclass
class Checked:
    """What is known about a spec's secrets and images."""

    warnings: list[str] = field(default_factory=list)
    #: What Beaker would refuse; each is one complete message.
    problems: list[str] = field(default_factory=list)
    #: Secret -> its name as the workspace spells it.
    spellings: dict[str, str] = field(default_factory=dict)


def preflight_stack(engine: Engine, deployment: Deployment) -> list[str]:
    """Check the secrets and images that a planned stack names.

    Returns:
        Warnings.

    Raises:
        ExternalError: There is no account, or a secret or an image is missing; all missing ones are named.
    """
    checked = check_stack(engine, deployment)
    if checked.problems:
        raise ExternalError("; ".join(checked.problems))
    return checked.warnings


def check_stack(engine: Engine, deployment: Deployment) -> Checked:
    """The same, without raising."""

    def label(image: str) -> str:
        fields = [name for name, value in deployment.config.items() if name.endswith("_image") and value == image]
        return f"{' and '.join(fields)}: image {image!r}" if fields else f"image {image!r}"

    mend = f"build it with `primebeaker services images install --workspace={deployment.workspace}`"
    return check_spec(engine, deployment.spec, deployment.workspace, label=label, image_mend=mend)


def check_spec(
    engine: Engine, spec: Mapping[str, Any], workspace: str, *, label: Callable[[str], str], image_mend: str
) -> Checked:
    """Check the secrets and images that a Beaker v2 spec names.

    Args:
        engine: Where it would run.
        spec: The spec.
        workspace: Its workspace.
        label: How an image is called in messages.
        image_mend: What to do about a missing image.
    """
    secrets = sorted({one["secret"] for task in spec["tasks"] for one in task.get("envVars", ()) if one.get("secret")})
    local = engine.name == "local"
    images = sorted({task["image"]["beaker"] for task in spec["tasks"] if task.get("image", {}).get("beaker")})
    if local:
        # The embedded engine runs tasks in this machine's own environment, and takes secrets from it too.
        images, secrets = [], [name for name in secrets if name not in os.environ]
    answers = engine.preflight(workspace, images)
    checked = Checked()
    writer = "primebeaker local" if local else "beaker"
    _judge_secrets(answers, secrets, workspace, checked, writer)
    for image in images:
        _judge_image(answers, image, workspace, label(image), image_mend, checked)
    if local:
        checked.warnings += checked.problems
        checked.problems = []
    return checked


def _judge_secrets(
    answers: PreflightAnswers, secrets: list[str], workspace: str, checked: Checked, writer: str
) -> None:
    if answers.secrets is None:
        if secrets:
            checked.warnings.append(f"the secrets of {workspace} were not checked: {answers.problems.get('secrets')}")
        return
    # Beaker compares secret names without case.
    known = {name.lower(): name for name in answers.secrets}
    exact = set(answers.secrets)
    for secret in secrets:
        if secret in exact or secret.lower() in known:
            checked.spellings[secret] = secret if secret in exact else known[secret.lower()]
        else:
            checked.problems.append(
                f"secret {secret!r} does not exist in workspace {workspace} "
                f"(write it with `{writer} secret write --workspace {workspace} {secret}`)"
            )


def _judge_image(
    answers: PreflightAnswers, image: str, workspace: str, label: str, mend: str, checked: Checked
) -> None:
    if image in answers.problems:
        checked.warnings.append(f"{label} was not checked: {answers.problems[image]}")
        return
    record = answers.images.get(image)
    if record is None:
        checked.problems.append(f"{label} does not exist ({mend})")
    elif not record.id:
        checked.warnings.append(f"{label} was not checked: the answer has no id")
    elif record.committed is None:
        checked.problems.append(f"{label} is not committed ({mend})")
    elif record.workspace is not None and record.workspace != workspace:
        checked.warnings.append(f"{label} belongs to workspace {record.workspace}, not to {workspace}")
