"""``podman-terminal`` under its second module path."""

from __future__ import annotations

from primebeaker.environments.podman_terminal_env import SPEC, load_environment

__all__ = ["SPEC", "load_environment"]
