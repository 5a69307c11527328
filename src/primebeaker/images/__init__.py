"""The catalogue of training images, their Dockerfiles, and the commands that list, pull, build and publish them."""

from __future__ import annotations

from primebeaker.images.catalog import (
    Catalog,
    Location,
    Role,
    default_image_uri,
    image_locations,
    load_catalog,
    parse_catalog,
)

__all__ = [
    "Catalog",
    "Location",
    "Role",
    "default_image_uri",
    "image_locations",
    "load_catalog",
    "parse_catalog",
]
