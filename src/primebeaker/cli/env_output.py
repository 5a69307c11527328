"""How environments and rollouts are shown to people."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from primebeaker.cli.tables import columns, span
from primebeaker.environments.trying import Progress

__all__ = ["conversation", "described", "figures_table", "progress_line"]


def described(found: Mapping[str, Any]) -> str:
    """One environment, as ``env show`` prints it."""
    names = ", ".join([found["name"], *found["aliases"]])
    arguments = columns(
        ("ARGUMENT", "TYPE", "DEFAULT", "MEANING"),
        [
            (
                entry["name"],
                entry["type"],
                "required" if entry["required"] else json.dumps(entry["default"]),
                entry["description"],
            )
            for entry in found["arguments"]
        ],
    )
    rewards = columns(
        ("REWARD", "WEIGHT", "FORMULA"),
        [(entry["name"], f"{entry['weight']:g}", entry["formula"]) for entry in found["rewards"]],
    )
    parts = [f"{names}\n{found['module']}\n{found['summary']}", arguments, rewards]
    for tool in found["tool_definitions"]:
        parameters = json.dumps(tool["parameters"], ensure_ascii=False)
        parts.append(f"tool {tool['name']}: {tool['description']}\n  parameters: {parameters}")
    return "\n\n".join([*parts, found["toml"]])


def progress_line(progress: Progress) -> str:
    """One live line: how far, at what rate, with what mean reward."""
    elapsed = max(time.monotonic() - progress.started, 1e-9)
    mean = sum(progress.rewards) / len(progress.rewards) if progress.rewards else 0.0
    parts = [
        f"{progress.done}/{progress.total} rollouts",
        f"{progress.done / elapsed:.1f}/s",
        f"mean reward {mean:.3f}",
        f"{progress.errors} errors",
        str(span(elapsed)),
    ]
    return "  ".join(parts)


def figures_table(data: Mapping[str, Any]) -> str:
    """The figures of a run, and what went wrong."""
    rows = [
        (name, *(f"{figures[key]:.3f}" for key in ("mean", "spread", "min", "max")), f"{figures['zeros']:.0%}")
        for name, figures in data["figures"].items()
    ]
    lines = [
        f"{data['environment']} with {data['model']}: {data['rollouts']} rollouts in {data['seconds']:.1f} s",
        "",
        columns(("", "MEAN", "SPREAD", "MIN", "MAX", "ZEROS"), rows),
        "",
        f"scored {data['scored']}, truncated {data['truncated']}, infrastructure errors"
        f" {data['infrastructure_errors']}, other errors {data['other_errors']}",
    ]
    if data["first_error"]:
        lines.append(f"first error: {data['first_error']}")
    return "\n".join(lines)


def conversation(entry: Mapping[str, Any]) -> str:
    """One rollout as readable text."""
    error = entry["error"]
    head = f"── rollout {entry['rollout']}, row {entry['example_id']}: reward {entry['reward']:g}"
    lines = [f"{head}, {error['kind']}" if error else f"{head}, stopped by {entry['stop_condition']}"]
    for message in [*(entry["prompt"] or []), *(entry["completion"] or [])]:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
        lines.append(f"[{message.get('role', '?')}]")
        if message.get("reasoning_content"):
            lines.append(_indented(f"(thinks) {message['reasoning_content']}"))
        if text:
            lines.append(_indented(text))
        for call in message.get("tool_calls") or []:
            lines.append(_indented(f"-> {_call(call)}"))
    return "\n".join(lines)


def _call(call: Any) -> str:
    if isinstance(call, str):
        # Verifiers writes calls as JSON text.
        call = json.loads(call)
    function = call.get("function", call)
    return f"{function.get('name')}({function.get('arguments')})"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
