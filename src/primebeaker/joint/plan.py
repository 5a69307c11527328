"""Both halves of a joint run, complete and checked before anything is created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from primebeaker.errors import Mistakes, UserError
from primebeaker.joint.registry import derive_registry, native_head, registry_warnings, service_warnings
from primebeaker.joint.run_file import MANAGED_ID, TOKEN, RunFile, read_run_file
from primebeaker.joint.settings import locate
from primebeaker.launch.plan import Extras, LaunchPlan, plan_launch
from primebeaker.launch.preview import preview as preview_launch
from primebeaker.services.deployment import Deployment, plan_deployment
from primebeaker.services.stacks import STACKS, load_native

__all__ = ["PLACEHOLDER", "RunPlan", "plan_run", "with_service", "with_variable"]

#: Stands for the service experiment's ID until there is one; a role that finds it stops nothing.
PLACEHOLDER = "<created-at-launch>"


@dataclass(frozen=True)
class RunPlan:
    """A joint run: the stack, and the RL launch with a placeholder for the stack's experiment."""

    file: RunFile
    service: Deployment
    rl: LaunchPlan
    warnings: tuple[str, ...]
    refusals: tuple[UserError, ...] = ()

    def require_ready(self) -> None:
        """Refuse what a preview only warns about.

        Raises:
            UserError: A placeholder of an example is left, or the output directory holds another launch's checkpoints.
        """
        mistakes = Mistakes(list(self.refusals))
        mistakes.raise_if_any()

    def preview(self) -> dict[str, Any]:
        """Both previews as one document."""
        return {
            "service": self.service.preview(),
            "rl": preview_launch(self.rl),
            "warnings": list(self.warnings),
        }


def plan_run(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> RunPlan:
    """Read a run file and plan both experiments. Reads files; writes nothing and calls nothing.

    Args:
        path: The run file.
        environment: Where variables in it come from; by default this process's.

    Raises:
        UserError: All mistakes of the file, the TOML, the paths and the configs that can be found in one pass.
    """
    mistakes = Mistakes()
    native = load_native(STACKS["base"])
    file = read_run_file(path, native, mistakes, environment)
    complete = not mistakes.errors
    service = deployment = None
    with mistakes.collect():
        service = native_head(file.service)
        deployment = plan_deployment(native, service)
    registry: str | None = None
    if complete:
        with mistakes.collect():
            registry = derive_registry(file.rl, file.service, file.path)
        # Without it the launch would report the missing registry once more.
        complete = registry is not None or not mistakes.errors or file.rl.registry is not None
    rl = None
    if file.rl.toml.is_file():
        try:
            rl = plan_launch("rl", replace(file.rl, registry=registry), _extras(file))
        except UserError as error:
            for located in locate(file.document, error):
                if complete or not str(located).startswith(f"{file.path}: rl.registry"):
                    mistakes.add(located)
    mistakes.raise_if_any()
    assert deployment is not None and rl is not None and service is not None
    located_refusals = [one for refusal in rl.refusals for one in locate(file.document, refusal)]
    refused = {str(refusal) for refusal in rl.refusals}
    warnings = [
        *file.warnings,
        *deployment.warnings,
        *(warning for warning in rl.warnings if warning not in refused),
        *map(str, located_refusals),
        *registry_warnings(file.rl, file.service),
        *service_warnings(file.rl, deployment.launcher.config),
    ]
    if file.lifecycle.cleanup:
        rl = _without_restart(rl)
    return RunPlan(
        file, deployment, rl, tuple(dict.fromkeys(warnings)), refusals=(*deployment.refusals, *located_refusals)
    )


def with_service(plan: LaunchPlan, experiment_id: str) -> LaunchPlan:
    """The RL launch that stops this service experiment at its end."""
    return with_variable(plan, {"name": MANAGED_ID, "value": experiment_id})


def with_variable(plan: LaunchPlan, variable: Mapping[str, str]) -> LaunchPlan:
    """The RL launch with another entry for a variable that its tasks have."""

    def replaced(entry: Mapping[str, str]) -> Mapping[str, str]:
        return variable if entry["name"] == variable["name"] else entry

    tasks = [{**task, "envVars": [replaced(entry) for entry in task["envVars"]]} for task in plan.spec["tasks"]]
    return replace(plan, spec={**plan.spec, "tasks": tasks})


def _extras(file: RunFile) -> Extras:
    if not file.lifecycle.cleanup:
        return Extras()
    return Extras(environment={MANAGED_ID: PLACEHOLDER}, secrets={TOKEN: file.lifecycle.token_secret})


def _without_restart(plan: LaunchPlan) -> LaunchPlan:
    """A preempted job that Beaker restarted would find its services stopped."""
    tasks = [{**task, "context": {**task["context"], "autoResume": False}} for task in plan.spec["tasks"]]
    return replace(plan, spec={**plan.spec, "tasks": tasks})
