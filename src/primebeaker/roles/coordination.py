"""Waiting for what a run needs from outside: the registry, its services, the gateway's routes.

The role runs these as child processes: importing LiteRegistry costs over half a second and 70 MiB.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from primebeaker.errors import ExternalError, PrimeBeakerError, UserError, nearest
from primebeaker.redaction import mask_url_passwords
from primebeaker.roles.http import Answer, fetch
from primebeaker.roles.inputs import check_registry

__all__ = ["NotReady", "Stopped", "probe_gateway", "service_report", "wait_for_redis", "wait_for_services"]

_ATTEMPT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_PROGRESS_SECONDS = 30.0
_HEARTBEAT_SECONDS = 240
_REFUSALS = 3
_HEALTH_SECONDS = 120.0
_HEALTH_PAUSE_SECONDS = 0.5
_PRESENT = (200, 204, 405)
_PROBE_QUERY = "test"


class NotReady(ExternalError):
    """Not ready in time, or a probe failed."""


class Stopped(PrimeBeakerError):
    """The stop file appeared."""

    exit_code = 143


class ServiceCount(NamedTuple):
    """One required service."""

    name: str
    needed: int
    live: int
    stale: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether at least as many as needed are alive."""
        return self.live >= self.needed


async def wait_for_redis(registry: str, *, limit: float, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Wait until the registry's store answers.

    Raises:
        UserError: The URI is malformed, or authentication was refused three times in a row.
        NotReady: Not in time.
        Stopped: The stop file appeared.
    """
    check_registry(registry, name="registry")
    _check_path(registry)
    deadline = time.monotonic() + limit
    refusals, said = 0, time.monotonic()
    store = _open_store(registry)
    try:
        while True:
            error = await _attempt(lambda: _ping(store), deadline)
            if error is None:
                return
            reason = _reason(error)
            refusals = refusals + 1 if _is_refusal(error) else 0
            if refusals >= _REFUSALS:
                raise UserError(f"{mask_url_passwords(registry)}: authentication refused: {reason}")
            _stop_or_late(stop, deadline, f"registry {mask_url_passwords(registry)} not reachable: {reason}")
            if time.monotonic() - said > _PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"registry {mask_url_passwords(registry)}: {reason}")
            await asyncio.sleep(min(_PAUSE_SECONDS, max(0.05, deadline - time.monotonic())))
    finally:
        await _close(store)


async def wait_for_services(
    registry: str,
    requirements: Mapping[str, int],
    *,
    limit: float,
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> dict[str, int]:
    """Wait until every service has enough live entries.

    Returns:
        Name -> live count.

    Raises:
        NotReady: Not in time; the text lists every missing name.
        Stopped: The stop file appeared.
    """
    if not requirements:
        return {}
    check_registry(registry, name="registry")
    deadline = time.monotonic() + limit
    from literegistry import RegistryClient

    store = _open_store(registry)
    client = RegistryClient(store, service_type="model_path", cache_ttl=1, max_heartbeat_interval=_HEARTBEAT_SECONDS)
    counts: list[ServiceCount] = [ServiceCount(name, needed, 0) for name, needed in requirements.items()]
    said, shown = 0.0, ""
    known: Sequence[str] = ()
    found: dict[str, Any] = {}

    async def look() -> None:
        found["models"] = await client.models(force=True)
        found["all"] = await _all_entries(store)

    try:
        while True:
            error = await _attempt(look, deadline)
            failure = _reason(error) if error is not None else ""
            if error is None:
                counts = _count(requirements, found["models"], found["all"])
                known = sorted(found["models"])
            line = ", ".join(f"{count.name} {count.live}/{count.needed}" for count in counts)
            if line != shown or time.monotonic() - said > _PROGRESS_SECONDS:
                said, shown = time.monotonic(), line
                say(f"services: {line}{f' ({failure})' if failure else ''}")
            if error is None and all(count.ready for count in counts):
                return {count.name: count.live for count in counts}
            _stop_or_late(stop, deadline, "; ".join([*service_report(counts, known), *([failure] if failure else [])]))
            await asyncio.sleep(min(_PAUSE_SECONDS, max(0.05, deadline - time.monotonic())))
    finally:
        await _close(store)


def service_report(counts: Sequence[ServiceCount], known: Sequence[str]) -> list[str]:
    """One part for every service that is not there, with names that look alike."""
    lines = []
    for count in counts:
        if count.ready:
            continue
        stale = f" ({len(count.stale)} stale: {', '.join(count.stale[:5])})" if count.stale else ""
        alike = [] if count.live else nearest(count.name, [name for name in known if name != count.name])
        hint = f" (the registry has {', '.join(alike)})" if alike else ""
        lines.append(f"{count.name}: {count.live} of {count.needed} healthy{stale}{hint}")
    return lines


async def probe_gateway(
    url: str,
    *,
    model_paths: Sequence[str],
    required_paths: Sequence[str],
    limit: float,
    retry: float = 0.0,
    wait_for_health: bool = False,
) -> None:
    """Check a gateway's routes, and every local-search service through it.

    Args:
        url: ``http://host:port``.
        model_paths: Local-search services.
        required_paths: Routes that must exist.
        limit: Seconds for one local-search probe.
        retry: Seconds for which failing local-search probes are repeated.
        wait_for_health: Poll ``/health`` first, for up to 120 s.

    Raises:
        NotReady: Naming every route or service that is not there.
    """
    base = url.rstrip("/")
    deadline = time.monotonic() + (_HEALTH_SECONDS if wait_for_health else 0)
    while True:
        health = await fetch(f"{base}/health")
        if health.status == 200:
            break
        if time.monotonic() >= deadline:
            raise NotReady(f"gateway {base}: /health: {health.reason}")
        await asyncio.sleep(_HEALTH_PAUSE_SECONDS)
    faults: list[str] = []
    for path in required_paths:
        answer = await fetch(f"{base}{path}", method="OPTIONS")
        if answer.status not in _PRESENT:
            faults.append(f"route {path} is missing ({answer.reason})")
    outcomes = await asyncio.gather(*(_probe_search(base, path, limit, retry) for path in model_paths))
    faults += [
        f"local search {path!r}: {_answered(answer)}"
        for path, answer in zip(model_paths, outcomes, strict=True)
        if answer.status != 200
    ]
    if faults:
        raise NotReady(f"gateway {base}: {'; '.join(faults)}")


async def _probe_search(base: str, path: str, limit: float, retry: float) -> Answer:
    body = json.dumps({"mode": "query", "query": _PROBE_QUERY, "model_path": path}).encode()
    end = time.monotonic() + retry
    while True:
        answer = await fetch(f"{base}/search", method="POST", body=body, total=limit)
        if answer.status == 200 or time.monotonic() >= end:
            return answer
        await asyncio.sleep(_PAUSE_SECONDS)


def _answered(answer: Answer) -> str:
    text = " ".join(answer.body.decode("utf-8", "replace").split())[:200] if answer.status else ""
    return f"{answer.reason}{f': {text}' if text else ''}"


async def _attempt(action: Callable[[], Awaitable[None]], deadline: float) -> Exception | None:
    """The fault of one attempt, None when it worked; a store may wait for ever by itself."""
    left = max(0.1, min(_ATTEMPT_SECONDS, deadline - time.monotonic()))
    try:
        async with asyncio.timeout(left):
            await action()
    except Exception as error:
        return error
    return None


def _stop_or_late(stop: Callable[[], bool], deadline: float, message: str) -> None:
    if stop():
        raise Stopped("stopped while waiting")
    if time.monotonic() >= deadline:
        raise NotReady(f"not ready in time: {message}")


def _open_store(registry: str) -> Any:
    from literegistry import get_kvstore

    try:
        return get_kvstore(registry, raise_on_error=True)
    except ValueError as error:
        raise UserError(f"{mask_url_passwords(registry)}: {mask_url_passwords(str(error))}") from None
    except OSError as error:
        raise UserError(f"{mask_url_passwords(registry)}: {error.strerror or error}") from None


async def _ping(store: Any) -> None:
    if hasattr(store, "ping"):
        if not await store.ping():
            raise ConnectionError("no answer to PING")
        return
    await store.keys()


def _check_path(registry: str) -> None:
    """A file or SQLite registry needs a directory that exists or can be created."""
    scheme, _, rest = registry.partition("://")
    if scheme not in ("file", "sqlite"):
        return
    path = Path(unquote(rest.partition("?")[0]))
    directory = path if scheme == "file" else path.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"registry {registry}: {directory} cannot be created: {error.strerror}") from None


async def _all_entries(store: Any) -> list[Mapping[str, Any]]:
    """Every registered server, stale ones included."""
    found: list[Mapping[str, Any]] = []
    for key in await store.keys():
        if not str(key).startswith("server_"):
            continue
        raw = await store.get(key)
        try:
            value = json.loads(raw) if raw else None
        except ValueError:
            value = None
        if isinstance(value, dict):
            found.append(value)
    return found


def _count(
    requirements: Mapping[str, int], live: Mapping[str, Sequence[Any]], everything: Sequence[Mapping[str, Any]]
) -> list[ServiceCount]:
    now = time.time()
    counts = []
    for name, needed in requirements.items():
        stale = tuple(
            str(entry.get("uri", "?")).removeprefix("http://")
            for entry in everything
            if entry.get("metadata", {}).get("model_path") == name
            and now - float(entry.get("last_heartbeat", 0)) > _HEARTBEAT_SECONDS
        )
        counts.append(ServiceCount(name, needed, len(live.get(name, ())), stale))
    return counts


async def _close(store: Any) -> None:
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            await store.close()
    except Exception:
        # Closing is a courtesy: what was waited for has been decided.
        return


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_ATTEMPT_SECONDS:g} s"
    return mask_url_passwords(" ".join(str(error).split())) or type(error).__name__


def _is_refusal(error: BaseException) -> bool:
    """Whether a store refused who we are; trying again will not help."""
    text = str(error).lower()
    words = ("wrongpass", "noauth", "invalid password", "invalid username-password", "authentication required")
    return type(error).__name__ == "AuthenticationError" or any(word in text for word in words)
