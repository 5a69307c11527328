"""The text of configurations without their credentials; the result still parses as what it was."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from primebeaker.redaction import MASK, mask_credentials, redact_tree
from primebeaker.watcher.yaml_values import LOADER, load_yaml

__all__ = ["StoredText", "holds_nothing_secret", "redacted_toml", "redacted_yaml", "stored_text"]

_TEXT_LIMIT = 2**20
_TEXT_KEPT = 64 * 2**10
_WITHHELD = "# The text is withheld: its credentials could not be taken out of it safely.\n"
# Cheap first look: a text without any of these holds nothing to hide.
_SUSPICIOUS = re.compile(
    r"token(?!(?-i:s)|izer)|secret|passw|key|credential|cookie|authoriz|@|hf_|sk-|gh[pousr]_|AKIA", re.IGNORECASE
)
# Looked for before the expression: plain words are found twenty times as fast.
_SUSPICIOUS_WORDS = (
    "secret",
    "passw",
    "key",
    "credential",
    "cookie",
    "authoriz",
    "@",
    "hf_",
    "sk-",
    "akia",
    *(f"gh{letter}_" for letter in "pousr"),
)
_TOML_PIECE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*', re.DOTALL
)
_KEY_FOLLOWS = re.compile(r"[ \t]*[.=\]]")


class StoredText(NamedTuple):
    """Text as stored: at most 1 MiB, else its first 64 KiB."""

    text: str
    truncated: bool


def holds_nothing_secret(text: str) -> bool:
    """Whether one look at the text tells that no value in it can be a credential."""
    lowered = text.casefold()
    # `max_tokens` and `tokenizer` are everywhere, and harmless.
    harmless = lowered.count("token") == text.count("tokens") + lowered.count("tokenizer")
    if harmless and not any(word in lowered for word in _SUSPICIOUS_WORDS):
        return True
    return _SUSPICIOUS.search(text) is None


def stored_text(text: str) -> StoredText:
    """Cut what is too long to keep whole."""
    if len(text.encode("utf-8", "surrogatepass")) <= _TEXT_LIMIT:
        return StoredText(text, False)
    return StoredText(text.encode("utf-8", "surrogatepass")[:_TEXT_KEPT].decode("utf-8", "ignore"), True)


def _replacements(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, item in before.items():
            yield from _replacements(item, after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        for old, new in zip(before, after, strict=True):
            yield from _replacements(old, new)
    elif isinstance(before, str) and isinstance(after, str) and before != after:
        yield before, after


def redacted_toml(text: str, tree: dict[str, Any]) -> str:
    """A TOML text in which every string that is a credential reads ``"***"``.

    Args:
        text: The document.
        tree: The same, parsed.
    """
    if holds_nothing_secret(text):
        return text
    secrets = dict(_replacements(tree, redact_tree(tree)))

    def piece(match: re.Match[str]) -> str:
        literal = match[0]
        if literal.startswith("#"):
            for value in secrets:
                if len(value) >= 4:
                    literal = literal.replace(value, MASK)
            return mask_credentials(literal, key="wandb")
        if _KEY_FOLLOWS.match(match.string, match.end()):
            return literal
        value = tomllib.loads(f"a = {literal}")["a"]
        return json.dumps(secrets[value], ensure_ascii=False) if value in secrets else literal

    try:
        redacted = _TOML_PIECE.sub(piece, text)
        if _is_clean(tomllib.loads(redacted)):
            return redacted
    except (tomllib.TOMLDecodeError, ValueError):
        pass
    return _WITHHELD


def redacted_yaml(text: str, tree: Any, clean: Any = None) -> str:
    """The same for YAML.

    Args:
        text: The document.
        tree: The same, parsed.
        clean: ``tree`` without its credentials, when it is known already.
    """
    if holds_nothing_secret(text):
        return text
    secrets = dict(_replacements(tree, redact_tree(tree) if clean is None else clean))
    if not secrets and mask_credentials(text) == text:
        return text
    pieces: list[str] = []
    at = 0
    try:
        if secrets:
            for token in yaml.scan(text, Loader=LOADER):
                if isinstance(token, yaml.ScalarToken) and token.value in secrets:
                    start, end = token.start_mark.index, token.end_mark.index
                    pieces += [text[at:start], json.dumps(secrets[token.value], ensure_ascii=False)]
                    # A block scalar owns the line break that ends it.
                    pieces.append("\n" if text[start:end].endswith("\n") else "")
                    at = end
        redacted = mask_credentials("".join([*pieces, text[at:]]))
        if _is_clean(load_yaml(redacted)):
            return redacted
    except (yaml.YAMLError, ValueError):
        pass
    return _WITHHELD


def _is_clean(tree: Any) -> bool:
    return next(_replacements(tree, redact_tree(tree)), None) is None
