"""LiteRegistry URIs as a launch accepts them."""

from __future__ import annotations

import re
from urllib.parse import unquote

from primebeaker.errors import UserError
from primebeaker.launch.paths import Mount
from primebeaker.redaction import mask_url_passwords

__all__ = ["SCHEMES", "check_registry", "has_password"]

SCHEMES = ("redis", "rediss", "head+file", "head+sqlite", "head+redis", "file", "sqlite")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):(?://)?(?P<rest>.*)", re.DOTALL)


def check_registry(uri: str, mount: Mount | None, flag: str = "--registry") -> None:
    """Check the form of a registry URI, and that a registry kept in a file lies under the mount.

    Raises:
        UserError: The scheme is not one LiteRegistry has, nothing follows it, or the file is outside the mount.
    """
    shown = mask_url_passwords(uri)
    match = _URI.fullmatch(uri)
    if match is None or match["scheme"] not in SCHEMES or not match["rest"].strip("/") or re.search(r"[\s\0]", uri):
        raise UserError(f"{flag} = {shown!r}: expected a registry URI with one of the schemes {', '.join(SCHEMES)}")
    if mount is not None and match["scheme"].removeprefix("head+") in ("file", "sqlite"):
        path = "/" + unquote(match["rest"].partition("?")[0]).lstrip("/")
        mount.task_path(path, f"{flag} = {shown}")


def has_password(uri: str) -> bool:
    """Whether the URI carries a password."""
    return mask_url_passwords(uri) != uri
