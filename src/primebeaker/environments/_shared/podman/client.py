"""LiteRegistry's Podman client, made for one rollout: shared connections, one attempt a request, ids kept."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from literegistry_tool_client import PodmanExecutionClient

from primebeaker.environments._shared.services import ServicePool

__all__ = ["LONGEST_COMMAND", "LONGEST_STDIN", "ContainerClient", "close_by_id", "make_client"]

#: Characters of a command and of standard input that the service takes in one request.
LONGEST_COMMAND = 16_384
LONGEST_STDIN = 1_048_576


class ContainerClient(PodmanExecutionClient):  # type: ignore[misc]  # the tool client has no type information
    """A Podman client that takes its connections from a pool and remembers what a handshake returned.

    Args:
        pool: Shared connections.
        keywords: Of ``PodmanExecutionClient``.
    """

    def __init__(self, pool: ServicePool, **keywords: Any) -> None:
        self._pool = pool
        self._own_session: Any = None
        #: Ids of the last handshake's reply, kept also when the client refuses that reply.
        self.returned_ids: tuple[str, ...] = ()
        super().__init__(**keywords)

    @property
    def _http_session(self) -> Any:
        return self._own_session or self._pool.session

    @_http_session.setter
    def _http_session(self, value: Any) -> None:
        """The base class stores the session it was given: none."""

    @contextlib.contextmanager
    def connected_by(self, session: Any) -> Any:
        """Use another ``aiohttp.ClientSession`` for a while."""
        self._own_session = session
        try:
            yield
        finally:
            self._own_session = None

    async def _post_with_retries_async(self, payload: dict[str, Any], **keywords: Any) -> dict[str, Any]:
        reply: dict[str, Any] = await super()._post_with_retries_async(payload, **keywords)
        if "image" in payload:
            ids = (reply.get("affinity_id"), reply.get("container_id"))
            self.returned_ids = tuple(dict.fromkeys(id for id in ids if isinstance(id, str) and id))
        return reply


def make_client(factory: Callable[..., Any] | None, pool: ServicePool, **keywords: Any) -> Any:
    """Make the client of one rollout.

    Args:
        factory: A caller's own; it gets those of the keywords that it has parameters for.
        pool: Shared connections, for a client of ours.
        keywords: Of ``PodmanExecutionClient``: ``gateway_url``, ``image``, ``client_id``, ``service``, ``timeout``,
            ``handshake_timeout``, ``workdir``. One attempt a request: what may be repeated is decided above the client.
    """
    keywords = {**keywords, "max_retries": 1}
    if factory is None:
        return ContainerClient(pool, **keywords)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return factory(**keywords)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = {parameter.name for parameter in parameters}
        keywords = {name: value for name, value in keywords.items() if name in names}
    return factory(**keywords)


async def close_by_id(client: ContainerClient, container: str) -> dict[str, Any]:
    """Close a container without the client's lock, which a command may hold in an event loop that stands still.

    Raises:
        RuntimeError: The service did not do it.
    """
    url = f"{client.gateway_url}/affinity/close"
    reply = await client._post_with_retries_async({"affinity_id": container}, server_url=url)
    if reply.get("removed") is not True:
        raise RuntimeError("the service did not confirm that the container is removed")
    return reply


@contextlib.asynccontextmanager
async def exit_session() -> AsyncIterator[Any]:
    """Connections for the end of a process, when no thread can be started to look a name up."""
    import socket

    import aiohttp
    from aiohttp.abc import AbstractResolver

    class Blocking(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [
                {
                    "hostname": host,
                    "host": address[0],
                    "port": address[1],
                    "family": kind,
                    "proto": proto,
                    "flags": socket.AI_NUMERICHOST,
                }
                for kind, _, proto, _, address in found
            ]

        async def close(self) -> None:
            return None

    connector = aiohttp.TCPConnector(limit=0, resolver=Blocking())
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield session
