"""Keep credentials out of everything that is printed, logged or stored.

Used at the edges (command line, receipts, manifests, logs, the watcher's index).  The rules are those of
``docs/secrets.md``: passwords inside URLs, values that look like a credential, variables with secret-like names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MASK", "Redactor", "looks_like_credential", "mask_url_passwords", "names_a_secret"]

MASK = "***"

_URL_PASSWORD = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.\-]*://[^\s/?#@:\"']*:)(?P<password>[^\s/?#\"']*)(?=@)")
_CREDENTIAL = re.compile(r"(?:hf_|sk-|ghp_|github_pat_|xox|AKIA|wandb_v1_).*|[0-9a-fA-F]{40}", re.DOTALL)
_CREDENTIAL_IN_TEXT = re.compile(
    r"(?<![A-Za-z0-9_\-])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|ghp_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|xox[a-z]-[A-Za-z0-9\-]{10,}|AKIA[0-9A-Z]{16}|wandb_v1_[A-Za-z0-9_\-]{16,})"
)
_SECRET_NAMES = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
)
# Replacing shorter values would corrupt unrelated text ("1", "true", a port).
_LEAST_SECRET_LENGTH = 8


def mask_url_passwords(text: str) -> str:
    """Replace the password of every URL in ``text``: ``redis://user:***@host:6379``."""
    return _URL_PASSWORD.sub(lambda match: match["head"] + MASK if match["password"] else match[0], text)


def looks_like_credential(value: str) -> bool:
    """Whether ``value`` itself looks like a token or key (known prefixes, or 40 hexadecimal digits)."""
    return _CREDENTIAL.fullmatch(value.strip()) is not None


def names_a_secret(name: str) -> bool:
    """Whether a variable or key of this name usually holds a credential."""
    upper = name.upper()
    return any(part in upper for part in _SECRET_NAMES)


class Redactor:
    """Masks a set of known secret values, URL passwords and credential-like words in text.

    Args:
        secrets: Values that must never be shown. Values shorter than 8 characters are only masked when they are the
            whole text, since replacing them inside other words would corrupt it.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = {value for value in secrets if value}
        self._whole = frozenset(values)
        # Longest first: a secret may contain another one.
        self._parts = sorted((value for value in values if len(value) >= _LEAST_SECRET_LENGTH), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with every credential replaced by ``***``."""
        if text in self._whole:
            return MASK
        for value in self._parts:
            text = text.replace(value, MASK)
        return _CREDENTIAL_IN_TEXT.sub(MASK, mask_url_passwords(text))

    def bytes(self, data: bytes) -> bytes:
        """The same for raw log bytes; undecodable bytes are kept."""
        return self(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
