"""Rollouts of ``code-tool-label``: Python turns over the judged output, then an XML verdict."""

from __future__ import annotations

from typing import Any

from literegistry_tool_client import RemoteCodeExecutionClient

from primebeaker.environments._shared.behaviour import Message, State, StopRule
from primebeaker.environments._shared.code_block import code_of, code_route_verdict
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.live import live_of
from primebeaker.environments._shared.pooled_behaviour import PooledBehaviour
from primebeaker.environments._shared.results import cut_streams, fenced_content
from primebeaker.environments._shared.services import ServicePool, call_service, pooled, watch_outcomes
from primebeaker.environments._shared.thinking import off_the_loop, visible_text
from primebeaker.environments._shared.tool_calls import ToolCall, said_text

__all__ = ["MOST_SHOWN", "CodeBehaviour", "code_client"]

#: Characters of a stream that are shown when no other limit is set.
MOST_SHOWN = 64_000

_RESULT_KEYS = ("stdout", "stderr", "success", "exit_code", "execution_time")


def code_client(values: Values, pool: ServicePool) -> Any:
    """The client of the Python service that the arguments name."""
    return pooled(
        RemoteCodeExecutionClient,
        pool,
        values["code_server_url"],
        timeout=values["timeout"],
        max_runtime=values["max_runtime"],
    )


def _stops(env: Any, state: State) -> bool:
    # On the last turn Verifiers' own max_turns_reached ends the rollout, for code messages too.
    return state.get("primebeaker_route") in ("final", "invalid") and len(state["trajectory"]) < env.max_turns


class CodeBehaviour(PooledBehaviour):
    """Code turns, as many as leave one turn for the answer.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        pool: Connections and request slots.
    """

    stops = (StopRule("first_turn_is_final_or_invalid", _stops, priority=10),)

    async def setup(self, env: Any, state: State) -> None:
        """Start the counters."""
        await super().setup(env, state)
        state["jtc_first_route"] = None
        state["jtc_code"] = None
        state["jtc_code_result"] = None
        state["jtc_code_call_count"] = 0
        state["primebeaker_route"] = None

    async def observe(self, env: Any, state: State, message: Message) -> None:
        """Find the code of a reply, or whether it is the verdict."""
        live = live_of(state)

        def read() -> str:
            text = said_text(visible_text(message))
            code = code_of(text)
            live.calls = [] if code is None else [ToolCall("python", {"code": code})]
            if code is not None:
                return "code"
            return "final" if code_route_verdict(text) is not None else "invalid"

        route = await off_the_loop(visible_text(message), read)
        state["primebeaker_route"] = route
        if len(state["trajectory"]) == 1:
            state["jtc_first_route"] = route

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Run the code of the last reply."""
        live = live_of(state)
        call = live.calls[0]
        if not isinstance(call, ToolCall):
            raise TypeError("a broken call has no answer")
        code = call.arguments["code"]
        client = env.tool_clients["python"]

        async def request() -> Any:
            return await client.execute(code=code, context_payload=live.output)

        outcome = await call_service("python", request, slot=self.pool.tool_slot(), attempts=env.max_retries)
        shown = cut_streams(outcome.output, env.code_output_truncation or MOST_SHOWN)
        state["jtc_code"] = code
        state["jtc_code_result"] = {key: shown.get(key) for key in _RESULT_KEYS}
        state["jtc_code_call_count"] += 1
        watch_outcomes(self.environment, env, state, live, self.outages, [("python", outcome)])
        content = fenced_content(shown)
        if not env.tool_role:
            return [{"role": "user", "content": content}]
        return [{"role": "tool", "tool_call_id": "python", "name": "python", "content": content}]
