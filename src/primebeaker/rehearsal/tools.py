"""Which tool services the environments of a training TOML call through the gateway, and what answers for them here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from primebeaker.config import TomlDocument
from primebeaker.environments.reachable import refuses
from primebeaker.environments.registry import environment_spec
from primebeaker.launch.settings import LaunchSettings
from primebeaker.prime_rl.tables import lookup
from primebeaker.rehearsal.problems import Problem

__all__ = ["Route", "Tool", "ToolPlan", "gateway_routes", "plan_tools", "with_routes", "with_short_handshakes"]

#: Services that LiteRegistry can run on any machine.
_NATIVE = ("python", "terminal")
#: Gateway route -> the arguments that may name the pool it leads to, and the pool without them.
_POOLS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "search": (("local_search_model_path",), "search"),
    "judge": (("judge_service_model_path",), "judge"),
    "classify": (("reward_model_path",), "classify"),
}
_STAND_INS: Mapping[str, str] = {"search": "web-search", "judge": "judge", "classify": "model"}
#: Programs that the terminal service offers and that a machine may lack.
_TERMINAL_PROGRAMS = ("rg", "xsv", "pandoc", "jq")
#: Seconds a rollout waits for a container, which no rehearsal has; the environment's own ten minutes would outlast it.
_HANDSHAKE_SECONDS = 2
_LOCAL = re.compile(r"https?://(?:127\.0\.0\.1|localhost):([0-9]+)/([A-Za-z]+)/?")


@dataclass(frozen=True)
class Route:
    """A gateway route that an environment calls.

    Attributes:
        source: Dotted place of the environment in the TOML.
        argument: Its argument that names the route.
        url: As given, or the argument's default.
        path: The gateway's route.
        service: What the gateway looks for in the registry.
        given: Whether the TOML has the argument.
    """

    source: str
    argument: str
    url: str
    path: str
    service: str
    given: bool


class Tool(NamedTuple):
    """A service of a rehearsal: its name in the registry, and the stand-in that answers; None for the real one."""

    name: str
    stand_in: str | None = None


@dataclass(frozen=True)
class ToolPlan:
    """The tool services of a rehearsal.

    Attributes:
        called: All services the environments call.
        here: What answers on this machine.
        problems: What to mend before the launch is paid for, or what is not rehearsed.
    """

    called: tuple[str, ...] = ()
    here: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The services that answer."""
        return tuple(tool.name for tool in self.here)

    @property
    def native(self) -> tuple[str, ...]:
        """Those that are the real ones."""
        return tuple(tool.name for tool in self.here if tool.stand_in is None)


def gateway_routes(values: Mapping[str, Any], port: int) -> Iterator[Route]:
    """Every route of the local gateway that the bundled environments of a TOML call.

    Args:
        values: The training TOML.
        port: The gateway's, as the TOML knows it.
    """
    for split in ("train", "eval"):
        sources = lookup(values, f"orchestrator.{split}.source", [])
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            given = lookup(source, "legacy.args", {})
            arguments = {**_presets(lookup(source, "legacy.id")), **given}
            for name, value in arguments.items():
                url = _beside_search(arguments) if (name, value) == ("judge_server_url", None) else value
                match = _LOCAL.fullmatch(url) if name.endswith("_url") and isinstance(url, str) else None
                if match and int(match[1]) == port:
                    place = f"orchestrator.{split}.source[{index}]"
                    yield Route(place, name, url, match[2], _pool(match[2], arguments), name in given or value is None)


def _without_containers(values: Mapping[str, Any], own_port: int | None = None) -> Iterator[tuple[str, Any, Any]]:
    """The environments whose container service is not there: place in the TOML, its URL, seconds they would wait.

    Args:
        values: A training TOML.
        own_port: Of the rehearsal's own gateway, which no Podman service is behind; None where there is none.
    """
    for split in ("train", "eval"):
        sources = lookup(values, f"orchestrator.{split}.source", [])
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            presets = _presets(lookup(source, "legacy.id"))
            arguments = {**presets, **lookup(source, "legacy.args", {})}
            url = str(arguments.get("podman_gateway_url"))
            if "handshake_timeout" in presets and (_is_local(url, own_port) or refuses(url)):
                yield f"orchestrator.{split}.source[{index}]", url, arguments["handshake_timeout"]


def _is_local(url: str, port: int | None) -> bool:
    parts = urlsplit(url)
    return parts.hostname in ("127.0.0.1", "localhost") and parts.port == port


def _beside_search(arguments: Mapping[str, Any]) -> Any:
    """Where a search environment's judge is when no argument says so."""
    search = arguments.get("search_server_url")
    return search.removesuffix("/search") + "/judge" if isinstance(search, str) else None


def _presets(identifier: Any) -> dict[str, Any]:
    """The arguments of an environment with their defaults; none for one that is not ours."""
    try:
        spec = environment_spec(str(identifier))
    except KeyError:
        return {}
    return {one.name: None if one.required else one.default for one in spec.arguments}


def _pool(path: str, arguments: Mapping[str, Any]) -> str:
    names, preset = _POOLS.get(path, ((), path))
    return next((str(arguments[name]) for name in names if arguments.get(name)), preset)


def _answerer(route: Route) -> Tool | None:
    if route.path in _NATIVE:
        return Tool(route.service)
    kind = "local-search" if route.path == "search" and route.service != "search" else _STAND_INS.get(route.path)
    return None if kind is None else Tool(route.service, kind)


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
    here = tuple(dict.fromkeys(tool for tool in map(_answerer, routes) if tool is not None))
    plan = ToolPlan(called, here)
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
        for service in plan.names
        if service not in required
    ]
    problems += [
        Problem(f"service {tool.name}", f"a stand-in ({tool.stand_in}) answers here: what it says means nothing")
        for tool in here
        if tool.stand_in is not None
    ]
    problems += [
        Problem("tools", f"not rehearsed: {service} does not run here, calls of it fail")
        for service in called
        if service not in plan.names
    ]
    problems += [
        Problem(
            f"{place}.legacy.args.podman_gateway_url",
            f"not rehearsed: no Podman service is at {url} here, so every rollout fails at once",
            "start one there, on a port other than --gateway-port, or pass --no-rollouts",
        )
        for place, url, _ in _without_containers(values, port if gateway or plan.names else None)
    ]
    missing = [program for program in _TERMINAL_PROGRAMS if shutil.which(program) is None]
    if "terminal" in plan.native and missing:
        problems.append(Problem("tools", f"terminal lacks {', '.join(missing)} on this machine: calls of it fail here"))
    return replace(plan, problems=tuple(problems))


def with_routes(document: TomlDocument, routes: Sequence[Route]) -> TomlDocument:
    """Write down the routes that stand nowhere but in the environments' defaults, so that they can be moved."""
    for route in routes:
        if not route.given:
            document = document.with_value(f"{route.source}.legacy.args.{route.argument}", route.url, create=True)
    return document


def with_short_handshakes(document: TomlDocument) -> TomlDocument:
    """Let no rollout wait for a container that will not come, longer than a rehearsal takes."""
    for place, _, given in _without_containers(document.values):
        if isinstance(given, int | float) and given > _HANDSHAKE_SECONDS:
            document = document.with_value(f"{place}.legacy.args.handshake_timeout", _HANDSHAKE_SECONDS, create=True)
    return document
