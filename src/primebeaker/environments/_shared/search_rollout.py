"""Rollouts of the search environments: every call is judged by itself, and the final message is the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from literegistry_tool_client import SearchClient, WebTerminalExecutionClient

from primebeaker.environments._shared.behaviour import Message, Reward, State, StopRule
from primebeaker.environments._shared.browsing import PAGE_OUTAGE, BrowsingTerminal, goes_to_plain_terminal
from primebeaker.environments._shared.commands import browse_of, is_fetchable, stage_names
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.live import live_of
from primebeaker.environments._shared.outcomes import Outcome, failed
from primebeaker.environments._shared.pages import PageFault, PageOutage, RolloutPages
from primebeaker.environments._shared.pooled_behaviour import PooledBehaviour
from primebeaker.environments._shared.results import terminal_content
from primebeaker.environments._shared.rows import web_pages_of
from primebeaker.environments._shared.search_tools import search_text, visited_page
from primebeaker.environments._shared.services import ServicePool, call_service, pooled, watch_outcomes
from primebeaker.environments._shared.thinking import off_the_loop, visible_text
from primebeaker.environments._shared.tool_calls import BrokenCall, ToolCall, message_calls
from primebeaker.environments._shared.tool_rollout import MOST_CONCURRENT_CALLS
from primebeaker.environments._shared.tool_setup import page_fetcher, terminal_client
from primebeaker.environments._shared.tool_specs import check_call, parameter_schemas

__all__ = ["SearchBehaviour", "SearchServices", "search_services"]


class SearchServices(NamedTuple):
    """What the tools of a search environment ask.

    Args:
        search: The search client.
        fetch: Asks the page service for a URL, for ``visit``; a failure is a :class:`PageFault`.
        webterminal: The page terminal, when it is offered.
        attempts: Attempts of one request; 1 for clients that repeat by themselves.
    """

    search: Any
    fetch: Callable[[str], Awaitable[Any]]
    webterminal: Any = None
    attempts: int = 1


def search_services(values: Values, pool: ServicePool) -> SearchServices:
    """The services that the arguments of an environment name."""
    corpus = values["local_search_model_path"] or None
    search = pooled(SearchClient, pool, values["search_server_url"], model_path=corpus, timeout=values["timeout"])
    pages = {
        "fetch_server_url": None,
        "fetch_timeout": values["timeout"],
        "fetch_max_retries": values["max_retries"],
        "fetch_max_content_length": None,
        "local_search_server_url": values["search_server_url"],
        "local_search_model_path": corpus,
    }
    fetch = page_fetcher(pages, pool)
    webterminal = None
    if "terminal_server_url" in values:
        terminal = terminal_client(values, pool)

        async def run(command: str, contents: str) -> Any:
            return await terminal.execute(command=command, contents=contents)

        webterminal = BrowsingTerminal(run, fetch, page_limit=values["webterminal_max_content_length"])
    return SearchServices(search, fetch, webterminal, values["max_retries"])


class Shown:
    """What one call came to: the text for the model, and who is to blame."""

    __slots__ = ("argument_error", "call", "outcome", "text")

    def __init__(
        self, call: ToolCall | BrokenCall, outcome: Outcome, text: str, *, argument_error: bool = False
    ) -> None:
        self.call = call
        self.outcome = outcome
        self.text = text
        self.argument_error = argument_error


def _called_beyond_budget(env: Any, state: State) -> bool:
    return bool(state.get("primebeaker_calls_beyond_budget"))


def _no_tools_called(env: Any, state: State) -> bool:
    return bool(state["trajectory"]) and not live_of(state).calls


class SearchBehaviour(PooledBehaviour):
    """Search rollouts.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        services: What the tools ask.
        final_warning: What comes with the answer to the last allowed call.
        pool: Connections and request slots.
    """

    stops: Sequence[StopRule] = (
        StopRule("stop_after_tool_budget", _called_beyond_budget, priority=10),
        StopRule("no_tools_called", _no_tools_called),
    )

    def __init__(
        self,
        environment: str,
        *,
        rewards: Sequence[Reward],
        services: SearchServices,
        final_warning: str,
        pool: ServicePool,
    ) -> None:
        super().__init__(environment, rewards=rewards, pool=pool)
        self.final_warning = final_warning
        self.services = services

    async def setup(self, env: Any, state: State) -> None:
        """Start the counters and the page store."""
        await super().setup(env, state)
        live = live_of(state)
        live.pages = RolloutPages(web_pages_of(state["input"]) if self.services.webterminal is not None else None)
        state["search_agent_tool_call_count"] = 0
        state["search_agent_final_warning_sent"] = False
        state["search_agent_token_budget_warning_sent"] = False
        state["search_agent_turn_budget_warning_sent"] = False
        state["search_agent_model_caused_terminal_stderr_count"] = 0
        state["search_agent_infrastructure_error_count"] = 0

    async def observe(self, env: Any, state: State, message: Message) -> None:
        """Find the calls of a reply."""
        live = live_of(state)
        live.schemas = parameter_schemas(env.tool_defs, {})

        def read() -> list[ToolCall | BrokenCall]:
            return message_calls(message, live.schemas)

        live.calls = await off_the_loop(visible_text(message), read)
        spent = state["search_agent_tool_call_count"] >= env.max_tool_calls
        state["primebeaker_calls_beyond_budget"] = bool(live.calls) and spent

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Run the admitted calls and answer every one."""
        live = live_of(state)
        left = env.max_tool_calls - state["search_agent_tool_call_count"]
        admitted, refused = live.calls[:left], live.calls[left:]
        slots = asyncio.Semaphore(MOST_CONCURRENT_CALLS)

        async def run(call: ToolCall | BrokenCall) -> Shown:
            async with slots:
                return await self._run(env, state, call)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in admitted]
        messages = []
        outcomes = []
        for task in tasks:
            shown = task.result()
            state["search_agent_tool_call_count"] += 1
            await off_the_loop(_command_of(shown.call), self._count, state, shown)
            outcomes.append((shown.call.name or "tool", shown.outcome))
            text = "\n\n".join([shown.text, *self._warnings(env, state)])
            messages.append(self._answer(state, shown.call, text))
        for call in refused:
            text = f"the budget of {env.max_tool_calls} tool calls is spent; this call was not run"
            messages.append(self._answer(state, call, text))
        watch_outcomes(self.environment, env, state, live, self.outages, outcomes)
        return messages

    def _answer(self, state: State, call: ToolCall | BrokenCall, text: str) -> Message:
        live = live_of(state)
        live.answered += 1
        name = call.name if isinstance(call, ToolCall) else "call"
        id = call.id or f"{name}_{live.answered}"
        return {"role": "tool", "tool_call_id": id, "name": call.name or "call", "content": text}

    async def _run(self, env: Any, state: State, call: ToolCall | BrokenCall) -> Shown:
        live = live_of(state)
        if isinstance(call, BrokenCall):
            return _argument_error(call, f"{call.name or 'tool call'}: {call.problem}")
        definitions = {definition.name for definition in env.tool_defs}
        if call.name not in definitions:
            text = f"{call.name}: unknown tool; available: {', '.join(sorted(definitions))}"
            return Shown(call, Outcome("unknown_tool", failed("result", text).output), text)
        # Only this package may name the page store.
        arguments = {key: value for key, value in call.arguments.items() if key != "asset_store"}
        if call.name == "search":
            arguments.setdefault("num_results", 10)
        schema = live.schemas.get(call.name, {})
        arguments, finding = check_call(call.name, arguments, schema)
        if finding is not None:
            return _argument_error(call, finding.text)
        if call.name == "search":
            return await self._run_search(env, call, arguments)
        if call.name == "visit":
            return await self._run_visit(env, live.pages, call, arguments["url"].strip())
        return await self._run_webterminal(env, live.pages, call, arguments["command"])

    async def _run_search(self, env: Any, call: ToolCall, arguments: Mapping[str, Any]) -> Shown:
        outcome = await call_service(
            "search",
            lambda: self.services.search.execute(query=arguments["query"], num_results=arguments["num_results"]),
            slot=self.pool.tool_slot(),
            attempts=self.services.attempts,
        )
        if outcome.kind == "result":
            return Shown(call, outcome, search_text(arguments["query"], outcome.output))
        return Shown(call, outcome, _failure_text("search", outcome))

    async def _run_visit(self, env: Any, pages: RolloutPages, call: ToolCall, url: str) -> Shown:
        if not is_fetchable(url):
            return _argument_error(call, "visit: url must be an http or https URL with a host and without user info")

        async def fetch(url: str) -> Any:
            page = visited_page(await self.services.fetch(url), env.visit_max_content_length)
            return {"success": True, "data": {"content": page}}

        try:
            async with self.pool.tool_slot():
                text, _ = await pages.page(url, fetch, None)
        except PageOutage:
            outcome = failed("service", "visit: service unavailable")
            return Shown(call, outcome, str(outcome.output["stderr"]))
        except PageFault as fault:
            return Shown(call, failed("result", str(fault)), f"visit: {url}: {fault}")
        return Shown(call, Outcome("result", {"stdout": text}), text)

    async def _run_webterminal(self, env: Any, pages: RolloutPages, call: ToolCall, command: str) -> Shown:
        terminal = self.services.webterminal

        async def request() -> Any:
            plain = browse_of(command) is None and goes_to_plain_terminal(command, pages)
            if plain and isinstance(terminal, WebTerminalExecutionClient):
                # The client would take the words of "cat -n" for asset ids.
                return await terminal.terminal_client.execute(command=command, contents="")
            return await terminal.execute(command=command, contents="", asset_store=pages)

        outcome = await call_service(
            "webterminal",
            request,
            slot=self.pool.tool_slot(),
            attempts=self.services.attempts,
        )
        if outcome.output.pop(PAGE_OUTAGE, False):
            return Shown(call, Outcome("service", outcome.output), terminal_content(outcome.output))
        if outcome.kind == "service" and "execution_time" not in outcome.output:
            return Shown(call, outcome, _failure_text("webterminal", outcome))
        return Shown(call, outcome, terminal_content(outcome.output))

    def _count(self, state: State, shown: Shown) -> None:
        if shown.outcome.kind == "service":
            state["search_agent_infrastructure_error_count"] += 1
        if shown.call.name != "webterminal" or not isinstance(shown.outcome.output.get("stderr"), str):
            return
        browses = stage_names(_command_of(shown.call))[:1] == ["browse"]
        blamed = shown.argument_error or (shown.outcome.kind in ("result", "model") and not browses)
        if blamed and shown.outcome.output["stderr"].strip():
            state["search_agent_model_caused_terminal_stderr_count"] += 1

    def _warnings(self, env: Any, state: State) -> list[str]:
        """Warnings that come with the answer of the call that was just counted, each once a rollout."""
        warnings = []
        most, fraction = env.max_total_completion_tokens, env.token_budget_warning_fraction
        if most > 0 and fraction is not None and not state["search_agent_token_budget_warning_sent"]:
            usage = env.get_state_usage(state) or {}
            left = max(0, most - math.ceil(usage.get("output_tokens", 0)))
            if left <= math.floor(most * fraction):
                state["search_agent_token_budget_warning_sent"] = True
                warnings.append(_budget_warning("completion tokens", left, most, fraction))
        fraction = env.turn_budget_warning_fraction
        if fraction is not None and not state["search_agent_turn_budget_warning_sent"]:
            left = max(0, env.max_turns - len(state["trajectory"]))
            if left <= max(1, math.floor(env.max_turns * fraction)):
                state["search_agent_turn_budget_warning_sent"] = True
                warnings.append(_budget_warning("turns", left, env.max_turns, fraction))
        if state["search_agent_tool_call_count"] >= env.max_tool_calls and not state["search_agent_final_warning_sent"]:
            state["search_agent_final_warning_sent"] = True
            warnings.append(self.final_warning)
        return warnings


def _command_of(call: ToolCall | BrokenCall) -> str:
    command = call.arguments.get("command") if isinstance(call, ToolCall) else None
    return command if isinstance(command, str) else ""


def _argument_error(call: ToolCall | BrokenCall, text: str) -> Shown:
    outcome = failed("model", text)
    return Shown(call, outcome, str(outcome.output["stderr"]), argument_error=True)


def _failure_text(tool: str, outcome: Outcome) -> str:
    reason = str(outcome.output.get("stderr") or "the call failed")
    return reason if reason.startswith(f"{tool}:") else f"{tool}: {reason}"


def _budget_warning(of: str, left: int, total: int, fraction: float) -> str:
    share = f"{100 * fraction:.6g}%"
    return f"Only {left} of {total} {of} remain, which is {share} or less of the budget. Come to an answer soon."
