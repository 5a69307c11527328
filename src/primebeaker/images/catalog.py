"""The catalogue of training images: which immutable Beaker image a workspace uses, and what it is rebuilt from.

Plain standard-library code: every preview reads it.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from primebeaker.errors import InternalError, UserError, did_you_mean

__all__ = ["Catalog", "Location", "Role", "default_image_uri", "image_locations", "load_catalog", "parse_catalog"]

SCHEMA_VERSION = 1
_URI = re.compile(r"beaker://01[0-9A-HJKMNP-TV-Z]{24}", re.ASCII)


@dataclass(frozen=True)
class Location:
    """One Beaker image. ``created`` and ``committed`` are RFC 3339 times as Beaker reports them."""

    role: str
    immutable_uri: str
    name: str
    workspace: str
    size_bytes: int
    created: str
    committed: str

    def as_dict(self) -> dict[str, Any]:
        """The location as ``list`` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class Role:
    """What a group of images is for, and where they are."""

    name: str
    purpose: str
    locations: tuple[Location, ...]
    rebuild_source: Mapping[str, str] | None = None
    provenance_note: str | None = None


@dataclass(frozen=True)
class Catalog:
    """The whole catalogue. The first location of a workspace is that workspace's default."""

    default_base_role: str
    roles: Mapping[str, Role]

    def locations(self, role: str | None = None) -> tuple[Location, ...]:
        """The locations of a role, by default of the default role.

        Raises:
            UserError: No such role.
        """
        name = role or self.default_base_role
        if name not in self.roles:
            raise UserError(
                f"unknown image role {name!r}; the catalogue has {', '.join(self.roles)}",
                hint=did_you_mean(name, self.roles),
            )
        return self.roles[name].locations


@cache
def load_catalog() -> Catalog:
    """The catalogue shipped with this package.

    Raises:
        InternalError: The file is malformed.
    """
    data = pkgutil.get_data("primebeaker.images", "catalog.json")
    assert data is not None
    text = data.decode()
    try:
        return parse_catalog(text)
    except UserError as error:
        raise InternalError(str(error)) from error


def parse_catalog(text: str, file: str = "catalog.json") -> Catalog:
    """Read and check a catalogue.

    Raises:
        UserError: It has another schema, a bad or repeated URI, or a missing field.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise UserError(f"not JSON: {error}", file=file) from error
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        found = raw.get("schema_version") if isinstance(raw, dict) else None
        raise UserError(f"schema_version = {found!r}: expected {SCHEMA_VERSION}", file=file)
    roles = raw.get("roles")
    if not isinstance(roles, dict) or not roles:
        raise UserError("roles: expected an object of roles", file=file)
    seen: set[str] = set()
    catalog = Catalog(
        default_base_role=str(raw.get("default_base_role")),
        roles={name: _role(file, name, role, seen) for name, role in roles.items()},
    )
    if not catalog.roles.get(catalog.default_base_role):
        raise UserError(f"default_base_role = {catalog.default_base_role!r}: no such role", file=file)
    return catalog


def _role(file: str, name: str, raw: Any, seen: set[str]) -> Role:
    if (
        not isinstance(raw, dict)
        or not isinstance(raw.get("purpose"), str)
        or not isinstance(raw.get("locations"), list)
    ):
        raise UserError(f"roles.{name}: expected purpose and locations", file=file)
    locations = tuple(
        _location(file, f"roles.{name}.locations[{index}]", name, location, seen)
        for index, location in enumerate(raw["locations"])
    )
    return Role(name, raw["purpose"], locations, raw.get("rebuild_source"), raw.get("provenance_note"))


def _location(file: str, where: str, role: str, raw: Any, seen: set[str]) -> Location:
    if not isinstance(raw, dict):
        raise UserError(f"{where}: expected an object", file=file)
    for key in ("immutable_uri", "name", "workspace", "created", "committed"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise UserError(f"{where}.{key}: expected a non-empty string", file=file)
    if isinstance(raw.get("size_bytes"), bool) or not isinstance(raw.get("size_bytes"), int) or raw["size_bytes"] < 1:
        raise UserError(f"{where}.size_bytes: expected a number of bytes", file=file)
    uri = raw["immutable_uri"]
    if not _URI.fullmatch(uri):
        raise UserError(f"{where}.immutable_uri = {uri!r}: expected beaker:// and an id of 26 characters", file=file)
    if uri in seen:
        raise UserError(f"{where}.immutable_uri = {uri!r}: this image is listed twice", file=file)
    seen.add(uri)
    return Location(role, uri, raw["name"], raw["workspace"], raw["size_bytes"], raw["created"], raw["committed"])


def image_locations(role: str | None = None) -> tuple[Location, ...]:
    """The catalogued locations of a role, by default of the training base.

    Raises:
        UserError: No such role.
    """
    return load_catalog().locations(role)


def default_image_uri(workspace: str | None = None) -> str:
    """The image a workspace trains on: its first location; without a workspace the first one of all.

    Raises:
        UserError: Nothing is catalogued for the workspace.
    """
    locations = image_locations()
    for location in locations:
        if workspace is None or location.workspace == workspace:
            return location.immutable_uri
    workspaces = ", ".join(dict.fromkeys(location.workspace for location in locations))
    raise UserError(
        f"--workspace = {workspace}: no image is catalogued for it (catalogued: {workspaces})", hint="pass --image"
    )
