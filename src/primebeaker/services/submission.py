"""Submit a planned stack through its native launcher and find out which experiment that made."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.beaker.engine import UnclearOutcome
from primebeaker.errors import ExternalError, InternalError, Interrupted, PrimeBeakerError, UserError
from primebeaker.services.control import stop_command
from primebeaker.services.deployment import Deployment
from primebeaker.services.detached import Finished, run_detached
from primebeaker.services.masking import masked
from primebeaker.services.registries import head_directory

__all__ = ["StackReceipt", "experiment_id_of", "submit_stack"]

#: Seconds the native submission may take, its own start-up included.
_LIMIT = 180.0
_MOST_DETAIL = 2000
_ID_KEYS = ("experiment_id", "experimentId", "id")


@dataclass(frozen=True)
class StackReceipt:
    """A submitted stack."""

    deployment: Deployment
    experiment_id: str
    beaker: Any
    #: The engine it was submitted to.
    engine: str = "beaker"

    def document(self) -> dict[str, Any]:
        """The receipt as JSON values, passwords masked."""
        deployment = self.deployment
        where = " --engine=local" if self.engine == "local" else ""
        receipt = {
            "experiment_name": deployment.experiment_name,
            "experiment_id": self.experiment_id,
            "beaker": self.beaker,
            "client_registry": deployment.client_registry,
            "workspace": deployment.workspace,
            "stop": f"primebeaker services stop {self.experiment_id}{where}",
        }
        return dict(masked(receipt, deployment.passwords))


def submit_stack(
    deployment: Deployment,
    *,
    engine: str = "beaker",
    beaker_directory: Path | None = None,
    hurry: Callable[[], bool] = lambda: False,
    limit: float = _LIMIT,
) -> StackReceipt:
    """Submit a planned stack. Never repeated: a second call would make a second experiment.

    Args:
        deployment: What :func:`plan_deployment` made.
        engine: The engine's name, for messages.
        beaker_directory: A directory with a ``beaker`` executable that is put first on ``PATH`` of the native
            launcher (the embedded engine's); None leaves ``PATH`` alone.
        hurry: Whether we have been asked to end; the call then has up to 60 s to finish.
        limit: Seconds the call may take.

    Raises:
        UserError: The coordination directory cannot be made.
        ExternalError: ``beaker`` is missing or refused the spec; nothing was created.
        UnclearOutcome: The call had an unclear end.
        Interrupted: Ctrl-C while the call ran; the experiment may exist.
    """
    request = {
        "stack": deployment.stack.name,
        "values": deployment.config,
        "experiment_name": deployment.experiment_name,
        "mounts_here": engine == "local",
    }
    with tempfile.TemporaryDirectory(prefix="primebeaker-stack-") as scratch:
        environment = dict(os.environ, TMPDIR=scratch)
        if beaker_directory is not None:
            environment["PATH"] = f"{beaker_directory}{os.pathsep}{environment.get('PATH', os.defpath)}"
        if shutil.which("beaker", path=environment.get("PATH")) is None:
            raise _no_beaker()
        try:
            finished = run_detached(
                [sys.executable, "-m", "primebeaker.services.native_submit"],
                stdin=json.dumps(request),
                environment=environment,
                limit=limit,
                hurry=hurry,
            )
        except (KeyboardInterrupt, Interrupted) as error:
            interrupted = Interrupted(
                f"{str(error) or 'interrupted'} while beaker ran; {_may_exist(deployment, engine)}"
            )
            interrupted.exit_code = getattr(error, "exit_code", Interrupted.exit_code)
            raise interrupted from error
    return _receipt(deployment, finished, engine)


def _receipt(deployment: Deployment, finished: Finished, engine: str) -> StackReceipt:
    if finished.code is None:
        raise UnclearOutcome(f"beaker gave no answer in time; {_may_exist(deployment, engine)}")
    try:
        outcome = json.loads(finished.stdout)
    except ValueError as error:
        detail = " ".join(finished.stderr.splitlines()[-3:])
        raise InternalError(
            f"the native launcher of {deployment.stack.distribution} ended with code {finished.code}: {detail}",
            hint=_may_exist(deployment, engine),
        ) from error
    if outcome["outcome"] != "created":
        raise _failure(deployment, outcome, engine)
    found = set(_experiment_ids(outcome["beaker"]))
    if len(found) != 1:
        shown = json.dumps(masked(outcome["beaker"], deployment.passwords))
        problem = "no experiment ID" if not found else "several experiment IDs"
        raise UnclearOutcome(f"beaker's receipt holds {problem}: {shown}; {_may_exist(deployment, engine)}")
    return StackReceipt(deployment, found.pop(), outcome["beaker"], engine)


def experiment_id_of(receipt: Any) -> str | None:
    """The one experiment ID in what ``beaker experiment create`` printed, None when there is none or several."""
    found = set(_experiment_ids(receipt))
    return found.pop() if len(found) == 1 else None


def _experiment_ids(receipt: Any) -> Iterator[str]:
    """IDs of experiments; those of jobs and tasks inside are never looked at."""
    for record in receipt if isinstance(receipt, list) else [receipt]:
        if not isinstance(record, dict):
            continue
        own = next((record[key] for key in _ID_KEYS if isinstance(record.get(key), str) and record[key]), None)
        if own is not None:
            yield own
            continue
        for key in ("experiment", "experiments"):
            yield from _experiment_ids(record.get(key))


def _failure(deployment: Deployment, outcome: dict[str, Any], engine: str) -> PrimeBeakerError:
    name = deployment.experiment_name
    match outcome["outcome"]:
        case "refused":
            detail = masked(str(outcome["detail"])[:_MOST_DETAIL], deployment.passwords) or "no detail given"
            return ExternalError(f"beaker could not create {name}: {detail}")
        case "not_json":
            output = masked(str(outcome["output"])[:_MOST_DETAIL], deployment.passwords).strip()
            return UnclearOutcome(f"beaker's answer is not JSON: {output!r}; {_may_exist(deployment, engine)}")
        case "killed":
            return UnclearOutcome(f"beaker was killed by signal {outcome['signal']}; {_may_exist(deployment, engine)}")
        case "no_beaker":
            return _no_beaker()
        case _:
            return UserError(
                f"{outcome['path']}: {outcome['detail']}",
                key=_field_of_directory(deployment, Path(outcome["path"])),
                hint="choose a directory this machine can write, the same one the tasks see",
            )


def _field_of_directory(deployment: Deployment, path: Path) -> str:
    """The config field whose directory could not be made."""
    head = head_directory(deployment.launcher.config)
    root = Path(str(getattr(deployment.launcher.config, deployment.stack.directory_field))).expanduser()
    of_head = head is not None and path in (head, *head.parents) and path not in (root, *root.parents)
    return "head_registry" if of_head else deployment.stack.directory_field


def _no_beaker() -> ExternalError:
    return ExternalError(
        "beaker is not on PATH, nothing was created",
        hint="install the Beaker CLI and log in, or use --engine local; `preview` works without it",
    )


def _may_exist(deployment: Deployment, engine: str) -> str:
    name = deployment.experiment_name
    look, stop = "beaker experiment get", "beaker experiment stop"
    if engine == "local":
        look, stop = f"primebeaker local get {name}", " ".join(stop_command(name, engine))
    return (
        f"experiment {name} in {deployment.workspace} was probably created and may be running; "
        f"look with `{look}` and stop it with `{stop}`"
    )
