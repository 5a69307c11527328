"""Building an environment from a behaviour and the checked values of a load."""

from __future__ import annotations

from typing import Any

from primebeaker.environments._shared.behaviour import Behaviour
from primebeaker.environments._shared.dataset import DatasetRules, load_rows
from primebeaker.environments._shared.factory import Values, verifiers_arguments

__all__ = ["build_single_turn", "rows_of"]


def rows_of(environment: str, values: Values, rules: DatasetRules | None = None) -> Any:
    """Load the rows that the arguments ``dataset`` and ``split`` name, with the Verifiers prompt arguments applied."""
    rules = (rules or DatasetRules())._replace(system_prompt=values["system_prompt"], few_shot=values["few_shot"] or ())
    return load_rows(environment, values["dataset"], values["split"], rules).rows


def build_single_turn(environment: str, behaviour: Behaviour, values: Values, rules: DatasetRules | None = None) -> Any:
    """Load the rows and make a single-turn environment of them."""
    from primebeaker.environments._shared.verifiers_adapter import AdaptedEnvironment

    rows = rows_of(environment, values, rules)
    return AdaptedEnvironment(
        behaviour=behaviour, rows=rows, max_turns=1, verifiers_arguments=verifiers_arguments(values)
    )
