"""What became of a call to a service, and who is to blame: the model, the service, or a setting."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "Outcome",
    "OutcomeKind",
    "failed",
    "http_status",
    "is_worth_a_retry",
    "outcome_of_error",
    "outcome_of_reply",
    "unavailable",
]

#: ``result``: a reply, whatever its exit code. ``model``: the call itself was at fault. ``time_limit``: the command ran
#: out of time. ``service``: an outage. ``configuration``: a setting of the run is wrong.
#: ``unknown_tool``: the tool is not offered.
OutcomeKind = Literal["result", "model", "time_limit", "service", "configuration", "unknown_tool"]

_HTTP_ERROR = re.compile(r"HTTP (?P<status>[0-9]{3}) at \S+: (?P<body>.*)", re.DOTALL)
_ERROR_TEXT = re.compile(r'"error"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)')
_RETRIED_STATUSES = frozenset({429, 502, 503})
_MODEL_CAUSED_STATUSES = frozenset({400, 413, 422})
_LONGEST_REASON = 500
_UNAVAILABLE_COMMAND = "required command is unavailable:"


@dataclass(frozen=True)
class Outcome:
    """The result of one call as the model may see it.

    Args:
        kind: Who is to blame, see :data:`OutcomeKind`.
        output: ``stdout``, ``stderr``, ``success``, ``exit_code`` and what else the service replied.
    """

    kind: OutcomeKind
    output: dict[str, Any]


def failed(kind: OutcomeKind, reason: str, *, exit_code: int = 1) -> Outcome:
    """An outcome without a reply: the reason is what the model sees on stderr."""
    output = {"stdout": "", "stderr": " ".join(reason.split()), "success": False, "exit_code": exit_code}
    return Outcome(kind, output)


def outcome_of_reply(tool: str, reply: Any) -> Outcome:
    """The outcome of a call that got a reply."""
    if not isinstance(reply, Mapping):
        return unavailable(tool)
    stderr = reply.get("stderr")
    if isinstance(stderr, str) and stderr.lower().startswith(_UNAVAILABLE_COMMAND):
        return Outcome("service", dict(reply))
    return Outcome("result", dict(reply))


def outcome_of_error(tool: str, error: Exception) -> Outcome:
    """The outcome of a call whose client raised.  No URL, host, header or class name gets into it."""
    if _refuses_arguments(error):
        reason = str(error) if isinstance(error, ValueError) else "these arguments are not accepted"
        return failed("model", f"{tool}: {reason}"[:_LONGEST_REASON])
    status = http_status(error)
    if status in _MODEL_CAUSED_STATUSES:
        reason = _reason(error) or f"HTTP {status}"
        kind: OutcomeKind = "configuration" if reason.startswith("truncation cannot exceed") else "model"
        return failed(kind, reason)
    if status == 408:
        return failed("time_limit", f"{tool}: the command ran out of time", exit_code=124)
    return unavailable(tool)


def unavailable(tool: str) -> Outcome:
    """The outcome of an outage."""
    return failed("service", f"{tool}: service unavailable")


def http_status(error: Exception) -> int | None:
    """The HTTP status in a tool client's error, which tells it in its text only."""
    match = _HTTP_ERROR.search(str(error))
    return int(match["status"]) if match else None


def is_worth_a_retry(error: Exception) -> bool:
    """Whether a failed attempt may be made again: connection faults, time-outs, and HTTP 429, 502 and 503."""
    if _refuses_arguments(error):
        return False
    status = http_status(error)
    if status is not None:
        return status in _RETRIED_STATUSES
    # A reply that is no JSON object will be none the next time; what is left are connection faults and time-outs.
    return "response was not" not in str(error)


def _refuses_arguments(error: Exception) -> bool:
    # An undecodable reply is a UnicodeError, which is a ValueError, and the service's fault.
    return isinstance(error, TypeError | ValueError) and not isinstance(error, UnicodeError)


def _reason(error: Exception) -> str:
    match = _HTTP_ERROR.search(str(error))
    body = match["body"] if match else ""
    try:
        found: Any = json.loads(body)
    except ValueError:
        # The client passes on the first 1000 characters only, which may cut the JSON.
        text = _ERROR_TEXT.search(body)
        return _unescaped(text["text"])[:_LONGEST_REASON] if text else ""
    if isinstance(found, Mapping):
        found = found.get("detail") or found.get("error")
        if isinstance(found, Mapping):
            found = found.get("error") or found
    if found is None:
        return ""
    return (found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))[:_LONGEST_REASON]


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
