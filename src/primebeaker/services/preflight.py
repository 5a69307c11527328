"""Ask the engine, before submitting, whether the secrets and images of a stack's spec are there.

The check never blocks a launch that Beaker itself would accept: what cannot be answered is a warning.
"""

from __future__ import annotations

from primebeaker.beaker.engine import Engine, PreflightAnswers
from primebeaker.errors import ExternalError
from primebeaker.services.deployment import Deployment

__all__ = ["preflight_stack"]


def preflight_stack(engine: Engine, deployment: Deployment) -> list[str]:
    """Check the secrets and images that a planned stack names.

    Returns:
        Warnings.

    Raises:
        ExternalError: There is no account, or a secret or an image is missing; all missing ones are named.
    """
    tasks = deployment.spec["tasks"]
    secrets = sorted(
        {variable["secret"] for task in tasks for variable in task.get("envVars", ()) if variable.get("secret")}
    )
    images = sorted({task["image"]["beaker"] for task in tasks if task.get("image", {}).get("beaker")})
    answers = engine.preflight(deployment.workspace, images)
    warnings: list[str] = []
    missing = _missing_secrets(answers, secrets, deployment.workspace, warnings)
    missing += [
        problem for image in images if (problem := _image_problem(answers, image, deployment, warnings)) is not None
    ]
    if missing and engine.name == "local":
        # The embedded engine runs tasks in this machine's own environment.
        return [*warnings, *missing]
    if missing:
        raise ExternalError("; ".join(missing))
    return warnings


def _missing_secrets(answers: PreflightAnswers, secrets: list[str], workspace: str, warnings: list[str]) -> list[str]:
    if answers.secrets is None:
        if secrets:
            warnings.append(f"the secrets of {workspace} were not checked: {answers.problems.get('secrets')}")
        return []
    # Beaker compares secret names without case.
    known = {name.lower() for name in answers.secrets}
    return [
        f"secret {secret!r} does not exist in workspace {workspace} "
        f"(write it with `beaker secret write --workspace {workspace} {secret}`)"
        for secret in secrets
        if secret.lower() not in known
    ]


def _image_problem(answers: PreflightAnswers, image: str, deployment: Deployment, warnings: list[str]) -> str | None:
    fields = [name for name, value in deployment.config.items() if name.endswith("_image") and value == image]
    shown = f"{' and '.join(fields)}: image {image!r}" if fields else f"image {image!r}"
    build = f"(build it with `primebeaker services images install --workspace={deployment.workspace}`)"
    if image in answers.problems:
        warnings.append(f"{shown} was not checked: {answers.problems[image]}")
        return None
    record = answers.images.get(image)
    if record is None:
        return f"{shown} does not exist {build}"
    if not record.id:
        warnings.append(f"{shown} was not checked: the answer has no id")
        return None
    if record.committed is None:
        return f"{shown} is not committed {build}"
    if record.workspace is not None and record.workspace != deployment.workspace:
        warnings.append(f"{shown} belongs to workspace {record.workspace}, not to {deployment.workspace}")
    return None
