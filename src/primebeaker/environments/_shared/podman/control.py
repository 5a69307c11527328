"""Running scripts of ours in a container that a model may have prepared.

The service starts every command through a login shell, whose start-up files the model can edit.  So a control command
replaces that shell at once by a clean one (no profile, no environment), in words that neither an alias nor a function
can stand in for, and its answer lies between two copies of a random token that is only told on standard input.
"""

from __future__ import annotations

import secrets
import shlex
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from primebeaker.environments._shared.podman.session import Session

__all__ = ["CONTROL_SECONDS", "PIECE_CHARACTERS", "Answer", "control", "script_text", "write_file"]

#: Seconds a control command may take: what the service allows.
CONTROL_SECONDS = 60.0

#: Characters of a file that go into one request.
PIECE_CHARACTERS = 1_000_000

# In POSIX mode `exec` is found before any function; the backslash keeps it from being an alias. The assignment is one.
_LAUNCH = "POSIXLY_CORRECT=1\n\\exec -c /bin/bash --noprofile --norc -c "


class Answer(NamedTuple):
    """What a script answered.

    Args:
        text: Between the tokens.
        token: The token, which separates parts of an answer.
    """

    text: str
    token: str


@lru_cache
def script_text(name: str) -> str:
    """The text of a script of this package, without its comments."""
    source = files("primebeaker.environments._shared.podman").joinpath("scripts", f"{name}.bash")
    lines = source.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def command_line(scripts: tuple[str, ...], arguments: tuple[str, ...]) -> str:
    """The command that runs scripts one after the other in one clean shell, with arguments."""
    text = "\n".join(script_text(name) for name in ("prelude", *scripts))
    return _LAUNCH + shlex.join([text, "primebeaker", *arguments])


async def control(session: Session, scripts: tuple[str, ...], *arguments: str, stdin: str = "") -> Answer | None:
    """Run scripts in a container.

    Args:
        session: The container.
        scripts: Names of scripts, run one after the other in one shell.
        arguments: Their arguments.
        stdin: Their standard input.

    Returns:
        The answer; None when there is none, because what the model left behind (a start-up file that ends the shell, a
        missing program) keeps the scripts from running.

    Raises:
        Exception: What the client raised when the service failed.
    """
    token = secrets.token_hex(16)
    reply = await session.control_command(command_line(scripts, arguments), f"{token}\n{stdin}", CONTROL_SECONDS)
    text = str(reply.get("stdout") or "")
    _, opening, rest = text.partition(f"\n{token}\n")
    inside, closing, _ = rest.rpartition(f"\n{token}\n")
    return Answer(inside, token) if opening and closing else None


async def write_file(session: Session, path: str, content: str) -> str | None:
    """Put a file into the container, in pieces, with mode 0600.

    Returns:
        What went wrong, or None.
    """
    offset = 0
    for start in range(0, len(content), PIECE_CHARACTERS):
        piece = content[start : start + PIECE_CHARACTERS]
        answer = await control(session, ("place", "write"), path, str(offset), stdin=piece)
        if answer is None:
            return "the container's shell did not answer"
        offset += len(piece.encode())
        *complaints, size = answer.text.strip().split("\n")
        if size.strip() != str(offset):
            return " ".join(complaints) or f"{size.strip() or 'no'} bytes were written of {offset}"
    return None
