"""Names that Beaker, the file system and a URL can all carry."""

from __future__ import annotations

import hashlib
import re

from primebeaker.errors import UserError

__all__ = ["LAUNCH_ID", "beaker_name", "check_beaker_name", "check_launch_id"]

GREATEST_NAME = 128
_GREATEST_DERIVED_NAME = 100
_KEPT_OF_LONG_NAME = 91
_LEGAL = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*", re.ASCII)
_ILLEGAL_RUN = re.compile(r"[^A-Za-z0-9._-]+")
LAUNCH_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


def beaker_name(run_name: str) -> str:
    """A legal Beaker name made from a run name, or an empty string when nothing legal is left.

    Each run of characters that Beaker refuses becomes one ``-``; leading and trailing ``-`` and ``.`` go; a name over
    100 characters keeps its first 91 and gets 8 digits of the run name's SHA-256.
    """
    name = _ILLEGAL_RUN.sub("-", run_name).strip("-.")
    if len(name) > _GREATEST_DERIVED_NAME:
        digest = hashlib.sha256(run_name.encode()).hexdigest()[:8]
        name = f"{name[:_KEPT_OF_LONG_NAME]}-{digest}"
    return name


def check_beaker_name(name: str, flag: str = "--name") -> str:
    """``name`` itself when Beaker accepts it.

    Raises:
        UserError: It is empty, too long, or holds a character that Beaker refuses.
    """
    if not _LEGAL.fullmatch(name) or len(name) > GREATEST_NAME:
        raise UserError(
            f"{flag} = {name!r}: expected at most {GREATEST_NAME} letters, digits, '.', '_' or '-', the first not '-'",
            hint=f"for example {beaker_name(name)!r}" if beaker_name(name) else None,
        )
    return name


def check_launch_id(launch_id: str, flag: str = "--launch-id") -> str:
    """``launch_id`` itself when it is one.

    Raises:
        UserError: It is not ``[a-z0-9][a-z0-9-]{0,63}``.
    """
    if not LAUNCH_ID.fullmatch(launch_id):
        raise UserError(
            f"{flag} = {launch_id!r}: expected at most 64 of a-z, 0-9 and '-', starting with a letter or digit"
        )
    return launch_id
