"""Making the LiteRegistry clients of an environment's tools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from literegistry_tool_client import FetchClient, SubmitToolClient, TerminalExecutionClient

from primebeaker.environments._shared.browsing import BrowsingTerminal
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.pages import PageFault, PageOutage
from primebeaker.environments._shared.services import ServicePool, call_service, pooled

__all__ = ["build_tool_clients", "fetching", "page_fetcher", "terminal_client"]


def build_tool_clients(tools: Iterable[str], values: Values, pool: ServicePool) -> dict[str, Any]:
    """The clients of the offered tools, by name."""
    clients: dict[str, Any] = {}
    for name in tools:
        if name == "submit":
            clients[name] = SubmitToolClient()
        elif name == "terminal":
            clients[name] = _terminal(values, pool)
    return clients


def terminal_client(values: Values, pool: ServicePool) -> Any:
    """The client of the terminal service that the arguments name."""
    return pooled(
        TerminalExecutionClient,
        pool,
        values["terminal_server_url"],
        timeout=values["timeout"],
        truncation=values["terminal_truncation"],
    )


def _terminal(values: Values, pool: ServicePool) -> Any:
    terminal = terminal_client(values, pool)
    if not values["browser_aware_terminal"]:
        return terminal

    async def run(command: str, contents: str) -> Any:
        return await terminal.execute(command=command, contents=contents)

    return BrowsingTerminal(
        run,
        page_fetcher(values, pool),
        page_limit=values["fetch_max_content_length"],
        capture_pages=values["capture_web_assets"],
    )


def page_fetcher(values: Values, pool: ServicePool) -> Any:
    """A function that asks the page service for a URL; a failure is a :class:`PageFault`."""
    server = {} if values["fetch_server_url"] is None else {"server_url": values["fetch_server_url"]}
    client = pooled(
        FetchClient,
        pool,
        timeout=values["fetch_timeout"],
        max_content_length=values["fetch_max_content_length"],
        local_search_server_url=values["local_search_server_url"],
        local_search_model_path=values["local_search_model_path"],
        **server,
    )

    return fetching(client, values["fetch_max_retries"])


def fetching(client: Any, attempts: int) -> Any:
    """A function that asks ``client`` for a URL; a failure is a :class:`PageFault`."""

    async def fetch(url: str) -> Any:
        # The call that browses holds a slot already.
        outcome = await call_service(
            "browse", lambda: client.execute(url=url), slot=contextlib.nullcontext(), attempts=attempts
        )
        if outcome.kind == "result":
            return outcome.output
        if outcome.kind == "service":
            raise PageOutage("service unavailable")
        raise PageFault(outcome.output["stderr"])

    return fetch
