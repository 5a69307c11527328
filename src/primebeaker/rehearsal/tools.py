"""Which tool services the environments of a training TOML call through the gateway, and which of them run here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from primebeaker.config import TomlDocument
from primebeaker.environments.registry import environment_spec
from primebeaker.launch.settings import LaunchSettings
from primebeaker.prime_rl.tables import lookup
from primebeaker.rehearsal.problems import Problem

__all__ = ["Route", "ToolPlan", "gateway_routes", "plan_tools", "with_routes"]

#: Services that LiteRegistry can run on any machine.
_RUNS_HERE = ("python", "terminal")
#: Programs that the terminal service offers and that a machine may lack.
_TERMINAL_PROGRAMS = ("rg", "xsv", "pandoc", "jq")
_LOCAL = re.compile(r"https?://(?:127\.0\.0\.1|localhost):([0-9]+)/([A-Za-z]+)/?")


@dataclass(frozen=True)
class Route:
    """A gateway route that an environment calls.

    Attributes:
        source: Dotted place of the environment in the TOML.
        argument: Its argument that names the route.
        url: As given, or the argument's default.
        service: What the gateway looks for in the registry.
        given: Whether the TOML has the argument.
    """

    source: str
    argument: str
    url: str
    service: str
    given: bool


@dataclass(frozen=True)
class ToolPlan:
    """The tool services of a rehearsal.

    Attributes:
        called: All services the environments call.
        here: Those that run on this machine.
        problems: What to mend before the launch is paid for, or what is not rehearsed.
    """

    called: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def gateway_routes(values: Mapping[str, Any], port: int) -> Iterator[Route]:
    """Every route of the local gateway that the bundled environments of a TOML call.

    Args:
        values: The training TOML.
        port: The gateway's, as the TOML knows it.
    """
    for split in ("train", "eval"):
        sources = lookup(values, f"orchestrator.{split}.source", [])
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            arguments = lookup(source, "legacy.args", {})
            for name, preset in _urls(lookup(source, "legacy.id")).items():
                url = arguments.get(name, preset)
                match = _LOCAL.fullmatch(url) if isinstance(url, str) else None
                if match and int(match[1]) == port:
                    place = f"orchestrator.{split}.source[{index}]"
                    yield Route(place, name, url, match[2], name in arguments)


def _urls(identifier: Any) -> dict[str, Any]:
    """The arguments of an environment that may be URLs, with their defaults; none for one that is not ours."""
    try:
        spec = environment_spec(str(identifier))
    except KeyError:
        return {}
    return {one.name: None if one.required else one.default for one in spec.arguments if one.name.endswith("_url")}


def plan_tools(values: Mapping[str, Any], settings: LaunchSettings, port: int, *, gateway: bool) -> ToolPlan:
    """Decide which services run, and say what the real launch would lack.

    Args:
        values: The training TOML.
        settings: The launch as the user wrote it.
        port: The gateway's, as the TOML knows it.
        gateway: Whether the launch itself starts one.
    """
    routes = list(gateway_routes(values, port))
    called = tuple(dict.fromkeys(route.service for route in routes))
    installed = find_spec("literegistry") is not None
    here = tuple(service for service in called if service in _RUNS_HERE and installed)
    problems = []
    if called and not gateway:
        problems.append(
            Problem(
                routes[0].source,
                f"its {routes[0].argument} is {routes[0].url}, but this launch starts no gateway",
                f"pass --gateway-port={port} and --registry",
            )
        )
    required = {name for name, _ in settings.required_services}
    problems += [
        Problem(
            "--required-service",
            f"the environments call {service}, and the launch does not wait for it",
            f"pass --required-service={service}=1, or as many as run",
        )
        for service in called
        if service in _RUNS_HERE and service not in required
    ]
    problems += [
        Problem("tools", f"not rehearsed: {service} does not run here, calls of it fail")
        for service in called
        if service not in here
    ]
    missing = [program for program in _TERMINAL_PROGRAMS if shutil.which(program) is None]
    if "terminal" in here and missing:
        problems.append(Problem("tools", f"terminal lacks {', '.join(missing)} on this machine: calls of it fail here"))
    return ToolPlan(called, here, tuple(problems))


def with_routes(document: TomlDocument, routes: Sequence[Route]) -> TomlDocument:
    """Write down the routes that stand nowhere but in the environments' defaults, so that they can be moved."""
    for route in routes:
        if not route.given:
            document = document.with_value(f"{route.source}.legacy.args.{route.argument}", route.url, create=True)
    return document
