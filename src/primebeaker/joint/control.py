"""Look at and stop a joint run, also after a crash between its two creations."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.models import ENDED
from primebeaker.beaker.refusals import is_unknown
from primebeaker.errors import ExternalError, PrimeBeakerError, UserError
from primebeaker.joint.engine_calls import find_by_name, has_ended, stop_surely
from primebeaker.joint.receipt import Experiment, Receipt
from primebeaker.services.control import stop_command

__all__ = ["RunStatus", "mended", "run_status", "stop_run"]

#: No experiment of the receipt's name exists.
_MISSING = "missing"


@dataclass(frozen=True)
class RunStatus:
    """The states of both experiments.

    Args:
        service: State of the stack's experiment, ``missing`` when it was never created.
        rl: The same of the training's.
        orphaned: The training has ended, or was never created, while the stack still runs.
    """

    receipt: Receipt
    service: str
    rl: str
    orphaned: bool

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        rl = self.receipt.rl
        return {
            "service": {"id": self.receipt.service.experiment_id, "state": self.service},
            "rl": {"id": rl.experiment_id if rl is not None else None, "state": self.rl},
        }


def mended(receipt: Receipt, engine: Engine) -> Receipt:
    """The receipt with the IDs that a crash of the launcher left out, looked up by the experiments' names.

    What is found is written back into the receipt.

    Raises:
        ExternalError: The engine cannot tell whether there is an experiment of that name.
    """
    since = datetime.fromisoformat(receipt.created_at)
    service = _known(receipt.service, engine, since)
    rl = _known(receipt.rl, engine, since) if receipt.rl is not None else None
    if service == receipt.service and rl == receipt.rl:
        return receipt
    changes: dict[str, Any] = {"service": service, "rl": rl}
    if receipt.state in ("creating_service", "service_created"):
        changes["state"] = "launched" if rl is not None and rl.experiment_id else "service_created"
    with contextlib.suppress(OSError):
        return receipt.written(**changes)
    return replace(receipt, **changes)


def run_status(receipt: Receipt, engine: Engine) -> RunStatus:
    """The states of both experiments, the receipt mended first.

    Raises:
        ExternalError: The engine cannot tell.
    """
    receipt = mended(receipt, engine)
    service = _state(receipt.service, engine)
    rl = _state(receipt.rl, engine)
    runs = service not in ENDED and service != _MISSING
    return RunStatus(receipt, service, rl, orphaned=runs and (rl in ENDED or rl == _MISSING))


def stop_run(receipt: Receipt, engine: Engine | None) -> dict[str, Any]:
    """Stop the training, then the stack; each is tried even when the other cannot be stopped.

    Args:
        receipt: Which run.
        engine: Where it runs; None only tells what would be done.

    Raises:
        ExternalError: One of them could not be stopped; the message has the commands.
    """
    if engine is not None:
        receipt = mended(receipt, engine)
    result: dict[str, Any] = {"dry_run": engine is None}
    failed = []
    for what, experiment in (("rl", receipt.rl), ("service", receipt.service)):
        identifier = experiment.experiment_id if experiment is not None else None
        if identifier is None:
            result[what] = {"id": None, "command": None}
            continue
        result[what] = {"id": identifier, "command": stop_command(identifier, receipt.engine)}
        if engine is None:
            continue
        if has_ended(engine, identifier):
            result[what]["already_stopped"] = True
            continue
        reason = stop_surely(engine, identifier)
        if reason is not None:
            failed.append(f"{what} experiment {identifier} could not be stopped ({reason})")
            failed.append(f"stop it by hand: {' '.join(stop_command(identifier, receipt.engine))}")
    if failed:
        raise ExternalError("; ".join(failed))
    return result


def _known(experiment: Experiment, engine: Engine, since: datetime) -> Experiment:
    if experiment.experiment_id is not None:
        return experiment
    found = find_by_name(engine, experiment.experiment_name, since=since)
    return replace(experiment, experiment_id=found.id) if found is not None else experiment


def _state(experiment: Experiment | None, engine: Engine) -> str:
    if experiment is None or experiment.experiment_id is None:
        return _MISSING
    try:
        return engine.get(experiment.experiment_id).state
    except UserError:
        return _MISSING
    except PrimeBeakerError as error:
        if is_unknown(str(error)):
            return _MISSING
        raise
