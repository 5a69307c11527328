"""``python3 -m primebeaker.gateway``: LiteRegistry's gateway with the routes the environments use.

The registry comes from ``REGISTRY_PATH`` unless ``--registry`` is given; a URI with a password belongs into the
environment, since a command line can be read by every user of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from primebeaker.errors import UserError, missing_extra
from primebeaker.roles import arguments
from primebeaker.roles.arguments import Flag, positive, whole
from primebeaker.roles.inputs import check_registry

__all__ = ["main"]

FLAGS: dict[str, Flag] = {
    "registry": Flag("LiteRegistry URI; default: REGISTRY_PATH of the environment"),
    "port": Flag("port to listen on", whole(1, 65535), required=True),
    "workers": Flag("worker processes", whole(1), 1),
    "advertise-host": Flag("host in the printed URL; default: BEAKER_NODE_HOSTNAME, else this host's name"),
    "affinity-ttl-seconds": Flag("how long a session keeps its replica", positive, 900.0),
    "registry-cache-ttl-seconds": Flag("how old the list of services may be", whole(1), 5),
    "timeout": Flag("seconds for one proxied request", positive, 65.0),
    "judge-timeout": Flag("seconds for one judge request", positive, 240.0),
}


def main(words: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    return arguments.run(lambda: _run(given))


def _run(words: Sequence[str]) -> int:
    if "--help" in words or "-h" in words:
        sys.stdout.write(arguments.usage("python3 -m primebeaker.gateway", {"": FLAGS}))
        return 0
    values = arguments.parse(words, FLAGS)
    registry = values["registry"] or os.environ.get("REGISTRY_PATH")
    if not registry:
        raise UserError("no registry: give --registry, or set REGISTRY_PATH")
    check_registry(str(registry), name="registry")
    try:
        import uvicorn
        from literegistry.gateway import advertised_gateway_url
    except ImportError:
        raise missing_extra("runtime") from None
    host = str(values["advertise-host"]) if values["advertise-host"] else None
    # Every worker is a process of its own and reads these.
    os.environ |= {
        "REGISTRY_PATH": str(registry),
        "HOST": "0.0.0.0",  # noqa: S104  environments on other nodes reach it
        "PORT": str(values["port"]),
        "GATEWAY_WORKERS": str(values["workers"]),
        "AFFINITY_TTL_SECONDS": str(values["affinity-ttl-seconds"]),
        "REGISTRY_CACHE_TTL_SECONDS": str(values["registry-cache-ttl-seconds"]),
        "TIMEOUT": str(values["timeout"]),
        "JUDGE_TIMEOUT": str(values["judge-timeout"]),
        **({"GATEWAY_ADVERTISE_HOST": host} if host else {}),
    }
    sys.stdout.write(f"GATEWAY_URL={advertised_gateway_url(int(str(values['port'])), host)}\n")
    sys.stdout.flush()
    uvicorn.run(
        "primebeaker.roles.gateway_app:build",
        factory=True,
        host="0.0.0.0",  # noqa: S104
        port=int(str(values["port"])),
        workers=int(str(values["workers"])),
        log_level="info",
        access_log=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
