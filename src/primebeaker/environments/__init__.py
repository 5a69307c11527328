"""The bundled Verifiers environments under their public module names."""

from __future__ import annotations

from primebeaker.environments.registry import ENVIRONMENTS, environment_names, load_environment_module

__all__ = ["ENVIRONMENTS", "environment_names", "load_environment_module"]
