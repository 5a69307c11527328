"""Ask the engine, before submitting, whether the secrets and images of a spec are there.

The check never blocks a launch that Beaker itself would accept: what cannot be answered is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import ImageRecord
from primebeaker.errors import ExternalError, UserError

__all__ = ["preflight_stack"]

_MOST_QUERIES = 8


@dataclass(frozen=True)
class _Unanswered:
    reason: str


def preflight_stack(
    engine: Engine, spec: Mapping[str, Any], *, workspace: str, image_fields: Mapping[str, Sequence[str]]
) -> list[str]:
    """Check the secrets and images a spec names.

    Args:
        engine: Where the spec would run.
        spec: A Beaker v2 spec.
        workspace: Its workspace.
        image_fields: For each image, the config fields it came from.

    Returns:
        Warnings.

    Raises:
        ExternalError: A secret or an image is missing; all of them are named.
    """
    secrets = sorted({secret for task in spec["tasks"] for secret in _secrets(task)})
    images = sorted({task["image"]["beaker"] for task in spec["tasks"] if task.get("image", {}).get("beaker")})
    with ThreadPoolExecutor(_MOST_QUERIES) as pool:
        listing = pool.submit(_answer, lambda: engine.secret_list(workspace)) if secrets else None
        records = {
            image: pool.submit(_answer, lambda image=image: engine.image_get(image))  # type: ignore[misc]
            for image in images
        }
    warnings: list[str] = []
    problems: list[str] = []
    if listing is not None:
        _judge_secrets(engine, listing.result(), secrets, workspace, warnings, problems)
    for image, record in records.items():
        fields = ", ".join(image_fields.get(image, ())) or "image"
        _judge_image(record.result(), image, fields, workspace, warnings, problems)
    if problems:
        raise ExternalError("; ".join(problems))
    return warnings


def _answer(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except (ExternalError, UserError) as error:
        return _Unanswered(str(error))


def _secrets(task: Mapping[str, Any]) -> list[str]:
    return [variable["secret"] for variable in task.get("envVars", ()) if variable.get("secret")]


def _judge_secrets(
    engine: Engine,
    listed: Sequence[str] | _Unanswered,
    secrets: Sequence[str],
    workspace: str,
    warnings: list[str],
    problems: list[str],
) -> None:
    if isinstance(listed, _Unanswered):
        warnings.append(f"secrets of {workspace} were not checked: {listed.reason}")
        return
    # Beaker compares secret names without case.
    known = {name.lower() for name in listed}
    missing = [secret for secret in secrets if secret.lower() not in known]
    found = [
        f"secret {secret!r} does not exist in workspace {workspace}; "
        f"write it with `beaker secret write --workspace {workspace} {secret}`"
        for secret in missing
    ]
    (warnings if engine.name == "local" else problems).extend(found)


def _judge_image(
    record: ImageRecord | _Unanswered | None,
    image: str,
    fields: str,
    workspace: str,
    warnings: list[str],
    problems: list[str],
) -> None:
    build = f"build it with `primebeaker services images install --workspace={workspace}`"
    if isinstance(record, _Unanswered):
        warnings.append(f"image {image!r} ({fields}) was not checked: {record.reason}")
    elif record is None:
        problems.append(f"image {image!r} ({fields}) does not exist; {build}")
    elif record.committed is None:
        problems.append(f"image {image!r} ({fields}) is not committed; {build}")
    elif record.workspace is not None and record.workspace != workspace:
        warnings.append(f"image {image!r} ({fields}) belongs to workspace {record.workspace}, not to {workspace}")
