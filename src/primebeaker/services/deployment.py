"""One stack, planned: name, spec and client registry are fixed before anything is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from primebeaker.errors import Mistakes, UserError
from primebeaker.services.masking import masked, url_passwords
from primebeaker.services.registries import client_registry, own_redis_warnings, password_warnings
from primebeaker.services.stack_config import Given, build_launcher, placeholder_mistakes
from primebeaker.services.stacks import NativeLauncher, NativeStack, Stack

__all__ = ["Deployment", "plan_deployment"]


@dataclass(frozen=True)
class Deployment:
    """A validated stack with the name its experiment will have.

    Args:
        stack: The kind of stack.
        launcher: The native launcher with its validated config.
        experiment_name: Chosen by the native launcher.
        spec: The Beaker v2 spec the native launcher renders for that name, passwords included.
        client_registry: The registry URI for training and evaluation, passwords included.
        warnings: What the user should know before launching.
        refusals: What a preview only warns about and a launch refuses.
    """

    stack: Stack
    launcher: NativeLauncher
    experiment_name: str
    spec: dict[str, Any]
    client_registry: str
    warnings: tuple[str, ...] = ()
    refusals: tuple[UserError, ...] = ()

    def require_ready(self) -> None:
        """Refuse what a preview only warns about.

        Raises:
            UserError: A placeholder of an example is left.
        """
        mistakes = Mistakes(list(self.refusals))
        mistakes.raise_if_any()

    @property
    def config(self) -> dict[str, Any]:
        """Every native field, resolved, as plain data."""
        return asdict(self.launcher.config)

    @property
    def workspace(self) -> str:
        """The Beaker workspace of the experiment."""
        return str(self.launcher.config.workspace)

    @property
    def passwords(self) -> tuple[str, ...]:
        """The passwords inside the config's URLs, to be kept out of everything shown."""
        return url_passwords(self.config.values())

    def preview(self) -> dict[str, Any]:
        """The native preview and the client registry, as JSON values with passwords masked."""
        shown = {
            "experiment_name": self.experiment_name,
            "config": self.config,
            "spec": self.spec,
            "client_registry": self.client_registry,
        }
        return dict(masked(shown, self.passwords))


def plan_deployment(native: NativeStack, given: Mapping[str, Given]) -> Deployment:
    """Validate the given values and render the stack. Touches nothing.

    Raises:
        UserError: A value is refused.
    """
    launcher = build_launcher(native, given)
    name, spec = launcher.build_spec()
    refusals = tuple(placeholder_mistakes(given))
    return Deployment(
        stack=native.stack,
        launcher=launcher,
        experiment_name=name,
        spec=spec,
        client_registry=client_registry(native.stack, launcher.config, name),
        warnings=(
            *password_warnings(launcher),
            *own_redis_warnings(native.stack, launcher),
            *(str(refusal) for refusal in refusals),
        ),
        refusals=refusals,
    )
