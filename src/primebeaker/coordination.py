"""``python3 -m primebeaker.coordination``: wait for a registry, for its services, or probe a gateway.

Exit codes: 0 ready, 2 a mistake, 3 not ready in time or a probe failed, 143/130 ended by a signal.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError, did_you_mean
from primebeaker.redaction import mask_url_passwords
from primebeaker.roles import arguments
from primebeaker.roles.arguments import Flag, positive
from primebeaker.roles.coordination import probe_gateway, wait_for_redis, wait_for_services

__all__ = ["main"]


def _requirements(text: str) -> Mapping[str, int]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(
        name and type(count) is int and count >= 1 for name, count in value.items()
    ):
        raise ValueError("a JSON object of service names with whole numbers of at least 1")
    return value


def _names(text: str) -> Sequence[str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError("a JSON array of non-empty strings")
    return value


_REGISTRY = Flag("LiteRegistry URI; default: REGISTRY of the environment")
_STOP_FILE = Flag("end when this file appears", Path)
COMMANDS: dict[str, dict[str, Flag]] = {
    "wait-redis": {
        "registry": _REGISTRY,
        "timeout": Flag("seconds", positive, 600.0),
        "stop-file": _STOP_FILE,
    },
    "wait-services": {
        "registry": _REGISTRY,
        "requirements-json": Flag("JSON object: service name to least live count", _requirements, required=True),
        "timeout": Flag("seconds", positive, 1800.0),
        "stop-file": _STOP_FILE,
    },
    "probe-gateway": {
        "url": Flag("http://host:port", required=True),
        "model-paths-json": Flag("JSON array of local-search services", _names, ()),
        "required-path": Flag("a route that must exist; repeat", many=True),
        "timeout": Flag("seconds for one local-search probe", positive, 70.0),
        "retry": Flag("seconds for which failing local-search probes are repeated", positive, 0.0),
        "wait-health": Flag("1: wait for /health first, up to 120 s", default="0"),
    },
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    return arguments.run(lambda: _run(given))


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(arguments.usage("python3 -m primebeaker.coordination", COMMANDS))
        return 0
    command = words[0]
    if command not in COMMANDS:
        raise UserError(
            f"unknown command {command!r}", hint=did_you_mean(command, COMMANDS) or f"expected {', '.join(COMMANDS)}"
        )
    values = arguments.parse(words[1:], COMMANDS[command])
    return asyncio.run(_until_signal(_command(command, values)))


async def _until_signal(work: Coroutine[Any, Any, None]) -> int:
    task = asyncio.ensure_future(work)
    ended_by: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        ended_by.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        await task
    except asyncio.CancelledError:
        return 128 + ended_by[0] if ended_by else 1
    return 0


async def _command(command: str, values: Mapping[str, Any]) -> None:
    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    if command == "probe-gateway":
        await probe_gateway(
            values["url"],
            model_paths=values["model-paths-json"],
            required_paths=values["required-path"],
            limit=values["timeout"],
            retry=values["retry"],
            wait_for_health=values["wait-health"] == "1",
        )
        return
    registry = values["registry"] or os.environ.get("REGISTRY", "")
    if not registry and not (command == "wait-services" and not values["requirements-json"]):
        raise UserError("no registry: give --registry, or set REGISTRY")
    stop = _stopper(values["stop-file"])
    if command == "wait-redis":
        await wait_for_redis(registry, limit=values["timeout"], stop=stop, say=say)
        sys.stdout.write(f"{mask_url_passwords(registry)}\n")
        return
    counts = await wait_for_services(registry, values["requirements-json"], limit=values["timeout"], stop=stop, say=say)
    sys.stdout.write(f"{json.dumps(counts)}\n")


def _stopper(path: Path | None) -> Callable[[], bool]:
    return (lambda: False) if path is None else path.exists


if __name__ == "__main__":
    sys.exit(main())
