"""Whether anything listens where the arguments of an environment name a service, before rollouts wait for it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from primebeaker.environments.registry import environment_spec

if TYPE_CHECKING:
    from primebeaker.environments.inspection import CheckedEnvironment

__all__ = ["refuses", "silent_services"]


def silent_services(checked: CheckedEnvironment) -> list[str]:
    """A line for every address that the arguments name and that refuses connections."""
    named: dict[tuple[str, int], list[str]] = {}
    for argument in environment_spec(checked.name).arguments:
        url = getattr(checked.environment, argument.name, None)
        if argument.name.endswith(("_server_url", "_gateway_url")) and isinstance(url, str):
            named.setdefault(_address(url), []).append(argument.name)
    return [
        f"nothing listens at {host}:{port} ({', '.join(names)}); what needs it is tried again for a while, then fails"
        for (host, port), names in named.items()
        if _refuses(host, port)
    ]


def refuses(url: str) -> bool:
    """Whether connections to an http(s) URL are refused; a host that does not answer at all is not known to refuse."""
    return _refuses(*_address(url))


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _refuses(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
