"""Which registry the training uses, and whether the stack offers what the training requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.launch.settings import LaunchSettings
from primebeaker.redaction import mask_url_passwords
from primebeaker.services.registries import head_uri
from primebeaker.services.stack_config import Given

__all__ = ["derive_registry", "native_head", "registry_warnings", "service_warnings"]

_HEAD = "head+"


def native_head(service: Mapping[str, Given]) -> dict[str, Given]:
    """The service fields with a ``head+…`` head registry written as the native config takes it, without the prefix."""
    head = service.get("head_registry")
    if head is None or not isinstance(head.value, str) or not head.value.startswith(_HEAD):
        return dict(service)
    return {**service, "head_registry": replace(head, value=head.value.removeprefix(_HEAD))}


def derive_registry(settings: LaunchSettings, service: Mapping[str, Given], file: Path) -> str | None:
    """The ``REGISTRY`` of the training: ``rl.registry``, else the stack's own.

    Args:
        settings: The ``rl`` section.
        service: The fields of the ``service`` section.
        file: The run file.

    Returns:
        The URI; None when the training gets it from a Beaker secret.

    Raises:
        UserError: The stack would make a registry of its own that the training could not know beforehand.
    """
    if settings.registry is not None:
        return settings.registry
    if "REGISTRY" in dict(settings.secrets):
        return None
    return _stack_registry(service) or _missing(file)


def _missing(file: Path) -> str:
    raise UserError("service needs registry or head_registry, or give rl.registry", file=file)


def _stack_registry(service: Mapping[str, Given]) -> str | None:
    registry, head = service.get("registry"), service.get("head_registry")
    if registry is not None and registry.value:
        value = str(registry.value)
        # The same place, written with the scheme that a launch asks for.
        return f"file://{value}" if value.startswith("/") else value
    if head is not None and head.value:
        return head_uri(str(head.value))
    return None


def registry_warnings(settings: LaunchSettings, service: Mapping[str, Given]) -> list[str]:
    """The warning that the training looks into another registry than the one the stack registers in."""
    own = _stack_registry(service)
    if own is None or settings.registry is None or _comparable(own) == _comparable(settings.registry):
        return []
    return [
        f"rl.registry is {mask_url_passwords(settings.registry)} but the stack registers in {mask_url_passwords(own)}: "
        "the training would not see this stack"
    ]


def _comparable(uri: str) -> str:
    if uri.startswith(_HEAD):
        try:
            return head_uri(uri)
        except UserError:
            return uri
    return uri.rstrip("/")


def service_warnings(settings: LaunchSettings, config: Any) -> list[str]:
    """The warning that the stack offers fewer instances than the training requires, or none.

    Other stacks may register in the same registry, so this is no mistake.

    Args:
        settings: The ``rl`` section.
        config: The validated native config.
    """
    offered = _offered(config)
    fewer = [
        f"{name}: {offered[name]} of {count}" if name in offered else f"{name}: none of {count}"
        for name, count in settings.required_services
        if offered.get(name, 0) < count
    ]
    if not fewer:
        return []
    return [f"the stack offers fewer services than rl.required_services asks for ({', '.join(fewer)})"]


def _offered(config: Any) -> dict[str, int]:
    """Registered name of each service of the stack -> how many instances it has."""
    offered = {
        "python": config.python_replicas,
        "terminal": config.terminal_replicas,
        "search": config.web_search_replicas,
    }
    if config.local_search_replicas:
        name = config.local_search_service_name or f"localsearch:{Path(config.local_search_corpus_jsonl).stem}"
        offered[name] = config.local_search_replicas
    for model, replicas in (
        (config.generation_model, config.generation_replicas),
        (config.classification_model, config.classification_replicas),
    ):
        if model and replicas:
            offered[model] = offered.get(model, 0) + replicas
    return offered
