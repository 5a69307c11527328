"""Where a stack registers, and how clients reach it: LiteRegistry's own rules, asked of LiteRegistry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.services.masking import masked, url_passwords
from primebeaker.services.stacks import NativeLauncher, Stack

__all__ = [
    "client_registry",
    "directory_warnings",
    "head_directory",
    "head_uri",
    "own_redis_warnings",
    "password_warnings",
]


def head_uri(location: str) -> str:
    """The client URI of a head registry (``/weka/reg`` gives ``head+file:///weka/reg``).

    Raises:
        UserError: LiteRegistry refuses the location.
    """
    from literegistry.head_registry import head_registry_uri

    try:
        return str(head_registry_uri(location))
    except ValueError as error:
        raise UserError(str(error), key="head_registry") from error


def client_registry(stack: Stack, config: Any, experiment_name: str) -> str:
    """The registry URI that training and evaluation must use to reach the services of a stack.

    Args:
        stack: The kind of stack.
        config: Its validated native config.
        experiment_name: A stack without any registry coordinates below a directory of this name.
    """
    if config.registry is not None:
        return str(config.registry)
    if config.head_registry is not None:
        return head_uri(config.head_registry)
    root = str(getattr(config, stack.directory_field)).rstrip("/")
    return head_uri(stack.coordination.format(root=root, name=experiment_name))


def head_directory(config: Any) -> Path | None:
    """The directory that the native launcher creates and opens to everyone (mode 1777) for a file or SQLite head."""
    if config.registry is not None or config.head_registry is None:
        return None
    from literegistry.coop.endpoints import normalize_endpoint_registry
    from literegistry.kvstore import filesystem_registry_path
    from literegistry.sqlite import sqlite_registry_path

    location = normalize_endpoint_registry(config.head_registry)
    if location.startswith("file:"):
        return Path(filesystem_registry_path(location))
    if location.startswith("sqlite:"):
        return Path(sqlite_registry_path(location)).absolute().parent
    return None


def password_warnings(launcher: NativeLauncher) -> list[str]:
    """The warning that a password in a registry URL can be read in the experiment."""
    config = launcher.config
    warnings = []
    for name in ("registry", "head_registry"):
        value = getattr(config, name)
        if url_passwords([value]):
            shown = masked(value, url_passwords([value]))
            warnings.append(
                f"{name}: the password in {shown} is visible to everyone who can read the Beaker experiment"
            )
    return warnings


def own_redis_warnings(stack: Stack, launcher: NativeLauncher) -> list[str]:
    """The warning of a Podman stack that no one else can find by a known address."""
    if stack.name != "podman" or launcher.config.registry is not None or launcher.config.head_registry is not None:
        return []
    return [
        "without registry and head_registry the stack runs a Redis of its own, whose address is only known through "
        "client_registry; give that URI to --registry of a training run, or use a persistent redis:// or rediss:// "
        "registry when several experiments share the stack"
    ]


def directory_warnings(launcher: NativeLauncher) -> list[str]:
    """The warning about an existing directory that submitting would open to everyone."""
    directory = head_directory(launcher.config)
    if directory is None:
        return []
    try:
        mode = directory.stat().st_mode & 0o7777
        used = any(directory.iterdir())
    except OSError:
        return []
    if mode == 0o1777 or not used:
        return []
    return [
        f"head_registry: {directory} has mode {mode:04o} and is not empty; launching makes it world-writable (1777)"
    ]
