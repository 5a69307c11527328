"""The commands of the podman stack; importing this module imports its native config."""

from __future__ import annotations

from primebeaker.cli.stack_commands import preview_command
from primebeaker.services.stacks import STACKS

__all__ = ["preview"]

preview = preview_command(STACKS["podman"])
