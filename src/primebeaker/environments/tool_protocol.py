"""Helpers for scripts that prepare or read tool conversations: parsing Qwen-style text, and tool definitions."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.thinking import first_thinking, without_thinking
from primebeaker.environments._shared.tool_calls import ToolCall, block_calls, without_call_blocks
from primebeaker.environments._shared.tool_specs import TOOL_SPECS, parameter_schemas, tool_definition

__all__ = [
    "GPTOSS_BASH_TOOL",
    "GPTOSS_PYTHON_TOOL",
    "GPTOSS_SEARCH_TOOL",
    "GPTOSS_SUBMIT_TOOL",
    "GPTOSS_TERMINAL_TOOL",
    "GPTOSS_WEBTERMINAL_TOOL",
    "TOOL_SPECS",
    "parse_qwen_thinking",
    "parse_qwen_tool_calls",
    "strip_qwen_special_blocks",
]

GPTOSS_PYTHON_TOOL = tool_definition("python")
GPTOSS_TERMINAL_TOOL = tool_definition("terminal")
GPTOSS_BASH_TOOL = tool_definition("bash")
GPTOSS_WEBTERMINAL_TOOL = tool_definition("webterminal")
GPTOSS_SEARCH_TOOL = tool_definition("search")
GPTOSS_SUBMIT_TOOL = tool_definition("submit")


def parse_qwen_tool_calls(text: str) -> list[dict[str, Any]]:
    """The well-formed ``<tool_call>`` blocks outside thinking, in order, each as ``{"name", "arguments"}``."""
    calls = block_calls(without_thinking(text), parameter_schemas(()))
    return [{"name": call.name, "arguments": call.arguments} for call in calls if isinstance(call, ToolCall)]


def parse_qwen_thinking(text: str) -> str:
    """The first thinking text, trimmed; else the text before ``</think>``; else an empty text."""
    return first_thinking(text)


def strip_qwen_special_blocks(text: str) -> str:
    """The text without thinking and without ``<tool_call>`` blocks, trimmed."""
    return without_call_blocks(without_thinking(text), {}).strip()
