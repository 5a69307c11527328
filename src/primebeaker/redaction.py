"""Keep credentials out of everything that is printed, logged or stored.

Used at the edges (command line, receipts, manifests, logs, the watcher's index).  The rules are those of
``docs/secrets.md``: passwords inside URLs, values that look like a credential, variables with secret-like names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

__all__ = [
    "MASK",
    "Redactor",
    "holds_a_secret",
    "looks_like_credential",
    "mask_credentials",
    "mask_url_passwords",
    "names_a_secret",
    "redact_tree",
]

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


# Words of a key; a border is a character that is neither letter nor digit, or a change from lower to upper case.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    {"token", "secret", "password", "passwd", "apikey", "credential", "credentials", "cookie", "authorization"}
)
_KEY_QUALIFIERS = frozenset({"api", "access", "private"})
#: Keys that look secret but hold a name or a text token, never a credential.
_HARMLESS_KEYS = frozenset(
    {
        "tokenizer",
        "eos_token",
        "bos_token",
        "pad_token",
        "unk_token",
        "stop_token",
        "stop_tokens",
        "wandb_secret",
        "hf_secret",
        "beaker_token_secret",
    }
)
_URL_USER = re.compile(r"(?<=://)[^\s/?#@\"']*:[^\s/?#@\"']*@")
_SHAPED = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{10,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16})"
)
_WANDB_KEY = re.compile(r"(?<![0-9A-Fa-f])[0-9a-fA-F]{40}(?![0-9A-Fa-f])")


@lru_cache(maxsize=4096)
def holds_a_secret(key: str) -> bool:
    """Whether a string under this key of a configuration is a credential.

    Stricter than :func:`names_a_secret`: the key is taken apart into words, so ``max_tokens``, ``tokenizer`` and
    ``eos_token`` stay readable, and so do fields that hold only a secret's *name* (``wandb_secret``).
    """
    if key.lower() in _HARMLESS_KEYS:
        return False
    words = [word.lower() for word in _WORD.findall(key)]
    return not _SECRET_WORDS.isdisjoint(words) or ("key" in words and not _KEY_QUALIFIERS.isdisjoint(words))


def mask_credentials(text: str, *, key: str = "") -> str:
    """The text without user names and passwords in URLs and without words shaped like a credential.

    Args:
        text: Any text, of one line or many.
        key: The key it stands under; 40 hexadecimal digits are a credential only where it names W&B.
    """
    if "://" in text:
        text = _URL_USER.sub(f"{MASK}@", text)
    text = _SHAPED.sub(MASK, text)
    return _WANDB_KEY.sub(MASK, text) if "wandb" in key.lower() else text


def redact_tree(value: Any, *, key: str = "") -> Any:
    """A copy of a parsed TOML, YAML or JSON value in which no string is a credential.

    Numbers and booleans stay.  An environment list (``[{name, value}]``) uses each ``name`` as the key of its
    ``value``; ``secret`` beside a ``name``, and every value of a ``secrets`` mapping, is only a secret's name.
    """
    if isinstance(value, str):
        return MASK if value and holds_a_secret(key) else mask_credentials(value, key=key)
    if isinstance(value, list):
        return [redact_tree(item, key=key) for item in value]
    if isinstance(value, dict):
        name = value.get("name")
        entry = isinstance(name, str)
        redacted: dict[Any, Any] = {}
        for field, item in value.items():
            label = str(field)
            if key.lower() == "secrets" or (entry and label == "secret"):
                redacted[field] = redact_tree(item)
            else:
                redacted[field] = redact_tree(item, key=str(name) if entry and label == "value" else label)
        return redacted
    return value
