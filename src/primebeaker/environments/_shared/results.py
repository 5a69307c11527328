"""How tool results look to the model: exact forms, since trained models know them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "cut",
    "cut_streams",
    "fenced_content",
    "json_content",
    "search_content",
    "stored_output",
    "terminal_content",
    "terminal_payload",
    "tool_content",
]

#: Keys of a tool's reply that are worth keeping in the state; what else a service sends may be large.
_STORED_KEYS = (
    "stdout",
    "stderr",
    "success",
    "exit_code",
    "execution_time",
    "truncated",
    "truncated_characters",
    "timed_out",
    "stdout_truncated",
    "stderr_truncated",
    "output",
    "error",
    "data",
    "web_asset",
)


def cut(text: str, limit: int | None) -> str:
    """Cut ``text`` to ``limit`` characters, with a marker that tells how many are left out.

    The result is never longer than the limit; a limit shorter than the marker gives the plain beginning.
    """
    if limit is None or len(text) <= limit:
        return text
    marker = f"\n[The rest of the output was truncated; {len(text) - limit} characters omitted]"
    if limit < len(marker):
        return text[:limit]
    return text[: limit - len(marker)] + marker


def cut_streams(output: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """A copy of a tool's reply with each of its text streams cut."""
    streams = ("stdout", "stderr", "output", "error")
    return {
        key: cut(value, limit) if key in streams and isinstance(value, str) else value for key, value in output.items()
    }


def stored_output(output: Mapping[str, Any]) -> dict[str, Any]:
    """What the state keeps of a reply."""
    return {key: output[key] for key in _STORED_KEYS if key in output}


def terminal_payload(output: Mapping[str, Any]) -> dict[str, Any]:
    """The seven keys of a terminal result, missing ones filled in."""
    characters = output.get("truncated_characters")
    return {
        "execution_time": output.get("execution_time"),
        "exit_code": output.get("exit_code"),
        "stderr": _text(output.get("stderr")),
        "stdout": _text(output.get("stdout")),
        "success": bool(output.get("success", False)),
        "truncated": bool(output.get("truncated", False)),
        "truncated_characters": characters if isinstance(characters, int) else 0,
    }


def terminal_content(output: Mapping[str, Any]) -> str:
    """A terminal result as one JSON object with exactly seven keys, sorted."""
    return json_content(terminal_payload(output))


def json_content(output: Mapping[str, Any]) -> str:
    """A result as one JSON object, keys sorted, non-ASCII kept."""
    return json.dumps(output, ensure_ascii=False, sort_keys=True)


def fenced_content(output: Mapping[str, Any]) -> str:
    """A result as two fenced blocks; when both streams are empty, ``output`` and ``error`` fill them."""
    stdout, stderr = _text(output.get("stdout")), _text(output.get("stderr"))
    if not stdout and not stderr:
        stdout, stderr = _text(output.get("output")), _text(output.get("error"))
    return f"```stdout\n{stdout}\n```\n\n```stderr\n{stderr}\n```"


def search_content(output: Mapping[str, Any]) -> str:
    """A search result in fenced form; without streams, the JSON text of its ``data`` (else of the reply)."""
    if _text(output.get("stdout")) or _text(output.get("stderr")):
        return fenced_content(output)
    data = output["data"] if output.get("data") is not None else output
    return fenced_content({"stdout": json.dumps(data, ensure_ascii=False)})


def tool_content(name: str, output: Mapping[str, Any]) -> str:
    """The text a model sees for the result of the tool ``name``."""
    if name in ("terminal", "trace_inspection"):
        return terminal_content(output)
    if name == "submit":
        return json_content(output)
    if name == "search":
        return search_content(output)
    return fenced_content(output)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
