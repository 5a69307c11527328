"""Counting what a model does with its tools, for penalties and metrics."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.behaviour import State
from primebeaker.environments._shared.commands import browse_of, stage_names, url_is_in_output
from primebeaker.environments._shared.outcomes import Outcome
from primebeaker.environments._shared.tool_calls import ToolCall

__all__ = ["TARGETED_COMMANDS", "count_call", "counted_state", "excess_fraction"]

#: Commands whose repeated use on their own is penalised, unless others are named.
TARGETED_COMMANDS = ("cat", "sed", "head", "tail")

_COUNTS = (
    "jtc_tool_call_count",
    "jtc_tool_executed_count",
    "jtc_tool_nonempty_stderr_count",
    "jtc_tool_command_error_count",
    "jtc_tool_infrastructure_stderr_count",
    "jtc_unknown_tool_call_count",
    "jtc_browse_call_count",
    "jtc_browse_url_not_in_output_count",
    "jtc_successful_browse_count",
    "jtc_standalone_command_count",
    "jtc_targeted_standalone_command_count",
)


def counted_state() -> dict[str, Any]:
    """The counters of a new rollout."""
    return {**dict.fromkeys(_COUNTS, 0), "jtc_targeted_standalone_excess_fraction": 0.0}


def count_call(state: State, call: ToolCall, outcome: Outcome, *, env: Any, output: Any, offered: bool) -> None:
    """Add one admitted call to the counters.

    Args:
        state: The rollout.
        call: The call.
        outcome: What became of it.
        env: The environment, for the list of targeted commands.
        output: The judged output, in which browsed URLs are looked for.
        offered: Whether the tool is offered.
    """
    state["jtc_tool_executed_count" if offered else "jtc_unknown_tool_call_count"] += 1
    command = call.arguments.get("command") if call.name == "terminal" else None
    stages = stage_names(command) if isinstance(command, str) else []
    stderr = outcome.output.get("stderr")
    if isinstance(stderr, str) and stderr.strip():
        state["jtc_tool_nonempty_stderr_count"] += 1
        if outcome.kind in ("result", "model") and stages[:1] != ["browse"]:
            state["jtc_tool_command_error_count"] += 1
    if outcome.kind == "service":
        state["jtc_tool_infrastructure_stderr_count"] += 1
    if not isinstance(command, str) or not offered:
        return
    _count_browse(state, command, stages, outcome, output)
    if len(stages) == 1:
        state["jtc_standalone_command_count"] += 1
        targeted = getattr(env, "standalone_command_repeat_commands", None) or TARGETED_COMMANDS
        state["jtc_targeted_standalone_command_count"] += stages[0] in targeted
    state["jtc_targeted_standalone_excess_fraction"] = excess_fraction(
        state, getattr(env, "standalone_command_repeat_free_count", 1)
    )


def _count_browse(state: State, command: str, stages: list[str], outcome: Outcome, output: Any) -> None:
    if stages[:1] == ["browse"]:
        state["jtc_browse_call_count"] += 1
    browse = browse_of(command)
    if browse is None:
        return
    state["jtc_browse_url_not_in_output_count"] += not url_is_in_output(browse.url, output)
    state["jtc_successful_browse_count"] += outcome.output.get("success") is True


def excess_fraction(state: State, free: int) -> float:
    """max(targeted - free, 0) / standalone; 0.0 when no command stood alone."""
    standalone = state["jtc_standalone_command_count"]
    excess = max(state["jtc_targeted_standalone_command_count"] - free, 0)
    return float(excess / standalone) if standalone else 0.0
