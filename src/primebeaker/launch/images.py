"""Image references: what the user writes, and what the spec carries."""

from __future__ import annotations

import re

from primebeaker.errors import UserError
from primebeaker.images import default_image_uri

__all__ = ["is_immutable", "resolve_image", "spec_image"]

_BEAKER_ID = re.compile(r"01[0-9A-HJKMNP-TV-Z]{24}", re.ASCII)


def resolve_image(image: str | None, workspace: str) -> str:
    """The image of a launch: ``--image``, else the catalogued default of the workspace.

    Raises:
        UserError: The reference is malformed, or nothing is catalogued for the workspace.
    """
    if image is None:
        return default_image_uri(workspace)
    bare = image.removeprefix("beaker://").removeprefix("docker://")
    if not bare or re.search(r"[\s\x00-\x1f\x7f]", image):
        raise UserError(f"--image = {image!r}: expected beaker://ID, docker://REFERENCE or a Docker reference")
    return image


def spec_image(image: str) -> dict[str, str]:
    """The ``image`` object of a task."""
    if image.startswith("beaker://"):
        return {"beaker": image.removeprefix("beaker://")}
    return {"docker": image.removeprefix("docker://")}


def is_immutable(image: str) -> bool:
    """Whether the reference can only ever mean the same bytes: a Beaker id, or a Docker digest."""
    source = spec_image(image)
    if "beaker" in source:
        return _BEAKER_ID.fullmatch(source["beaker"]) is not None
    return "@sha256:" in source["docker"]
