"""Failures of the Podman service: what a client's exception means, and the record a rollout keeps of the first one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import aiohttp

from primebeaker.environments._shared.behaviour import State
from primebeaker.environments._shared.outcomes import http_status
from primebeaker.redaction import Redactor

__all__ = ["Phase", "Trouble", "failure_defaults", "is_out_of_memory", "record_failure", "safe_text", "trouble_of"]

Phase = Literal["setup", "execute", "test"]

#: ``refused``: the request did not reach the service. ``status``: it answered with an HTTP error. ``lost``: the
#: request may have been served and its reply did not come. ``other``: none of these.
TroubleKind = Literal["refused", "status", "lost", "other"]

_LONGEST_MESSAGE = 2000
_URL = re.compile(
    r"\b(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?:[^\s/@'\"]*@)?(?P<host>[^\s/?#'\",;)\]}>]+?)"
    r"(?:[/?#][^\s'\",)\]}>]*?)?(?=:?(?:[\s'\",;)\]}>]|$))"
)
_HEADER = re.compile(
    r"(?i)\b(?P<name>authorization|bearer|token(?=[:=]))\b[:=]?\s*(?:(?:bearer|basic|token)\s+)?[^\s,;]+"
)
_MEMORY_WORDS = ("out of memory", "out-of-memory", "oomerror", "cannot allocate memory")
_OOM = re.compile(r"(?<![^\W_])oom(?:[-_]?killed|_kill)?(?![^\W_])", re.IGNORECASE)
_redact = Redactor()


class Trouble(NamedTuple):
    """What an exception of a container client means."""

    kind: TroubleKind
    status: int | None = None

    @property
    def is_session_lost(self) -> bool:
        """Whether the container is gone."""
        return self.status in (404, 410)


def trouble_of(error: BaseException) -> Trouble:
    """Tell whether a request reached the service, and what it answered."""
    status = http_status(error) if isinstance(error, Exception) else None
    if status is not None:
        return Trouble("status", status)
    causes = list(_causes(error))
    if any(isinstance(cause, aiohttp.ClientConnectorError | ConnectionRefusedError) for cause in causes):
        return Trouble("refused")
    lost = aiohttp.ClientError | TimeoutError | OSError
    if any(isinstance(cause, lost) for cause in causes) or "response was not" in str(error):
        return Trouble("lost")
    return Trouble("other")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def safe_text(text: str) -> str:
    """One line without paths of URLs, credentials and excess length."""
    shown = _HEADER.sub(r"\g<name> ***", _URL.sub(r"\g<scheme>://\g<host>", text))
    line = " ".join(_redact(shown).split())
    return line[:_LONGEST_MESSAGE]


def is_out_of_memory(text: str) -> bool:
    """Whether a failure's type and message speak of exhausted memory."""
    lowered = text.lower()
    return any(words in lowered for words in _MEMORY_WORDS) or _OOM.search(text) is not None


def record_failure(state: State, phase: Phase, error: BaseException | str, *, after_kill: bool = False) -> None:
    """Keep the first Podman failure of a rollout.

    Args:
        state: The rollout.
        phase: What it was doing.
        error: The exception, or what happened in words.
        after_kill: Whether the last command before it ended with exit code 137.
    """
    if state.get("podman_failure"):
        return
    kind = "PodmanError" if isinstance(error, str) else type(error).__name__
    message = safe_text(str(error)) or kind
    killed = after_kill and not isinstance(error, str) and trouble_of(error).is_session_lost
    state["podman_failure"] = True
    state["podman_failure_phase"] = phase
    state["podman_failure_type"] = kind
    state["podman_failure_message"] = message
    state["podman_failure_oom"] = killed or is_out_of_memory(f"{kind}: {message}")
    state["jtc_infrastructure_failure"] = True


def failure_defaults() -> dict[str, Any]:
    """The record of a rollout without a failure."""
    return {
        "podman_failure": False,
        "podman_failure_phase": None,
        "podman_failure_type": None,
        "podman_failure_message": None,
        "podman_failure_oom": False,
        "jtc_infrastructure_failure": False,
    }
