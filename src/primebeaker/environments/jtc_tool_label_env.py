"""``tool-label``: judge an output with tools, several calls a message, then a JSON verdict.

JTC's workflows change :data:`TOOL_SPECS` and :func:`_tool_content` during a run; both are looked up at each call.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from primebeaker.environments._shared.arguments import Argument, flag, integer, number, text, text_list, url
from primebeaker.environments._shared.build import ContentsLimit, build_environment, resolved_max_turns, rows_of
from primebeaker.environments._shared.counting import TARGETED_COMMANDS
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.results import terminal_content, tool_content
from primebeaker.environments._shared.tool_rewards import FINAL_ANSWER_REWARDS, TOOL_METRICS, TOOL_REWARDS
from primebeaker.environments._shared.tool_specs import TOOL_SPECS as _KNOWN_TOOLS
from primebeaker.environments._shared.tool_specs import tool_definition

__all__ = ["SPEC", "TOOL_SPECS", "load_environment", "terminal_output_to_tool_content"]

logger = logging.getLogger("primebeaker.environments")

#: Tool definitions by name, consulted at each call; JTC adds its own for the time of a run.
TOOL_SPECS: dict[str, dict[str, Any]] = copy.deepcopy(_KNOWN_TOOLS)

_OFFERABLE = ("terminal", "submit")

FINAL_WARNING = (
    "That was the last allowed tool call. Do not call a tool again. Answer now, and only with one JSON object that has"
    ' the string keys "feedback" and "label".'
)


def terminal_output_to_tool_content(output: Mapping[str, Any]) -> str:
    """A terminal result as the model sees it: one JSON object with seven sorted keys."""
    return terminal_content(output)


def _tool_content(name: str, output: Mapping[str, Any]) -> str:
    return tool_content(name, output)


def render_tool_content(name: str, output: dict[str, Any]) -> str:
    """The text of a tool's result, by whatever ``_tool_content`` is at the time of the call."""
    return _tool_content(name, output)


def _command_name(name: str) -> str | None:
    return None if name and not any(character.isspace() for character in name) else "expected command names"


#: Arguments of the base tool protocol, which other environments take over.
TOOL_ARGUMENTS = (
    Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
    Argument("split", text(), "train", "Split to load."),
    Argument("tools", text_list(of=_OFFERABLE).or_null(), None, "Offered tools; null is terminal."),
    Argument("terminal_server_url", url(), "http://127.0.0.1:1212/terminal", "Route of the terminal service."),
    Argument("timeout", number(above=0), 20, "Seconds of one terminal request."),
    Argument("max_retries", integer(least=1), 3, "Attempts of one terminal call in all."),
    Argument(
        "terminal_truncation",
        integer(least=1, decimal_text=True).or_null(),
        2000,
        "Characters of each stream the terminal shows; null is the service's own limit.",
    ),
    Argument("browser_aware_terminal", flag(), False, "Whether terminal understands browse and cat of pages."),
    Argument("fetch_server_url", url().or_null(), None, "Base URL of the reader service; null is LiteRegistry's."),
    Argument("fetch_timeout", number(above=0), 65, "Seconds of one page request."),
    Argument("fetch_max_retries", integer(least=1), 3, "Attempts of one page request in all."),
    Argument("local_search_server_url", url().or_null(), None, "Gateway search route that pages come from, if set."),
    Argument("local_search_model_path", text().or_null(), None, "Corpus of the gateway's page service."),
    Argument("fetch_max_content_length", integer(least=1).or_null(), 64000, "Characters of a page that are kept."),
    Argument("capture_web_assets", flag(), False, "Whether fetched pages are kept in the stored results."),
    Argument("tool_role", flag(), True, "Whether results are tool messages; else user messages."),
    Argument("max_tool_calls", integer(least=0), 64, "Tool calls of a rollout; 0 is none."),
    Argument("max_turns", integer(least=0).or_null(), None, "Assistant turns; null or 0 is max_tool_calls + 1."),
    Argument(
        "final_warning", text().or_null(), None, "Text that comes with the last allowed answer; null is built in."
    ),
    Argument("reasoning_only_final_penalty", number(most=0), -4.0, "Reward of a verdict in hidden reasoning only."),
    Argument("invalid_trace_penalty", number(most=0), -4.0, "Reward of an invalid last message."),
    Argument("tool_use_reward_coef", number(), 0.0, "Reward of using the whole budget of calls."),
    Argument("tool_stderr_penalty", number(least=0), 0.1, "Penalty of a command error."),
    Argument("unknown_tool_penalty", number(least=0), 0.1, "Penalty of a call to a tool that is not offered."),
    Argument("browse_url_not_in_output_penalty", number(least=0), 0.0, "Penalty of browsing a URL that is not cited."),
    Argument("browse_success_reward_coef", number(least=0), 0.0, "Reward of a rollout with a successful browse."),
    Argument("standalone_command_repeat_penalty", number(least=0), 0.0, "Penalty of repeating commands on their own."),
    Argument("standalone_command_repeat_free_count", integer(least=0), 1, "Standalone uses that are free."),
    Argument(
        "standalone_command_repeat_commands",
        text_list(item=_command_name).or_null(),
        None,
        f"Commands whose repetition counts; null is {', '.join(TARGETED_COMMANDS)}.",
    ),
    Argument(
        "max_consecutive_infrastructure_errors",
        integer(least=1).or_null(),
        5,
        "Service failures in a row that end a rollout with an error; null is never.",
    ),
)


def check_tool_arguments(values: Values) -> Iterable[tuple[str, str]]:
    """The rules over several arguments of the base tool protocol."""
    tools = values["tools"]
    if tools == () and values["max_tool_calls"] > 0:
        yield "tools", "an empty list is for max_tool_calls = 0 only"
    if values["browser_aware_terminal"] and tools is not None and "terminal" not in tools:
        yield "browser_aware_terminal", "needs 'terminal' in tools"
    if values["local_search_model_path"] is not None and values["local_search_server_url"] is None:
        yield "local_search_model_path", "needs local_search_server_url"


SPEC = EnvironmentSpec(
    name="tool-label",
    summary="Judge an output with tools, then answer with a JSON verdict.",
    arguments=TOOL_ARGUMENTS,
    rewards=(*TOOL_REWARDS, *FINAL_ANSWER_REWARDS, *TOOL_METRICS),
    tools=(tool_definition("terminal"),),
    check=check_tool_arguments,
)


def offered_definitions(tools: Iterable[str], *, browser_aware: bool) -> list[dict[str, Any]]:
    """Copies of the definitions of the offered tools; a browser-aware terminal says that it can browse."""
    return [
        tool_definition("webterminal", shown_as="terminal")
        if name == "terminal" and browser_aware
        else tool_definition(name)
        for name in tools
    ]


def warn_without_page_service(environment: str, values: Values) -> None:
    """Say that only stored pages can be browsed, when there is no way to fetch others."""
    if (
        values["browser_aware_terminal"]
        and values["local_search_server_url"] is None
        and not os.environ.get("JINA_API_KEY")
    ):
        logger.warning(
            "%s: neither local_search_server_url nor JINA_API_KEY is set; only stored pages can be browsed", environment
        )


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.live import MOST_CONTENTS
    from primebeaker.environments._shared.services import ServicePool
    from primebeaker.environments._shared.tool_rollout import ToolBehaviour
    from primebeaker.environments._shared.tool_setup import build_tool_clients

    tools = ("terminal",) if values["tools"] is None else values["tools"]
    limit = ContentsLimit(SPEC.name, MOST_CONTENTS)
    rows = rows_of(SPEC.name, values, DatasetRules(check=limit.check))
    limit.warn()
    warn_without_page_service(SPEC.name, values)
    pool = ServicePool()
    behaviour = ToolBehaviour(SPEC.name, rewards=SPEC.rewards, specs=TOOL_SPECS, render=render_tool_content, pool=pool)
    return build_environment(
        behaviour,
        rows,
        values,
        max_turns=resolved_max_turns(values["max_turns"], values["max_tool_calls"]),
        tool_defs=offered_definitions(tools, browser_aware=values["browser_aware_terminal"]),
        settings={
            "tool_names": frozenset(tools),
            "tool_clients": build_tool_clients(tools, values, pool),
            "final_warning": values["final_warning"] or FINAL_WARNING,
        },
    )


load_environment = factory(SPEC, _build)
