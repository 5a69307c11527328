"""The source of a resume: what a launched multi-node RL experiment was started with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primebeaker.beaker.models import Experiment, Job
from primebeaker.errors import UserError
from primebeaker.launch.environment import RESERVED, TUNABLES

__all__ = ["MANAGED_PLACEHOLDER", "ResumeSettings", "SourceLaunch", "read_source"]

_ROLE = "primebeaker.multinode role rl"
_MANAGED = "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID"
#: The id of a managed service stack in a spec whose stack did not exist yet.
MANAGED_PLACEHOLDER = "<created-at-launch>"
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ResumeSettings:
    """What the user changes about the source; None (or empty) keeps the source's value."""

    from_experiment: str
    config: Path | None = None
    registry: str | None = None
    resume_step: int | None = None
    experiment_name: str | None = None
    attempt_id: str | None = None
    image: str | None = None
    workspace: str | None = None
    priority: str | None = None
    budget: str | None = None
    clusters: tuple[str, ...] = ()
    min_runtime_hours: int | None = None
    #: An empty value removes a variable.
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    required_services: tuple[tuple[str, int], ...] = ()
    setup_command: str | None = None
    gateway_port: int | None = None
    gateway_workers: int | None = None
    rendezvous_timeout_seconds: int | None = None
    mount_path: str | None = None
    dataset: str | None = None
    working_dir: Path | None = None
    scratch_dir: Path | None = None
    home_dir: Path | None = None
    wandb_secret: str | None = None
    hf_secret: str | None = None
    wandb_run_id: str | None = None
    wandb_entity: str | None = None
    shared_memory: str | None = None
    memory: str | None = None
    cpu_count: float | None = None
    timeout_hours: float | None = None
    output_dir: Path | None = None
    force: bool = False
    #: The source was a rehearsal and so is the child: the engine knows every process of it.
    rehearse: bool = False
    skip_preflight: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceLaunch:
    """A launch as its newest job's spec shows it."""

    id: str
    name: str
    workspace: str
    jobs: tuple[Job, ...]
    image: str | None
    clusters: tuple[str, ...]
    priority: str
    min_runtime_hours: int
    budget: str | None
    mount: str
    bucket: str
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    shared_memory: str | None
    memory: str | None
    cpu_count: float | None
    timeout_hours: float | None
    warnings: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def output_dir(self) -> str:
        """``OUTPUT_DIR`` of the source."""
        return self.variables["OUTPUT_DIR"]

    @property
    def managed_services(self) -> str | None:
        """The id of the service stack that was created for the source and stopped with it."""
        return self.variables.get(_MANAGED)

    @property
    def wandb_run_id(self) -> str | None:
        """The W&B run, which the resumed launch continues."""
        return self.variables.get("WANDB_SHARED_RUN_ID") or self.variables.get("WANDB_RUN_ID")

    def number(self, name: str, default: int) -> int:
        """A positive whole number among the variables.

        Raises:
            UserError: The variable holds something else.
        """
        text = self.variables.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise UserError(f"{self.id}: {name} = {text!r}: expected a positive whole number")
        return int(text)

    @property
    def required_services(self) -> tuple[tuple[str, int], ...]:
        """Service name -> least number of live instances.

        Raises:
            UserError: The variable is not such a JSON object.
        """
        text = self.variables.get("REQUIRED_LITEREGISTRY_SERVICES", "{}")
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or not all(_is_count(count) for count in parsed.values()):
            raise UserError(
                f"{self.id}: REQUIRED_LITEREGISTRY_SERVICES = {text!r}: expected a JSON object of positive counts"
            )
        return tuple(parsed.items())


def read_source(experiment: Experiment) -> SourceLaunch:
    """What an experiment was launched with.

    Raises:
        UserError: It is no multi-node RL launch, or its spec lacks what a resume needs.
    """
    usable = [job for job in experiment.jobs if _paths_of(job)]
    if not usable:
        what = "has no job yet" if not experiment.jobs else "was not launched from a training TOML"
        raise UserError(f"{experiment.id} ({experiment.name}) {what}: nothing to resume")
    newest = usable[-1]
    spec = newest.spec
    command = " ".join(str(word) for word in spec.get("command") or ())
    if _ROLE not in command:
        kind = _kind_of(spec, command)
        hint = (
            "Beaker restarts it by itself, and ckpt.resume_step = -1 in its TOML makes it continue"
            if kind.startswith("single-node")
            else "only multi-node RL launches can be resumed this way"
        )
        raise UserError(f"{experiment.id} ({experiment.name}) is a {kind} task, not a multi-node RL launch", hint=hint)
    if not experiment.workspace:
        raise UserError(f"{experiment.id}: its workspace is not known", hint="pass --workspace")
    variables, secrets = _environment(spec)
    for name in ("CONFIG_PATH", "OUTPUT_DIR", "WORKING_DIR", "SCRATCH", "HOME"):
        if not variables.get(name):
            raise UserError(f"{experiment.id}: {name} is not in its spec, so it cannot be resumed")
    mount, bucket = _mount(experiment.id, spec, variables["OUTPUT_DIR"])
    resources = _table(spec, "resources")
    return SourceLaunch(
        id=experiment.id,
        name=experiment.name.partition("/")[2] or experiment.name,
        workspace=experiment.workspace,
        jobs=experiment.jobs,
        image=_image(spec),
        clusters=tuple(_table(spec, "constraints").get("cluster") or ()),
        priority=_table(spec, "context").get("priority") or "high",
        min_runtime_hours=math.ceil(
            _hours(experiment.id, "minRuntime", _table(spec, "context").get("minRuntime")) or 0
        ),
        budget=experiment.budget,
        mount=mount,
        bucket=bucket,
        variables=variables,
        secrets=secrets,
        shared_memory=resources.get("sharedMemory"),
        memory=resources.get("memory"),
        cpu_count=resources.get("cpuCount"),
        timeout_hours=_hours(experiment.id, "timeout", spec.get("timeout")),
        warnings=_disagreements(experiment.id, usable),
        environment={name: value for name, value in variables.items() if _is_users(name)},
    )


def _paths_of(job: Job) -> bool:
    variables, _ = _environment(job.spec)
    return "CONFIG_PATH" in variables and "OUTPUT_DIR" in variables


def _environment(spec: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    values: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for entry in spec.get("envVars") or ():
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            if entry.get("secret"):
                secrets[entry["name"]] = str(entry["secret"])
            elif isinstance(entry.get("value"), str):
                values[entry["name"]] = entry["value"]
    return values, secrets


def _is_users(name: str) -> bool:
    if name.startswith("PRIMEBEAKER_"):
        return name in TUNABLES
    return name not in RESERVED and name not in ("REGISTRY", "WANDB_ENTITY", "BEAKER_TOKEN")


def _kind_of(spec: Mapping[str, Any], command: str) -> str:
    if "primebeaker.multinode role sft" in command:
        return "multi-node SFT"
    name = spec.get("name")
    return f"single-node {str(name).upper()}" if name in ("rl", "sft") else f"{name or 'foreign'}"


def _image(spec: Mapping[str, Any]) -> str | None:
    image = _table(spec, "image")
    if image.get("beaker"):
        return f"beaker://{image['beaker']}"
    return f"docker://{image['docker']}" if image.get("docker") else None


def _mount(identifier: str, spec: Mapping[str, Any], output_dir: str) -> tuple[str, str]:
    for entry in spec.get("datasets") or ():
        mount = str(entry.get("mountPath", "")) if isinstance(entry, Mapping) else ""
        bucket = _table(entry, "source").get("weka") if mount else None
        if bucket and (output_dir == mount or output_dir.startswith(mount.rstrip("/") + "/")):
            return mount, str(bucket)
    raise UserError(f"{identifier}: no Weka mount of its spec holds OUTPUT_DIR = {output_dir}")


def _hours(identifier: str, key: str, value: Any) -> float | None:
    """Hours of a duration: ``4h``, ``4h0m0s``, ``90m``, or whole nanoseconds."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value / _NANOSECONDS / 3600 or None
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UserError(f"{identifier}: {key} = {value!r}: expected a duration such as '4h'")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours + minutes / 60 + seconds / 3600 or None


def _disagreements(identifier: str, jobs: Sequence[Job]) -> tuple[str, ...]:
    different = [
        name
        for name in ("image", "envVars", "datasets")
        if len({json.dumps(job.spec.get(name), sort_keys=True) for job in jobs}) > 1
    ]
    if not different:
        return ()
    return (f"the jobs of {identifier} disagree about {', '.join(different)}; the newest one counts",)


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
