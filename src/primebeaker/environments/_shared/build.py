"""Building an environment from a behaviour and the checked values of a load."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import Behaviour
from primebeaker.environments._shared.dataset import DatasetRules, load_rows
from primebeaker.environments._shared.factory import Values, verifiers_arguments

__all__ = ["ContentsLimit", "build_environment", "resolved_max_turns", "rows_of"]

logger = logging.getLogger("primebeaker.environments")


def rows_of(environment: str, values: Values, rules: DatasetRules | None = None) -> Any:
    """Load the rows that the arguments ``dataset`` and ``split`` name, with the Verifiers prompt arguments applied."""
    rules = (rules or DatasetRules())._replace(system_prompt=values["system_prompt"], few_shot=values["few_shot"] or ())
    return load_rows(environment, values["dataset"], values["split"], rules).rows


def build_environment(
    behaviour: Behaviour,
    rows: Any,
    values: Values,
    *,
    max_turns: int = 1,
    tool_defs: Sequence[Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Make the Verifiers environment.

    Args:
        behaviour: What happens in a rollout.
        rows: The rows of :func:`rows_of`.
        values: The checked values of the load.
        max_turns: The most assistant turns of a rollout.
        tool_defs: Definitions of the offered tools.
        settings: Attributes of the environment object, beside the values themselves.
    """
    from primebeaker.environments._shared.verifiers_adapter import AdaptedEnvironment

    own = {name: value for name, value in values.items() if name not in verifiers_arguments(values)}
    for name in ("dataset", "split", "system_prompt", "few_shot"):
        own.pop(name, None)
    return AdaptedEnvironment(
        behaviour=behaviour,
        rows=rows,
        tool_defs=tool_defs,
        max_turns=max_turns,
        settings={**own, "max_turns": max_turns, **(settings or {})},
        verifiers_arguments=verifiers_arguments(values),
    )


class ContentsLimit:
    """Counts the rows whose judged output is longer than a tool service takes, and warns about them once a load."""

    def __init__(self, environment: str, most: int) -> None:
        self._environment = environment
        self._most = most
        self._beyond = 0

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Look at one row; for :class:`DatasetRules`."""
        from primebeaker.environments._shared.live import contents_text
        from primebeaker.environments._shared.rows import judged_output

        self._beyond += len(contents_text(judged_output(row))) > self._most
        return row

    def warn(self) -> None:
        """Say how many rows are cut, if any."""
        if self._beyond:
            logger.warning(
                "%s: %d rows have a judged output of more than %d characters; tools see that much of it",
                self._environment,
                self._beyond,
                self._most,
            )


def resolved_max_turns(max_turns: int | None, max_calls: int) -> int:
    """The turns of a rollout with tools: null and 0 stand for one more than the calls."""
    return max_turns or max_calls + 1
