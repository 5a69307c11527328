"""Running a LiteRegistry tool client for a call: private arguments, retries, and what became of it."""

from __future__ import annotations

from typing import Any

from literegistry_tool_client import WebTerminalExecutionClient

from primebeaker.environments._shared.browsing import BrowsingTerminal, goes_to_plain_terminal
from primebeaker.environments._shared.commands import browse_of
from primebeaker.environments._shared.live import LiveRollout
from primebeaker.environments._shared.outcomes import Outcome
from primebeaker.environments._shared.services import ServicePool, call_service

__all__ = ["run_client"]


async def run_client(env: Any, pool: ServicePool, live: LiveRollout, name: str, arguments: dict[str, Any]) -> Outcome:
    """Run one call through the client of its tool.

    Clients built by this package get the retry rule of the environment on top; clients handed in by a caller keep their
    own.  The client runs in this task, since a caller's client may be bound to the rollout by a context variable.
    """
    client = env.tool_clients[name]
    attempts = env.max_retries if getattr(client, "primebeaker_pooled", False) else 1

    async def request() -> Any:
        if isinstance(client, WebTerminalExecutionClient):
            command = arguments["command"]
            if browse_of(command) is None and goes_to_plain_terminal(command, live.pages):
                # The client would take the words of "cat -n" for asset ids.
                return await client.terminal_client.execute(command=command, contents=live.contents)
            return await client.execute(**arguments, contents=live.contents, asset_store=live.pages)
        if isinstance(client, BrowsingTerminal):
            return await client.execute(**arguments, contents=live.contents, asset_store=live.pages)
        if name == "terminal":
            return await client.execute(**arguments, contents=live.contents)
        if name == "python":
            return await client.execute(**arguments, context_payload=live.output)
        if name == "submit":
            return await client.execute(**arguments, submission_store=live.submissions)
        return await client.execute(**arguments)

    return await call_service(name, request, slot=pool.tool_slot(), attempts=attempts)
