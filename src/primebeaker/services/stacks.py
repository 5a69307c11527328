"""The two service stacks and where their native classes live.

Everything about a stack that is not listed here is asked of the installed distribution, so that a newer LiteRegistry
companion works without a release of ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

from primebeaker.errors import UserError
from primebeaker.services.lazy_package import postpone_init

__all__ = [
    "STACKS",
    "NativeLauncher",
    "NativeStack",
    "Stack",
    "installed_version",
    "load_native",
    "missing_distribution",
]


@dataclass(frozen=True)
class Stack:
    """One kind of stack.

    Args:
        name: ``base`` or ``podman``.
        distribution: The distribution on the package index.
        module: Its import name.
        config_class: The name of its native config dataclass.
        launcher_class: The name of its native launcher.
        directory_field: The config field that holds the stack's coordination directory.
        coordination: Where a stack without any registry coordinates, with ``{root}`` (the value of
            ``directory_field``) and ``{name}`` (the experiment's name).
        command: The command group that deploys it.
    """

    name: str
    distribution: str
    module: str
    config_class: str
    launcher_class: str
    directory_field: str
    coordination: str
    command: str

    @property
    def other(self) -> Stack:
        """The other kind of stack."""
        return next(stack for stack in STACKS.values() if stack.name != self.name)


STACKS: Mapping[str, Stack] = {
    "base": Stack(
        name="base",
        distribution="literegistry-base-deployment",
        module="literegistry_base_deployment",
        config_class="BaseDeploymentConfig",
        launcher_class="BaseDeploymentLauncher",
        directory_field="shared_dir",
        coordination="{root}/.literegistry-coop/{name}",
        command="primebeaker services",
    ),
    "podman": Stack(
        name="podman",
        distribution="literegistry-podman-beaker",
        module="literegistry_podman_beaker",
        config_class="PodmanStackConfig",
        launcher_class="PodmanStackLauncher",
        directory_field="coordination_root",
        coordination="{root}/{name}",
        command="primebeaker services podman",
    ),
}


class NativeLauncher(Protocol):
    """What both native launchers offer."""

    config: Any

    def build_spec(self, *, experiment_name: str | None = None) -> tuple[str, dict[str, Any]]:
        """The experiment's name and its Beaker v2 spec."""
        ...

    def submit(self) -> dict[str, Any]:
        """Prepare the shared directories, create the experiment, and give back what Beaker printed."""
        ...


@dataclass(frozen=True)
class NativeStack:
    """A stack with its imported native classes."""

    stack: Stack
    config_class: type[Any]
    launcher_class: type[Any]


def load_native(stack: Stack) -> NativeStack:
    """Import a stack's native classes.

    Raises:
        UserError: The distribution is not installed.
    """
    postpone_init("literegistry")
    try:
        module = importlib.import_module(stack.module)
    except ModuleNotFoundError as error:
        raise missing_distribution(stack) from error
    return NativeStack(stack, getattr(module, stack.config_class), getattr(module, stack.launcher_class))


def installed_version(stack: Stack) -> str:
    """The installed version of a stack's distribution.

    Raises:
        UserError: It is not installed.
    """
    try:
        return metadata.version(stack.distribution)
    except metadata.PackageNotFoundError as error:
        raise missing_distribution(stack) from error


def missing_distribution(stack: Stack) -> UserError:
    """The mistake of deploying a stack whose distribution is not installed."""
    return UserError(f"{stack.distribution} is not installed", hint="pip install 'primebeaker[runtime]'")
