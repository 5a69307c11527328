"""Find and stop experiments through the engine, insisting where an experiment must not stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import ENDED, Experiment
from primebeaker.beaker.refusals import is_over, is_unknown
from primebeaker.errors import PrimeBeakerError, UserError

__all__ = ["find_by_name", "has_ended", "stop_surely"]

_PAUSES = (2.0, 4.0)
#: How far the engine's clock may be behind ours.
_CLOCK_SKEW = timedelta(seconds=30)


def find_by_name(engine: Engine, name: str, *, since: datetime) -> Experiment | None:
    """The experiment of ours with this name that was created since; None when there is none.

    Args:
        engine: Where it would run.
        name: Its name.
        since: When the launch began. An older experiment of that name is not ours.

    Raises:
        ExternalError: The engine cannot tell.
    """
    account = engine.whoami().name if engine.name == "beaker" else ""
    try:
        found = engine.get(f"{account}/{name}" if account else name)
    except UserError:
        # The embedded engine does not know it.
        return None
    except PrimeBeakerError as error:
        if is_unknown(str(error)):
            return None
        raise
    ours = found.id and found.created is not None and found.created >= since - _CLOCK_SKEW
    return found if ours else None


def has_ended(engine: Engine, experiment_id: str) -> bool | None:
    """Whether an experiment has ended; None when the engine cannot tell."""
    try:
        return engine.get(experiment_id).state in ENDED
    except UserError:
        # The embedded engine does not know it.
        return True
    except PrimeBeakerError as error:
        return True if is_over(str(error)) else None


def stop_surely(engine: Engine, experiment_id: str, *, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Stop an experiment, trying three times; one that has ended or does not exist is done.

    Returns:
        None when it is stopped, else why not.
    """
    reason = ""
    for pause in (*_PAUSES, None):
        try:
            engine.stop(experiment_id)
        except PrimeBeakerError as error:
            if isinstance(error, UserError) or is_over(str(error)):
                return None
            reason = str(error)
        else:
            return None
        if pause is not None:
            sleep(pause)
    return reason
