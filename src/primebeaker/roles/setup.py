"""The user's setup command, and the environment it leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from primebeaker.roles.inputs import PROTECTED

__all__ = ["exported", "setup_argv"]

# The shell's own bookkeeping.
_SHELL_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
# The user's text is one word of the environment, so neither quotes nor a trailing backslash can end it early. The
# program "env" is named by its path, since the text may change PATH; the trap is for a text that calls exit.
_PROGRAM = """
leave() { "$0" -0 >"$1"; }
trap 'leave "$1"' EXIT
set -e
eval "$PRIMEBEAKER_SETUP_COMMAND"
leave "$1"
"""


def setup_argv(dump: Path) -> tuple[str, ...]:
    """The command line that runs the text of ``PRIMEBEAKER_SETUP_COMMAND`` with ``bash -e``.

    Args:
        dump: Where the shell leaves its environment, NUL-separated.
    """
    return ("bash", "-c", _PROGRAM, shutil.which("env") or "/usr/bin/env", str(dump))


def exported(before: Mapping[str, str], dump: bytes) -> dict[str, str]:
    """The environment after a setup command.

    Args:
        before: The environment it was started with.
        dump: What ``env -0`` wrote at its end.

    Returns:
        Its exported environment, with the role's own variables and every ``BEAKER_*`` as before.
    """
    after: dict[str, str] = {}
    for entry in dump.split(b"\0"):
        name, separator, value = entry.decode("utf-8", "surrogateescape").partition("=")
        if separator and name not in _SHELL_OWN:
            after[name] = value
    kept = {name for name in (*before, *after) if name in PROTECTED or name.startswith("BEAKER_")}
    for name in kept:
        after.pop(name, None)
        if name in before:
            after[name] = before[name]
    return after
