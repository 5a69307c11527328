"""What a rollout holds besides its state: live objects that must never be saved, dropped at clean-up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from literegistry_tool_client import SubmitToolClient, WebTerminalExecutionClient

from primebeaker.environments._shared.behaviour import State, plain_message
from primebeaker.environments._shared.browsing import BrowsingTerminal
from primebeaker.environments._shared.pages import RolloutPages
from primebeaker.environments._shared.rows import judged_output, web_pages_of
from primebeaker.environments._shared.submissions import expected_rubric_ids
from primebeaker.environments._shared.tool_calls import BrokenCall, ToolCall

__all__ = ["MOST_CONTENTS", "LiveRollout", "contents_text", "drop_live", "live_of", "output_of"]

#: Characters of the judged output that the terminal service takes.
MOST_CONTENTS = 2_097_152

_KEY = "primebeaker_live"


@dataclass
class LiveRollout:
    """The live side of one rollout.

    Args:
        output: The judged output.
        calls: The calls of the last reply.
        schemas: Parameter schemas of the tools, as they were when that reply came.
        answered: How many calls were answered so far.
        failures_in_row: Service failures since the last other outcome.
        submissions: The submission store of the ``submit`` tool.
        pages: The asset store of a browser-aware terminal.
        holds_pool: Whether the rollout keeps the connections open.
        container: The live container of a rollout that has one.
        place: What bounds the number of containers, while the rollout holds one of its places.
    """

    output: Any = None
    calls: list[ToolCall | BrokenCall] = field(default_factory=list)
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answered: int = 0
    failures_in_row: int = 0
    submissions: Any = None
    pages: Any = None
    holds_pool: bool = False
    container: Any = None
    place: asyncio.Semaphore | None = None

    def prepare_stores(self, env: Any, state: State) -> None:
        """Make the stores that the tools of ``env`` need.

        Raises:
            RowFault: The row's rubric ids or pages are unusable.
        """
        clients = env.tool_clients
        if "submit" in clients:
            self.submissions = SubmitToolClient.new_session(expected_rubric_ids(state["input"]))
        if any(isinstance(client, BrowsingTerminal | WebTerminalExecutionClient) for client in clients.values()):
            self.pages = RolloutPages(web_pages_of(state["input"]))

    @property
    def contents(self) -> str:
        """The judged output as the text that tools read on standard input."""
        return contents_text(self.output)[:MOST_CONTENTS]


def contents_text(output: Any) -> str:
    """The judged output as text: a non-string value as JSON text, none as an empty one."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def output_of(state: State) -> Any:
    """The judged output of a rollout's row."""
    row: Mapping[str, Any] = state["input"]
    return judged_output({**row, "prompt": [plain_message(message) for message in row.get("prompt") or ()]})


def live_of(state: State) -> LiveRollout:
    """The live side of a rollout, made at the first use."""
    live = state.get(_KEY)
    if not isinstance(live, LiveRollout):
        live = LiveRollout()
        state[_KEY] = live
    return live


def drop_live(state: State) -> None:
    """Forget the live side of a finished rollout."""
    if _KEY in state:
        del state[_KEY]
