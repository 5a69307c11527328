"""The commands of the base stack; importing this module imports its native config."""

from __future__ import annotations

from primebeaker.cli.stack_commands import stack_commands
from primebeaker.services.stacks import STACKS

__all__ = ["launch", "preview", "yaml"]

preview, launch, yaml = stack_commands(STACKS["base"])
