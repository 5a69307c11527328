"""The base tool protocol: several tools, several calls a message, a budget, and every call answered once.

:class:`ToolBehaviour` is what ``tool-label`` runs and what environments with other tools or endings build on.
Its settings are attributes of the environment object, read at each use, since callers set them after loading:
``tool_names``, ``tool_defs``, ``tool_clients``, ``max_tool_calls``, ``max_turns``, ``tool_role``, ``final_warning``,
``max_consecutive_infrastructure_errors``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import (
    Message,
    Reward,
    RolloutFault,
    State,
    StopRule,
)
from primebeaker.environments._shared.counting import count_call, counted_state
from primebeaker.environments._shared.final_answer import has_final_verdict
from primebeaker.environments._shared.live import LiveRollout, live_of
from primebeaker.environments._shared.outcomes import Outcome, failed
from primebeaker.environments._shared.pooled_behaviour import PooledBehaviour
from primebeaker.environments._shared.results import stored_output
from primebeaker.environments._shared.services import ServicePool, watch_outcomes
from primebeaker.environments._shared.thinking import off_the_loop, visible_text
from primebeaker.environments._shared.tool_calls import ToolCall, is_malformed, message_calls
from primebeaker.environments._shared.tool_clients import run_client
from primebeaker.environments._shared.tool_specs import TOOL_SPECS, check_call, parameter_schemas

__all__ = ["FINAL", "INVALID", "MOST_CONCURRENT_CALLS", "TOOL", "ToolBehaviour", "is_last_turn"]

#: Routes of a message, kept in ``jtc_tool_route``.
TOOL, FINAL, INVALID = "tool", "final", "invalid"

#: Calls of one message that run at a time.
MOST_CONCURRENT_CALLS = 8


def is_last_turn(env: Any, state: State) -> bool:
    """Whether the turn that was just made is the last one allowed."""
    return 0 < int(env.max_turns) <= len(state["trajectory"])


def _stops(env: Any, state: State) -> bool:
    return state.get("jtc_tool_route") in (FINAL, INVALID)


class ToolBehaviour(PooledBehaviour):
    """Rollouts with tools.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        specs: Tool definitions by name, consulted at each call.
        render: The text a model sees for a tool's result: ``render(name, output)``.
        pool: Connections and request slots.
    """

    stops: Sequence[StopRule] = (StopRule("stop_after_final_or_invalid", _stops, priority=10),)

    #: Whether a reply without a call may end the rollout as a valid answer. Where it may not, nothing has to follow a
    #: call, so those of the last turn run like any others.
    takes_final_answer = True

    def __init__(
        self,
        environment: str,
        *,
        rewards: Sequence[Reward],
        specs: Mapping[str, Mapping[str, Any]] = TOOL_SPECS,
        render: Callable[[str, dict[str, Any]], str],
        pool: ServicePool,
    ) -> None:
        super().__init__(environment, rewards=rewards, pool=pool)
        self.specs = specs
        self.render = render

    # Hooks of environments that build on this one.

    def route(self, env: Any, state: State, message: Message) -> str:
        """The route of a reply: ``tool``, ``final`` or ``invalid``."""
        live = live_of(state)
        if is_malformed(live.calls):
            return INVALID
        calls = [call for call in live.calls if isinstance(call, ToolCall)]
        if any(self.spoils_message(env, live, call) for call in calls):
            return INVALID
        if not calls:
            answered = self.takes_final_answer and has_final_verdict(message)
            return FINAL if answered else INVALID
        # No answer could follow a call that is made after the warning or on the last turn.
        if state.get("jtc_tool_final_warning_sent") or self.turns_left(env, state) == 0:
            return INVALID
        return TOOL

    def spoils_message(self, env: Any, live: LiveRollout, call: ToolCall) -> bool:
        """Whether the arguments of a call make the whole message malformed."""
        if call.name not in env.tool_names:
            return False
        finding = check_call(call.name, call.arguments, live.schemas.get(call.name, {}))[1]
        return finding is not None and finding.kind == "malformed"

    def notice(self, env: Any, state: State) -> str | None:
        """What the last answer of a message ends with, after a blank line."""
        if state["jtc_tool_final_warning_sent"]:
            return None
        if state["jtc_tool_call_count"] < env.max_tool_calls and self.turns_left(env, state) != 1:
            return None
        state["jtc_tool_final_warning_sent"] = True
        return str(env.final_warning)

    def refusal(self, env: Any) -> str:
        """What a call beyond the budget is answered with."""
        return f"the budget of {env.max_tool_calls} tool calls is spent; this call was not run"

    def runs_in_order(self, calls: Sequence[ToolCall]) -> bool:
        """Whether the calls of a message run one after the other."""
        return any(call.name == "submit" for call in calls)

    async def run_call(self, env: Any, state: State, call: ToolCall) -> Outcome:
        """Run one admitted call."""
        if call.name not in env.tool_names or call.name not in env.tool_clients:
            offered = ", ".join(sorted(env.tool_names)) or "none"
            return Outcome("unknown_tool", failed("result", f"{call.name}: unknown tool; offered: {offered}").output)
        live = live_of(state)
        arguments, finding = check_call(call.name, call.arguments, live.schemas.get(call.name, {}))
        if finding is not None:
            return failed("model", finding.text)
        return await run_client(env, self.pool, live, call.name, arguments)

    # What holds for all of them.

    def turns_left(self, env: Any, state: State) -> int:
        """Assistant turns that may still come; -1 when there is no limit, or when no final answer has to come."""
        if env.max_turns <= 0 or not self.takes_final_answer:
            return -1
        return max(int(env.max_turns) - len(state["trajectory"]), 0)

    def answers_last_turn(self, env: Any, state: State) -> bool:
        """Where no final answer is expected, the calls of the last turn still run."""
        return not self.takes_final_answer and state.get("jtc_tool_route") == TOOL

    async def setup(self, env: Any, state: State) -> None:
        """Start the counters, and what the offered tools need."""
        await super().setup(env, state)
        live = live_of(state)
        live.prepare_stores(env, state)
        state.update(counted_state())
        state["jtc_tool_route"] = None
        state["jtc_tool_final_warning_sent"] = False
        state["jtc_tool_calls"] = []
        state["jtc_tool_results"] = []
        state["jtc_tool_history"] = []
        if live.submissions is not None:
            self._note_submissions(state, live)

    async def observe(self, env: Any, state: State, message: Message) -> None:
        """Find the calls of a reply and its route."""
        live = live_of(state)
        live.schemas = parameter_schemas(env.tool_defs, self.specs)

        def read() -> str:
            live.calls = message_calls(message, live.schemas)
            return self.route(env, state, message)

        state["jtc_tool_route"] = await off_the_loop(visible_text(message), read)
        state["jtc_tool_calls"] = [
            {"name": call.name, "arguments": call.arguments, "id": call.id}
            for call in live.calls
            if isinstance(call, ToolCall)
        ]

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Run the admitted calls of the last reply and answer every one of them."""
        live = live_of(state)
        calls = [call for call in live.calls if isinstance(call, ToolCall)]
        if not calls:
            raise RolloutFault("there is no call to answer")
        left = max(env.max_tool_calls - state["jtc_tool_call_count"], 0)
        admitted, refused = calls[:left], calls[left:]
        state["jtc_tool_call_count"] += len(admitted)
        outcomes = await self._run_all(env, state, admitted)

        def count() -> None:
            for call, outcome in zip(admitted, outcomes, strict=True):
                count_call(state, call, outcome, env=env, output=live.output, offered=call.name in env.tool_names)

        commands = "".join(str(call.arguments.get("command", "")) for call in admitted)
        await off_the_loop(commands, count)
        state["jtc_unknown_tool_call_count"] += sum(call.name not in env.tool_names for call in refused)
        if live.submissions is not None:
            self._note_submissions(state, live)
        outcomes += [failed("result", self.refusal(env)) for _ in refused]
        messages = self._answers(env, state, live, calls, outcomes)
        named = [(call.name, outcome) for call, outcome in zip(calls, outcomes, strict=True)]
        watch_outcomes(self.environment, env, state, live, self.outages, named)
        return messages

    async def _run_all(self, env: Any, state: State, calls: Sequence[ToolCall]) -> list[Outcome]:
        if len(calls) < 2 or self.runs_in_order(calls):
            return [await self.run_call(env, state, call) for call in calls]
        slots = asyncio.Semaphore(MOST_CONCURRENT_CALLS)

        async def run(call: ToolCall) -> Outcome:
            async with slots:
                return await self.run_call(env, state, call)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in calls]
        return [task.result() for task in tasks]

    def _answers(
        self, env: Any, state: State, live: LiveRollout, calls: Sequence[ToolCall], outcomes: Sequence[Outcome]
    ) -> list[Message]:
        contents = [self.render(call.name, outcome.output) for call, outcome in zip(calls, outcomes, strict=True)]
        notice = self.notice(env, state)
        if notice:
            contents[-1] = f"{contents[-1]}\n\n{notice}"
        messages: list[Message] = []
        results = []
        for call, outcome, content in zip(calls, outcomes, contents, strict=True):
            live.answered += 1
            answer: Message = {"role": "user", "content": content}
            if env.tool_role:
                id = call.id or f"{call.name}_{live.answered}"
                answer = {"role": "tool", "tool_call_id": id, "name": call.name, "content": content}
            messages.append(answer)
            results.append(stored_output(outcome.output))
            entry = {"name": call.name, "arguments": call.arguments, "id": call.id, "output": results[-1]}
            state["jtc_tool_history"].append(entry)
        state["jtc_tool_results"] = results
        return messages

    def _note_submissions(self, state: State, live: LiveRollout) -> None:
        state["jtc_submit_submissions"] = live.submissions.as_dict()
        state["jtc_submit_complete"] = bool(live.submissions.all_completed)
