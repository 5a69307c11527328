"""Rollouts of ``terminal-tool-label``: one terminal call a message, then the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import Message, Reward, State, StopRule
from primebeaker.environments._shared.final_answer import has_final_verdict
from primebeaker.environments._shared.live import live_of
from primebeaker.environments._shared.outcomes import Outcome, failed
from primebeaker.environments._shared.pooled_behaviour import PooledBehaviour
from primebeaker.environments._shared.results import terminal_content, terminal_payload
from primebeaker.environments._shared.services import ServicePool, watch_outcomes
from primebeaker.environments._shared.thinking import off_the_loop, visible_text
from primebeaker.environments._shared.tool_calls import ToolCall, message_calls
from primebeaker.environments._shared.tool_clients import run_client
from primebeaker.environments._shared.tool_specs import check_call, parameter_schemas
from primebeaker.errors import UserError
from primebeaker.runtime.templates import render_chat_template, template_variables

__all__ = ["TerminalBehaviour", "warning_renderer"]

_BUILT_IN_WARNING = (
    "That was the last terminal call you are allowed. Do not call terminal again. Answer now with only one JSON object"
    ' that has the string keys "feedback" and "label".'
)
_WARNING_VALUES = ("tool_content", "tool_name", "stdout", "stderr", "code", "success")


def warning_renderer(template: Mapping[str, Any] | None, path: object) -> Callable[[str, str, Outcome], str]:
    """Make the function from a tool's content, the command and its outcome to the content with the final warning.

    Args:
        template: The prompt template of the warning; None for a built-in text.
        path: Its file, for messages.

    Raises:
        UserError: The template does not begin with a user message, or asks for a value that there is not.
    """
    if template is not None:
        if template["chat_template"][0]["role"] != "user":
            raise UserError("the first message of a final warning must have the role user", file=path)
        for name in template_variables(template, file=path):
            if name not in _WARNING_VALUES:
                raise UserError(f"placeholder {{{name}}}; a final warning has {', '.join(_WARNING_VALUES)}", file=path)

    def render(content: str, command: str, outcome: Outcome) -> str:
        warning = _BUILT_IN_WARNING
        if template is not None:
            shown = terminal_payload(outcome.output)
            warning = render_chat_template(
                template,
                tool_content=content,
                tool_name="terminal",
                stdout=shown["stdout"],
                stderr=shown["stderr"],
                code=command,
                success=shown["success"],
            )[0]["content"]
        return warning if content in warning else f"{content}\n\n{warning}"

    return render


def _stops(env: Any, state: State) -> bool:
    return state.get("jtc_terminal_route") in ("final", "invalid", "over_limit")


class TerminalBehaviour(PooledBehaviour):
    """One terminal call a message.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        pool: Connections and request slots.
        warning: Puts the final warning to the last answer.
    """

    stops = (StopRule("stop_after_final_or_invalid", _stops, priority=10),)

    def __init__(
        self,
        environment: str,
        *,
        rewards: Sequence[Reward],
        pool: ServicePool,
        warning: Callable[[str, str, Outcome], str],
    ) -> None:
        super().__init__(environment, rewards=rewards, pool=pool)
        self.warning = warning

    async def setup(self, env: Any, state: State) -> None:
        """Start the counters."""
        await super().setup(env, state)
        state["jtc_terminal_command"] = None
        state["jtc_terminal_result"] = None
        state["jtc_terminal_call_count"] = 0
        state["jtc_terminal_final_warning_sent"] = False
        state["jtc_terminal_route"] = None
        state["jtc_tool_infrastructure_stderr_count"] = 0

    async def observe(self, env: Any, state: State, message: Message) -> None:
        """Find the call of a reply and its route."""
        live = live_of(state)
        schemas = parameter_schemas(env.tool_defs)

        def read() -> str:
            live.calls = message_calls(message, schemas)
            if not live.calls:
                return "final" if has_final_verdict(message) else "invalid"
            call = live.calls[0]
            if len(live.calls) > 1 or not isinstance(call, ToolCall) or call.name != "terminal":
                return "invalid"
            finding = check_call("terminal", call.arguments, schemas["terminal"])[1]
            if finding is not None and finding.kind == "malformed":
                return "invalid"
            left = state["jtc_terminal_call_count"] < env.max_terminal_calls
            return "terminal" if left and not state["jtc_terminal_final_warning_sent"] else "over_limit"

        state["jtc_terminal_route"] = await off_the_loop(visible_text(message), read)

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Run the call and answer it."""
        live = live_of(state)
        call = live.calls[0]
        if not isinstance(call, ToolCall):
            raise TypeError("a broken call has no answer")
        state["jtc_terminal_call_count"] += 1
        arguments, finding = check_call("terminal", call.arguments, parameter_schemas(env.tool_defs)["terminal"])
        if finding is not None:
            outcome = failed("model", finding.text)
        else:
            outcome = await run_client(env, self.pool, live, "terminal", arguments)
        state["jtc_terminal_command"] = call.arguments["command"]
        state["jtc_terminal_result"] = terminal_payload(outcome.output)
        state["jtc_tool_infrastructure_stderr_count"] += outcome.kind == "service"
        content = terminal_content(outcome.output)
        calls_left = state["jtc_terminal_call_count"] < env.max_terminal_calls
        if not calls_left or env.max_turns - len(state["trajectory"]) == 1:
            state["jtc_terminal_final_warning_sent"] = True
            content = self.warning(content, call.arguments["command"], outcome)
        watch_outcomes(self.environment, env, state, live, self.outages, [("terminal", outcome)])
        if not env.tool_role:
            return [{"role": "user", "content": content}]
        return [{"role": "tool", "tool_call_id": call.id or "terminal", "name": "terminal", "content": content}]
