"""Which variables and secrets a user may give to the task, and how they are checked.

A credential given by value is refused without being shown: values end up in the spec, which Beaker shows to everybody
who can see the experiment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from primebeaker.errors import Mistakes, UserError
from primebeaker.redaction import looks_like_credential, names_a_secret

__all__ = [
    "TUNABLES",
    "UserEnvironment",
    "check_secret_reference",
    "check_user_environment",
    "merge_default_secrets",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET_REFERENCE = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)

#: Set by the launcher, or by Beaker, Prime-RL and torchrun in the task -> the flag that sets it, if there is one.
RESERVED: dict[str, str | None] = {
    "HOME": "--home-dir",
    "CONFIG_PATH": "--toml",
    "OUTPUT_DIR": None,
    "EXPERIMENT_NAME": None,
    "NUM_GPUS": None,
    "WORKING_DIR": "--working-dir",
    "SCRATCH": "--scratch-dir",
    "LAUNCH_ID": "--launch-id",
    "RENDEZVOUS_DIR": None,
    "RENDEZVOUS_TIMEOUT_SECONDS": "--rendezvous-timeout-seconds",
    "TOTAL_NODES": None,
    "TOTAL_INFER_RANKS": None,
    "GPUS_PER_NODE": None,
    "TRAINER_GPU_COUNT": None,
    "MIXED_INFER_GPU_COUNT": None,
    "GATEWAY_PORT": "--gateway-port",
    "GATEWAY_WORKERS": "--gateway-workers",
    "REQUIRED_LITEREGISTRY_SERVICES": "--required-service",
    "LOCAL_SEARCH_MODEL_PATHS_JSON": None,
    "WANDB_RUN_ID": "--wandb-run-id",
    "WANDB_SHARED_RUN_ID": "--wandb-run-id",
    "WANDB_SHARED_MODE": None,
    "WANDB_SHARED_LABEL": None,
    "WANDB_RESUME": None,
    "CUDA_VISIBLE_DEVICES": None,
    "MASTER_ADDR": None,
    "MASTER_PORT": None,
    "RANK": None,
    "LOCAL_RANK": None,
    "WORLD_SIZE": None,
}
_RESERVED_PREFIXES = ("BEAKER_REPLICA", "BEAKER_LEADER", "PRIMEBEAKER_")
#: Names that have a flag of their own; a secret of that name is fine where a secret makes sense.
_USE_THE_FLAG = {"REGISTRY": "--registry", "WANDB_ENTITY": "--wandb-entity"}
#: The only ``PRIMEBEAKER_`` variables a launch may set: time limits of the roles in the task.
TUNABLES = frozenset(
    {
        "PRIMEBEAKER_GRACE_SECONDS",
        "PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS",
        "PRIMEBEAKER_DRAIN_TIMEOUT_SECONDS",
        "PRIMEBEAKER_INFERENCE_READY_TIMEOUT_SECONDS",
        "PRIMEBEAKER_POLL_SECONDS",
        "PRIMEBEAKER_STALL_SECONDS",
        "PRIMEBEAKER_NODE_IP",
    }
)


@dataclass(frozen=True)
class UserEnvironment:
    """Checked variables: plain values, and names of Beaker secrets."""

    values: Mapping[str, str]
    secrets: Mapping[str, str]


def check_secret_reference(flag: str, reference: str) -> None:
    """Check that ``reference`` names a Beaker secret and is not the secret itself.

    Raises:
        UserError: It is no secret name; a value that looks like a credential is not repeated.
    """
    if looks_like_credential(reference):
        raise UserError(
            f"{flag}: expected the name of a Beaker secret, found something that looks like the credential itself",
            hint="write it to the workspace with 'beaker secret write NAME' and pass NAME",
        )
    if not _SECRET_REFERENCE.fullmatch(reference):
        raise UserError(f"{flag}: expected the name of a Beaker secret, 1 to 128 letters, digits, '_', '.' or '-'")


def check_user_environment(
    environment: tuple[tuple[str, str], ...], secrets: tuple[tuple[str, str], ...], mistakes: Mistakes
) -> UserEnvironment:
    """The variables of ``--env`` and ``--secret`` after every check; all mistakes are collected."""
    values: dict[str, str] = {}
    references: dict[str, str] = {}
    secret_names = {name for name, _reference in secrets}
    for name, value in environment:
        with mistakes.collect():
            _check_name("--env", name)
            _check_reserved("--env", name)
            if name in secret_names:
                # Said before the value is judged: a credential given both ways has two origins to choose from.
                raise UserError(f"{name} is set by both --env and --secret", hint="keep one of them")
            _check_value(name, value)
            _add_once(values, "--env", name, value)
    for name, reference in secrets:
        with mistakes.collect():
            _check_name("--secret", name)
            _check_reserved("--secret", name)
            check_secret_reference(f"--secret {name}", reference)
            _add_once(references, "--secret", name, reference)
    return UserEnvironment(values, references)


def merge_default_secrets(
    user: UserEnvironment, defaults: Mapping[str, tuple[str, str | None, bool]], mistakes: Mistakes
) -> dict[str, str]:
    """The secrets of the task: the user's, and the two default ones unless replaced or switched off.

    Args:
        user: What ``--env`` and ``--secret`` gave.
        defaults: Variable -> (its flag, the secret's name or None when off, whether the flag was given).
        mistakes: Where contradictions go.
    """
    secrets: dict[str, str] = {}
    for name, (flag, reference, explicit) in defaults.items():
        replacement = user.secrets.get(name)
        if explicit and replacement is not None and replacement != reference:
            mistakes.add(
                UserError(
                    f"{name} is set by both {flag} ({reference or 'off'}) and --secret ({replacement})",
                    hint="keep one of them",
                )
            )
        if reference is not None:
            secrets[name] = reference
    return {**secrets, **user.secrets}


def _check_name(flag: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{flag} {name!r}: expected NAME=VALUE with a name of letters, digits and '_'")


def _check_reserved(flag: str, name: str) -> None:
    if name in _USE_THE_FLAG:
        if flag == "--env" or name == "WANDB_ENTITY":
            raise UserError(f"{flag} {name}: this variable has a flag of its own", hint=f"use {_USE_THE_FLAG[name]}")
        return
    if name == "BEAKER_TOKEN" and flag == "--env":
        raise UserError(
            "--env BEAKER_TOKEN: a credential may only be given as a secret", hint="use --secret BEAKER_TOKEN=NAME"
        )
    if name in TUNABLES and flag == "--env":
        return
    if name in RESERVED or name.startswith(_RESERVED_PREFIXES):
        setter = RESERVED.get(name)
        raise UserError(
            f"{flag} {name}: this variable is reserved"
            + (f", {setter} sets it" if setter else ", the launch sets it itself"),
            hint=f"use {setter}" if setter else "leave it out",
        )


def _check_value(name: str, value: str) -> None:
    if names_a_secret(name) or looks_like_credential(value):
        raise UserError(
            f"--env {name}: this looks like a credential, which must not be given by value",
            hint=f"write it to the workspace with 'beaker secret write' and use --secret {name}=SECRET_NAME",
        )
    if not value:
        raise UserError(f"--env {name}: expected a value after '='")
    if "\0" in value:
        raise UserError(f"--env {name}: expected a value without NUL characters")


def _add_once(known: dict[str, str], flag: str, name: str, value: str) -> None:
    if known.setdefault(name, value) != value:
        raise UserError(
            f"{flag} {name} is given twice with different values, {known[name]!r} and {value!r}",
            hint="keep one of them",
        )
