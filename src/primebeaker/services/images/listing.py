"""The images of the installed companions, and what the workspace has of them."""

from __future__ import annotations

from typing import Any

from primebeaker.services.images.remote import BeakerImages
from primebeaker.services.images.table import stack_images
from primebeaker.services.stacks import STACKS, installed_version

__all__ = ["list_images"]


def list_images(images: BeakerImages | None) -> list[dict[str, Any]]:
    """One row an image: stack, distribution, version, launcher argument, Beaker name, and the ID where asked for.

    Args:
        images: The workspace's images; None leaves the IDs out.
    """
    rows: list[dict[str, Any]] = []
    for stack in STACKS.values():
        version = installed_version(stack)
        for image in stack_images(stack.name, local_search=True):
            row: dict[str, Any] = {
                "stack": stack.name,
                "distribution": stack.distribution,
                "version": version,
                "argument": image.argument,
                "image": image.name(version),
            }
            if images is not None:
                row["id"] = images.present(row["image"])
            rows.append(row)
    return rows
