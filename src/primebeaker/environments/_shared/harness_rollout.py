"""Rollouts of ``articulated-harness``: tools, and one submitted judgment for every expected rubric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import Message, RolloutFault, State, StopRule
from primebeaker.environments._shared.live import LiveRollout, live_of
from primebeaker.environments._shared.outcomes import Outcome, failed
from primebeaker.environments._shared.submissions import expected_rubric_ids
from primebeaker.environments._shared.tool_calls import ToolCall
from primebeaker.environments._shared.tool_rollout import INVALID, ToolBehaviour, is_last_turn
from primebeaker.environments._shared.tool_specs import check_call

__all__ = ["HarnessBehaviour"]


def _all_submitted(env: Any, state: State) -> bool:
    return bool(state.get("jtc_submit_complete"))


def _budget_is_spent(env: Any, state: State) -> bool:
    return bool(0 < env.max_tool_calls <= state.get("jtc_tool_call_count", 0))


def _is_invalid(env: Any, state: State) -> bool:
    return state.get("jtc_tool_route") == INVALID


class HarnessBehaviour(ToolBehaviour):
    """The base tool protocol with another ending: when every rubric is submitted, or the budget is spent."""

    stops: Sequence[StopRule] = (
        StopRule("all_rubrics_submitted", _all_submitted, priority=30),
        StopRule("tool_budget_exhausted", _budget_is_spent, priority=20),
        StopRule("stop_after_final_or_invalid", _is_invalid, priority=10),
    )
    takes_final_answer = False

    async def setup(self, env: Any, state: State) -> None:
        """Start a rollout; it needs rubric ids."""
        await super().setup(env, state)
        if "submit" in env.tool_clients and not expected_rubric_ids(state["input"]):
            raise RolloutFault("the row has no expected rubric ids")

    def spoils_message(self, env: Any, live: LiveRollout, call: ToolCall) -> bool:
        """A submission that lacks something can be made again."""
        return call.name != "submit" and super().spoils_message(env, live, call)

    async def run_call(self, env: Any, state: State, call: ToolCall) -> Outcome:
        """Run one admitted call."""
        if call.name == "submit" and call.name in env.tool_names:
            finding = check_call(call.name, call.arguments, live_of(state).schemas.get(call.name, {}))[1]
            if finding is not None:
                return failed("model", finding.text)
        return await super().run_call(env, state, call)

    def notice(self, env: Any, state: State) -> str | None:
        """Say when one call of the budget remains."""
        if env.max_tool_calls - state["jtc_tool_call_count"] != 1 or state.get("jtc_submit_complete"):
            return None
        return "One tool call of your budget remains."

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Answer the calls; the answers that end the episode are its last messages."""
        messages = await super().respond(env, state)
        if _all_submitted(env, state) or _budget_is_spent(env, state) or is_last_turn(env, state):
            state["final_env_response"] = messages
        return messages
