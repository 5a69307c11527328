"""Import a local image into Beaker, and enter it into the catalogue of a checkout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from primebeaker.errors import ExternalError, UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.images.catalog import Catalog, parse_catalog

__all__ = ["add_location", "check_catalog", "location_of_record", "publish_image"]


def publish_image(upload: Callable[[], str], record_of: Callable[[str], Mapping[str, Any] | None]) -> dict[str, Any]:
    """Import an image and describe it as the catalogue does.

    Args:
        upload: Imports it and returns its Beaker id.
        record_of: Beaker's record of an id, or None.

    Raises:
        ExternalError: Beaker refused, or the image it has is not finished.
    """
    identifier = upload()
    record = record_of(identifier)
    if record is None:
        raise ExternalError(f"beaker imported {identifier} but shows no record of it")
    return location_of_record(identifier, record)


def location_of_record(identifier: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The catalogue's entry of an image record.

    Raises:
        ExternalError: The image is not committed.
    """
    committed = record.get("committed")
    if not isinstance(committed, str) or committed.startswith("0001-"):
        raise ExternalError(f"the image {identifier} is not committed: its upload has not ended")
    workspace = record.get("workspaceRef")
    return {
        "immutable_uri": f"beaker://{identifier}",
        "name": record.get("fullName"),
        "workspace": workspace.get("fullName") if isinstance(workspace, Mapping) else None,
        "created": record.get("created"),
        "committed": committed,
        "size_bytes": record.get("size"),
    }


def check_catalog(catalog: Path, role: str | None) -> tuple[str, Catalog]:
    """The text of a catalogue file and what it says, once it is known to have the role.

    Raises:
        UserError: The file is no catalogue or has no such role.
    """
    try:
        text = catalog.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=catalog) from error
    known = parse_catalog(text, str(catalog))
    known.locations(role)
    return text, known


def add_location(
    catalog: Path, location: Mapping[str, Any], *, role: str | None = None, make_default: bool = False
) -> bool:
    """Enter a location into a catalogue file; existing entries never change.

    Args:
        catalog: The file.
        location: The entry.
        role: The role it gets; by default the catalogue's default.
        make_default: Put it before the first entry of its workspace, which makes it the workspace's default.

    Returns:
        False when the URI is there already.

    Raises:
        UserError: The file is no catalogue, has no such role, or the entry does not fit.
    """
    text, known = check_catalog(catalog, role)
    name = role or known.default_base_role
    uris = {found.immutable_uri for one in known.roles.values() for found in one.locations}
    if location["immutable_uri"] in uris:
        return False
    document = json.loads(text)
    locations: list[dict[str, Any]] = document["roles"][name]["locations"]
    place = len(locations)
    if make_default:
        same = (index for index, entry in enumerate(locations) if entry["workspace"] == location["workspace"])
        place = next(same, place)
    locations.insert(place, dict(location))
    parse_catalog(json.dumps(document), str(catalog))
    atomic_write_json(catalog, document)
    return True
