"""How results of the two tools look to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.results import fenced_content, tool_content

__all__ = ["podman_tool_content"]


def podman_tool_content(name: str, output: Mapping[str, Any]) -> str:
    """The text a model sees: for ``bash`` two fenced blocks, and what was unusual in one more line."""
    if name != "bash":
        return tool_content(name, output)
    remarks = []
    code = output.get("exit_code")
    late = bool(output.get("timed_out"))
    cut = [stream for stream in ("stdout", "stderr") if output.get(f"{stream}_truncated")]
    if code not in (0, None):
        remarks.append(f"exit code {code}")
    if late:
        limit = output.get("time_limit")
        remarks.append("timed out" if limit is None else f"timed out after {limit:g} s")
    remarks += [f"{stream} truncated" for stream in cut]
    content = fenced_content(output)
    return f"{content}\n\n[{'; '.join(remarks)}]" if remarks else content
