"""``primebeaker.run/v1``: one YAML file for a service stack and the RL run that needs it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from primebeaker.config.yaml_loader import YamlDocument, load_yaml
from primebeaker.errors import Mistakes, UserError
from primebeaker.joint.settings import read_settings
from primebeaker.launch.settings import LaunchSettings
from primebeaker.services.stack_config import SECRET_NAME, Given
from primebeaker.services.stack_file import check_header, read_fields, unknown_keys
from primebeaker.services.stacks import NativeStack

__all__ = ["MANAGED_ID", "RUN_SCHEMA", "TOKEN", "Lifecycle", "RunFile", "read_run_file"]

RUN_SCHEMA = "primebeaker.run/v1"
#: The variable by which the trainer's leader knows the services to stop.
MANAGED_ID = "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID"
TOKEN = "BEAKER_TOKEN"  # noqa: S105 - a variable's name
_CLEANUP = "cleanup_service_on_training_exit"
_TOKEN_SECRET = "beaker_token_secret"  # noqa: S105 - a key


@dataclass(frozen=True)
class Lifecycle:
    """How the services end.

    Args:
        cleanup: Replica 0 of the training stops the services when it ends.
        token_secret: The secret in the RL workspace with a Beaker token that may do so.
    """

    cleanup: bool = True
    token_secret: str = TOKEN


@dataclass(frozen=True)
class RunFile:
    """A run file, checked for itself: nothing outside of it has been looked at but the TOML's existence."""

    document: YamlDocument
    path: Path
    sha256: str
    service: Mapping[str, Given]
    rl: LaunchSettings
    lifecycle: Lifecycle
    warnings: tuple[str, ...]

    def error(self, message: str) -> UserError:
        """A mistake about the whole file."""
        return UserError(message, file=self.path)


def read_run_file(
    path: str | os.PathLike[str],
    native: NativeStack,
    mistakes: Mistakes,
    environment: Mapping[str, str] | None = None,
) -> RunFile:
    """Read a run file.

    Args:
        path: The file.
        native: The native base stack, whose fields the ``service`` section may hold.
        mistakes: Where mistakes go that do not hide others.
        environment: Where variables come from; by default this process's.

    Raises:
        UserError: The file cannot be read, is of another schema, or lacks a section.
    """
    document = load_yaml(path, what="run YAML")
    full = Path(document.file)
    variables = os.environ if environment is None else environment
    check_header(document, RUN_SCHEMA, required=("service", "rl"), optional=("lifecycle",), mistakes=mistakes)
    sections = document.mapping()
    service: dict[str, Given] = {}
    settings = LaunchSettings(toml=Path())
    lifecycle = Lifecycle()
    warnings: tuple[str, ...] = ()
    if "service" in sections:
        with mistakes.collect():
            service = read_fields(document, "service", native, variables, mistakes)
    if "rl" in sections:
        with mistakes.collect():
            settings = read_settings(document, variables, mistakes)
    if "lifecycle" in sections:
        with mistakes.collect():
            lifecycle, warnings = _lifecycle(document, mistakes)
    _check_managed(document, settings, lifecycle, mistakes)
    digest = hashlib.sha256(full.read_bytes()).hexdigest()
    return RunFile(document, full, digest, service, settings, lifecycle, warnings)


def _lifecycle(document: YamlDocument, mistakes: Mistakes) -> tuple[Lifecycle, tuple[str, ...]]:
    values = document.mapping(["lifecycle"])
    unknown_keys(document, ("lifecycle",), [_CLEANUP, _TOKEN_SECRET], mistakes)
    cleanup = values.get(_CLEANUP, True)
    if not isinstance(cleanup, bool):
        mistakes.add(document.error(["lifecycle", _CLEANUP], "expected true or false"))
        cleanup = True
    secret = values.get(_TOKEN_SECRET, TOKEN)
    if not isinstance(secret, str) or not SECRET_NAME.fullmatch(secret):
        mistakes.add(
            document.error(
                ["lifecycle", _TOKEN_SECRET],
                "expected the name of a Beaker secret (letters, digits, _ . -); the value given is not shown",
            )
        )
        secret = TOKEN
    ignored = not cleanup and _TOKEN_SECRET in values
    warning = f"lifecycle.{_TOKEN_SECRET} is ignored, since {_CLEANUP} is false"
    return Lifecycle(cleanup, secret), (warning,) if ignored else ()


def _check_managed(document: YamlDocument, settings: LaunchSettings, lifecycle: Lifecycle, mistakes: Mistakes) -> None:
    if not lifecycle.cleanup:
        return
    values = document.mapping(["rl"]) if isinstance(document.mapping().get("rl"), dict) else {}
    for key, written, pairs in (
        ("secrets", "secret", settings.secrets),
        ("environment", "env", settings.environment),
    ):
        if TOKEN in dict(pairs):
            section = key if key in values else written
            line = document.position(["rl", section, TOKEN]).line
            mistakes.add(UserError("managed by lifecycle", file=document.file, line=line, key=f"rl.{section}.{TOKEN}"))
