"""Passwords of registry URLs, kept out of previews and receipts whatever quoting surrounds them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from primebeaker.redaction import MASK, mask_url_passwords

__all__ = ["masked", "url_passwords"]


def url_passwords(values: Iterable[Any]) -> tuple[str, ...]:
    """The passwords inside those of ``values`` that are URLs."""
    passwords = []
    for value in values:
        if isinstance(value, str) and "://" in value:
            try:
                password = urlsplit(value).password
            except ValueError:
                continue
            if password:
                passwords.append(password)
    return tuple(passwords)


def masked(value: Any, passwords: Iterable[str] = ()) -> Any:
    """``value`` (any JSON value) with every URL password replaced by ``***``.

    Args:
        value: The JSON value.
        passwords: Passwords known to occur in it, found even where shell or JSON quoting has changed their spelling.
    """
    known = tuple(passwords)
    if isinstance(value, str):
        text = mask_url_passwords(value)
        for password in known:
            for spelling in _spellings(password):
                text = text.replace(f":{spelling}@", f":{MASK}@")
        return text
    if isinstance(value, dict):
        return {key: masked(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, known) for item in value]
    return value


def _spellings(password: str) -> list[str]:
    """The password as it looks after up to three layers of shell and JSON quoting, longest first."""
    spellings = {password}
    for _ in range(3):
        spellings |= {spelling.replace("'", "'\"'\"'") for spelling in spellings}
        spellings |= {json.dumps(spelling)[1:-1] for spelling in spellings}
    return sorted(spellings, key=len, reverse=True)
