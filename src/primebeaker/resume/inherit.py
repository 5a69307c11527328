"""What a resumed launch takes over from its source, and what the user's flags change about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from primebeaker.errors import UserError
from primebeaker.launch.settings import LaunchSettings
from primebeaker.resume.source import MANAGED_PLACEHOLDER, ResumeSettings, SourceLaunch

__all__ = ["inherited_settings", "moved_path", "registry_of"]


def moved_path(settings: ResumeSettings, source: SourceLaunch, path: str) -> str:
    """A path of the source, below ``--mount-path`` when the new launch mounts the bucket elsewhere."""
    if settings.mount_path is None or not (path == source.mount or path.startswith(source.mount.rstrip("/") + "/")):
        return path
    return settings.mount_path.rstrip("/") + path.removeprefix(source.mount.rstrip("/"))


def registry_of(settings: ResumeSettings, source: SourceLaunch) -> str | None:
    """The plain registry of the new launch; None when it is a secret of the source."""
    if settings.registry is not None:
        return settings.registry
    create = "primebeaker services launch"
    managed = source.managed_services
    if managed and managed != MANAGED_PLACEHOLDER and not settings.force:
        raise UserError(
            f"--registry is required: the service stack {managed} of the source was stopped with it",
            hint=f"create one with '{create}' and pass its registry",
        )
    if source.variables.get("REGISTRY"):
        return source.variables["REGISTRY"]
    if "REGISTRY" in source.secrets or any(name == "REGISTRY" for name, _ in settings.secrets):
        return None
    raise UserError(f"--registry is required: the source {source.id} has none", hint=f"create a stack with '{create}'")


def inherited_settings(
    settings: ResumeSettings, source: SourceLaunch, toml: Path, name: str, attempt_id: str, registry: str | None
) -> LaunchSettings:
    """The source's settings with the overrides applied."""
    image = settings.image or source.image
    if image is None:
        raise UserError(f"{source.id}: its image is not known", hint="pass --image")
    clusters = settings.clusters or source.clusters
    if not clusters:
        raise UserError(f"{source.id}: its clusters are not known", hint="pass --cluster")
    run_id = settings.wandb_run_id or source.wandb_run_id
    if run_id is None:
        raise UserError(f"{source.id}: its W&B run is not known", hint="pass --wandb-run-id")
    given = dict(settings.secrets)
    secrets = {
        variable: secret
        for variable, secret in source.secrets.items()
        if variable not in ("WANDB_API_KEY", "HF_TOKEN", "BEAKER_TOKEN")
        and not (variable == "REGISTRY" and registry is not None)
    }

    def default_secret(variable: str, flag: str | None) -> str | None:
        if flag is not None or variable in given:
            return flag
        return source.secrets.get(variable, "none")

    def place(flag: Path | None, variable: str) -> Path:
        return flag or Path(moved_path(settings, source, source.variables[variable]))

    return LaunchSettings(
        toml=toml,
        image=image,
        workspace=settings.workspace or source.workspace,
        clusters=clusters,
        priority=settings.priority or source.priority,
        min_runtime_hours=source.min_runtime_hours
        if settings.min_runtime_hours is None
        else settings.min_runtime_hours,
        mount_path=settings.mount_path or source.mount,
        dataset=settings.dataset or source.bucket,
        working_dir=place(settings.working_dir, "WORKING_DIR"),
        scratch_dir=place(settings.scratch_dir, "SCRATCH"),
        home_dir=place(settings.home_dir, "HOME"),
        wandb_secret=default_secret("WANDB_API_KEY", settings.wandb_secret),
        hf_secret=default_secret("HF_TOKEN", settings.hf_secret),
        wandb_run_id=run_id,
        wandb_entity=settings.wandb_entity or source.variables.get("WANDB_ENTITY"),
        environment=_merged(source.environment, settings.environment),
        secrets=_merged(secrets, settings.secrets),
        setup_command=settings.setup_command or source.variables.get("PRIMEBEAKER_SETUP_COMMAND"),
        budget=settings.budget or source.budget,
        rendezvous_timeout_seconds=settings.rendezvous_timeout_seconds
        or source.number("RENDEZVOUS_TIMEOUT_SECONDS", 1800),
        registry=registry,
        gateway_port=settings.gateway_port or source.number("GATEWAY_PORT", 1212),
        gateway_workers=settings.gateway_workers or source.number("GATEWAY_WORKERS", 8),
        required_services=settings.required_services or source.required_services,
        name=name,
        launch_id=attempt_id,
        shared_memory=settings.shared_memory or source.shared_memory,
        memory=settings.memory or source.memory,
        cpu_count=settings.cpu_count or source.cpu_count,
        timeout_hours=settings.timeout_hours or source.timeout_hours,
    )


def _merged(source: Mapping[str, str], changes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    merged = dict(source)
    for name, value in changes:
        if value:
            merged[name] = value
        else:
            merged.pop(name, None)
    return tuple(merged.items())
