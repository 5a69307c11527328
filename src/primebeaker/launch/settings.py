"""The settings of one launch: plain typed values under the names of the flags.

None means "not given" wherever that matters: a flag that has no meaning for the launch at hand is refused, and a
default may depend on another setting.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from primebeaker.errors import Mistakes, UserError, did_you_mean
from primebeaker.launch.environment import check_secret_reference
from primebeaker.launch.names import check_beaker_name, check_launch_id

__all__ = ["PRIORITIES", "TOML_CHECKS", "LaunchSettings", "Pairs", "is_workspace", "secret_setting"]

PRIORITIES = ("low", "normal", "high", "urgent")
TOML_CHECKS = ("off", "warn", "strict")
#: Names and values in the order given; a name may occur twice, which the checks look at.
Pairs = tuple[tuple[str, str], ...]

_WORKSPACE = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_SIZE = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+) ?(?:[kKMGTPE]i?)?B?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
#: Flags that switch a default secret off.
_NO_SECRET = frozenset({"", "none", "None", "null"})


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What the user asks for, apart from the TOML itself. See ``docs/launch.md`` for each setting."""

    toml: Path
    image: str | None = None
    workspace: str = "ai2/oe-agents"
    clusters: tuple[str, ...] = ("ai2/holmes",)
    priority: str = "high"
    min_runtime_hours: int = 0
    mount_path: str = "/weka"
    dataset: str = "oe-adapt-default"
    working_dir: Path | None = None
    scratch_dir: Path | None = None
    home_dir: Path | None = None
    wandb_secret: str | None = None
    hf_secret: str | None = None
    wandb_run_id: str | None = None
    wandb_entity: str | None = None
    environment: Pairs = ()
    secrets: Pairs = ()
    setup_command: str | None = None
    budget: str | None = None
    description: str | None = None
    rendezvous_timeout_seconds: int | None = None
    registry: str | None = None
    gateway_port: int | None = None
    gateway_workers: int | None = None
    #: Service name -> least number of live instances.
    required_services: tuple[tuple[str, int], ...] = ()
    name: str | None = None
    launch_id: str | None = None
    shared_memory: str | None = None
    memory: str | None = None
    cpu_count: float | None = None
    timeout_hours: float | None = None
    toml_check: str = "warn"
    live_config: bool = False

    @classmethod
    def from_python(cls, toml: str | Path, **settings: Any) -> LaunchSettings:
        """Settings from keyword arguments: dictionaries and sequences become tuples, paths become absolute.

        Raises:
            UserError: An argument is unknown or has a wrong type.
        """
        known = {field.name for field in fields(cls)}
        mistakes = Mistakes()
        values: dict[str, Any] = {"toml": Path.cwd() / Path(toml).expanduser()}
        for name, value in settings.items():
            if name not in known or name == "toml":
                mistakes.add(UserError(f"unknown setting {name!r}", hint=did_you_mean(name, known)))
                continue
            with mistakes.collect():
                values[name] = _typed(name, value)
        mistakes.raise_if_any()
        return cls(**values)

    def checked(self, mistakes: Mistakes) -> LaunchSettings:
        """These settings with ids filled in and repeated clusters removed; mistakes of form go to ``mistakes``."""
        if not is_workspace(self.workspace):
            mistakes.add(UserError(f"--workspace = {self.workspace!r}: expected owner/name"))
        if not self.clusters or not all(cluster.strip() for cluster in self.clusters):
            mistakes.add(UserError("--cluster: expected at least one cluster name, none of them empty"))
        _one_of(mistakes, "--priority", self.priority, PRIORITIES)
        _one_of(mistakes, "--toml-check", self.toml_check, TOML_CHECKS)
        self._check_texts(mistakes)
        self._check_numbers(mistakes)
        for flag, secret in (("--wandb-secret", self.wandb_secret), ("--hf-secret", self.hf_secret)):
            if secret is not None and secret not in _NO_SECRET:
                with mistakes.collect():
                    check_secret_reference(flag, secret)
        if self.name is not None:
            with mistakes.collect():
                check_beaker_name(self.name)
        if self.launch_id is not None:
            with mistakes.collect():
                check_launch_id(self.launch_id)
        if self.wandb_run_id is not None and not _RUN_ID.fullmatch(self.wandb_run_id):
            mistakes.add(
                UserError(f"--wandb-run-id = {self.wandb_run_id!r}: expected 1 to 64 letters, digits, '_' or '-'")
            )
        return replace(
            self,
            clusters=tuple(dict.fromkeys(self.clusters)),
            launch_id=self.launch_id or uuid.uuid4().hex,
            wandb_run_id=self.wandb_run_id or uuid.uuid4().hex,
        )

    def _check_texts(self, mistakes: Mistakes) -> None:
        for flag, value in (
            ("--dataset", self.dataset),
            ("--budget", self.budget),
            ("--wandb-entity", self.wandb_entity),
        ):
            if value is not None and (not value.strip() or _CONTROL.search(value)):
                mistakes.add(UserError(f"{flag} = {value!r}: expected a name"))
        for flag, value in (("--description", self.description), ("--setup-command", self.setup_command)):
            if value is not None and "\0" in value:
                mistakes.add(UserError(f"{flag}: expected text without NUL characters"))
        for flag, value in (("--shared-memory", self.shared_memory), ("--memory", self.memory)):
            if value is not None and not _SIZE.fullmatch(value):
                mistakes.add(UserError(f"{flag} = {value!r}: expected a size such as '64GiB'"))

    def _check_numbers(self, mistakes: Mistakes) -> None:
        # The command line has checked its words already; this is for Python callers.
        bounds: tuple[tuple[str, int | None, int, int | None], ...] = (
            ("--min-runtime-hours", self.min_runtime_hours, 0, None),
            ("--rendezvous-timeout-seconds", self.rendezvous_timeout_seconds, 1, None),
            ("--gateway-port", self.gateway_port, 1, 65535),
            ("--gateway-workers", self.gateway_workers, 1, None),
            *((f"--required-service {name}", count, 1, None) for name, count in self.required_services),
        )
        for flag, value, least, most in bounds:
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
                upper = "" if most is None else f" and at most {most}"
                mistakes.add(UserError(f"{flag} = {value!r}: expected a whole number of at least {least}{upper}"))
        for flag, number in (("--cpu-count", self.cpu_count), ("--timeout-hours", self.timeout_hours)):
            if number is not None and (isinstance(number, bool) or not 0 < number < float("inf")):
                mistakes.add(UserError(f"{flag} = {number!r}: expected a number above 0"))


def _one_of(mistakes: Mistakes, flag: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        mistakes.add(
            UserError(f"{flag} = {value!r}: expected one of {', '.join(allowed)}", hint=did_you_mean(value, allowed))
        )


def is_workspace(name: str) -> bool:
    """Whether it has the form ``owner/name``."""
    return _WORKSPACE.fullmatch(name) is not None


def secret_setting(value: str | None, default: str) -> str | None:
    """The Beaker secret behind ``--wandb-secret`` or ``--hf-secret``: the default when not given, None when off."""
    if value is None:
        return default
    return None if value in _NO_SECRET else value


def _typed(name: str, value: Any) -> Any:
    convert: Callable[[str, Any], Any] = _CONVERTERS.get(name, _as_text)
    return None if value is None else convert(name, value)


def _as_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} = {value!r}: expected a string")
    return value


def _as_path(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(f"{name} = {value!r}: expected a path")
    return Path.cwd() / Path(value).expanduser()


def _as_path_text(name: str, value: Any) -> str:
    return str(value) if isinstance(value, Path) else _as_text(name, value)


def _as_names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{name} = {value!r}: expected a sequence of strings")
    return tuple(value)


def _as_pairs(name: str, value: Any) -> Pairs:
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise UserError(f"{name}: expected a dictionary of strings")
    return tuple(value.items())


def _as_counts(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        raise UserError(f"{name}: expected a dictionary of service names and counts")
    return tuple(value.items())


def _as_is(name: str, value: Any) -> Any:
    return value


def _as_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} = {value!r}: expected True or False")
    return value


def _as_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} = {value!r}: expected a number")
    return value


_CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "clusters": _as_names,
    "mount_path": _as_path_text,
    "working_dir": _as_path,
    "scratch_dir": _as_path,
    "home_dir": _as_path,
    "environment": _as_pairs,
    "secrets": _as_pairs,
    "required_services": _as_counts,
    "min_runtime_hours": _as_is,
    "rendezvous_timeout_seconds": _as_is,
    "gateway_port": _as_is,
    "gateway_workers": _as_is,
    "cpu_count": _as_number,
    "timeout_hours": _as_number,
    "live_config": _as_switch,
}
