"""Launch a joint run: both experiments are created, or neither stays.

From the moment the stack's submission starts until the training's is confirmed, every way out stops what was created:
a refusal, an error, a full disk, a signal.  What is known is written down before each step, so that even after a crash
``run status`` and ``run stop`` find both experiments.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from primebeaker.beaker.engine import Engine, NameTaken, UnclearOutcome
from primebeaker.beaker.executable import TIMEOUT_VARIABLE
from primebeaker.beaker.models import ENDED
from primebeaker.errors import ExternalError, Interrupted, PrimeBeakerError, UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.joint.engine_calls import find_by_name, stop_surely
from primebeaker.joint.plan import RunPlan, with_service, with_variable
from primebeaker.joint.receipt import Experiment, Receipt, new_receipt, output_receipt, read_receipt
from primebeaker.joint.run_file import TOKEN
from primebeaker.joint.signals import Abandoned, Signals, remembered_signals
from primebeaker.launch.files import write_launch_files
from primebeaker.launch.images import spec_image
from primebeaker.launch.plan import LaunchPlan
from primebeaker.launch.submit import create
from primebeaker.services.control import stop_command
from primebeaker.services.preflight import check_spec, check_stack
from primebeaker.services.submission import StackReceipt, submit_stack

__all__ = ["RolledBack", "launch_run", "preflight_run", "refuse_active"]

#: Seconds a creating call may go on after we have been asked to end.
_PATIENCE = 60.0


class RolledBack(PrimeBeakerError):
    """The launch did not succeed and what it had created was stopped (or could not be)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def refuse_active(plan: RunPlan, engine: Engine) -> list[str]:
    """Refuse a second launch into an output directory whose run is still active.

    Returns:
        Warnings: an earlier run whose state cannot be read.

    Raises:
        UserError: The earlier run is active.
    """
    path = output_receipt(plan)
    if not path.exists():
        return []
    try:
        earlier = read_receipt(path)
    except UserError as error:
        return [f"the earlier run of this output directory was not checked: {error}"]
    rl = earlier.rl.experiment_id if earlier.rl is not None else None
    if rl is None:
        return []
    try:
        state = engine.get(rl).state
    except PrimeBeakerError as error:
        return [f"the earlier run {rl} of this output directory was not checked: {error}"]
    if state in ENDED:
        return []
    raise UserError(
        f"an earlier run is still active: RL experiment {rl} ({state}), service experiment "
        f"{earlier.service.experiment_id}",
        file=path,
        hint=f"see `primebeaker run status --receipt={path}`, or launch anyway with --force",
    )


def preflight_run(plan: RunPlan, engine: Engine) -> tuple[RunPlan, list[str]]:
    """Ask the engine about the secrets and images of both experiments, each in its own workspace.

    Returns:
        The plan with secret names as the workspace spells them, and warnings.

    Raises:
        ExternalError: Something is missing; all of it is named.
    """
    plan = _as_needed(plan, engine)
    stack = check_stack(engine, plan.service)
    image = spec_image(plan.rl.image).get("beaker")
    training = check_spec(
        engine,
        plan.rl.spec,
        plan.rl.settings.workspace,
        label=lambda found: f"rl.image: image {found!r}" if found == image else f"image {found!r}",
        image_mend="see `primebeaker-images list`",
    )
    problems = [*stack.problems, *training.problems]
    if problems:
        raise ExternalError("; ".join(problems))
    rl = plan.rl.with_secret_names(training.spellings)
    return replace(plan, rl=rl), [*stack.warnings, *training.warnings]


def launch_run(
    plan: RunPlan,
    engine: Engine,
    *,
    beaker_directory: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Create both experiments.

    Args:
        plan: The run, checked.
        engine: Where both run.
        beaker_directory: See :func:`~primebeaker.services.submission.submit_stack`.
        say: Told what happens, one line at a time.
        sleep: Waits between attempts to stop.

    Returns:
        The result: both IDs, both receipts, and where the joint receipt is.

    Raises:
        RolledBack: Something failed after the stack's submission had started; the message begins with it.
        PrimeBeakerError: Something failed before.
    """
    with remembered_signals() as signals:
        return _Launch(_as_needed(plan, engine), engine, beaker_directory, signals, say, sleep).run()


def _as_needed(plan: RunPlan, engine: Engine) -> RunPlan:
    """The plan without the token's secret where it is neither there nor needed.

    The leader insists on a token, the embedded engine's ``beaker`` asks for none.
    """
    secret = plan.file.lifecycle.token_secret
    if engine.name != "local" or secret in os.environ or secret in engine.secret_list(plan.rl.settings.workspace):
        return plan
    return replace(plan, rl=with_variable(plan.rl, {"name": TOKEN, "value": "not-needed-here"}))


@dataclass
class _Launch:
    plan: RunPlan
    engine: Engine
    beaker_directory: Path | None
    signals: Signals
    say: Callable[[str], None]
    sleep: Callable[[float], None]
    service_id: str | None = None
    rl_id: str | None = None

    def run(self) -> dict[str, Any]:
        self.began = datetime.now(UTC)
        self.receipt = self._written(new_receipt(self.plan, self.engine.name))
        self.submitting_rl = False
        try:
            stack = self._create_service()
            rl, document = self._create_rl()
            self.signals.raise_if_any()
        except BaseException as error:
            raise self._rolled_back(error) from error
        return self._confirmed(stack, rl, document)

    def _create_service(self) -> StackReceipt:
        self.signals.raise_if_any()
        stack = submit_stack(
            self.plan.service,
            engine=self.engine.name,
            beaker_directory=self.beaker_directory,
            hurry=lambda: self.signals.pending,
        )
        self.service_id = stack.experiment_id
        self.say(f"created service experiment {stack.experiment_id}")
        service = replace(self.receipt.service, experiment_id=stack.experiment_id)
        self.receipt = self._written(self.receipt, state="service_created", service=service)
        self.signals.raise_if_any()
        return stack

    def _create_rl(self) -> tuple[LaunchPlan, dict[str, Any]]:
        assert self.service_id is not None
        rl = with_service(self.plan.rl, self.service_id)
        write_launch_files(rl)
        planned = Experiment(None, rl.experiment_name, rl.settings.workspace, spec_path=rl.paths.spec)
        self.receipt = self._written(self.receipt, rl=planned)
        self.signals.raise_if_any()
        self.submitting_rl = True
        with _limited_creation():
            document = create(rl, self.engine, [*rl.warnings, *rl.submit_warnings])
        self.rl_id = document["experiment_id"] or self._find(rl.experiment_name)
        return rl, document

    def _confirmed(self, stack: StackReceipt, rl: LaunchPlan, document: dict[str, Any]) -> dict[str, Any]:
        """Both exist: from here on nothing is taken back, and a receipt that cannot be written is a warning."""
        experiment = Experiment(self.rl_id, rl.experiment_name, rl.settings.workspace, spec_path=rl.paths.spec)
        try:
            self.receipt = self.receipt.written(state="launched", rl=experiment)
            target = output_receipt(self.plan)
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(target, self.receipt.document())
        except OSError as error:
            document["warnings"].append(f"the receipt was not written: {error}")
        return {
            "service_experiment_id": self.service_id,
            "service": stack.document(),
            "rl": document,
            "receipt": str(self.receipt.path),
        }

    def _written(self, receipt: Receipt, **changes: Any) -> Receipt:
        try:
            return receipt.written(**changes)
        except OSError as error:
            raise UserError(
                f"{receipt.path}: the receipt cannot be written: {error.strerror or error}",
                hint="make room or choose another rl.scratch_dir",
            ) from error

    def _find(self, name: str) -> str | None:
        """The ID of what may have been created; None also when the engine cannot tell, as the message then does."""
        found = None
        with contextlib.suppress(PrimeBeakerError):
            found = find_by_name(self.engine, name, since=self.began)
        return found.id if found is not None else None

    def _rolled_back(self, error: BaseException) -> PrimeBeakerError:
        """Stop what was created, training first, and tell it."""
        if isinstance(error, ExternalError | UserError) and not self._service_exists():
            # Where the end was unclear, the receipt is what a later `run stop` finds the experiment by.
            if not isinstance(error, UnclearOutcome):
                with contextlib.suppress(OSError):
                    self.receipt.path.unlink()
            return RolledBack(*self._ending(error)) if self.signals.pending else error
        # Whoever has the name already may be an earlier launch of the same file, seconds old.
        if self.submitting_rl and self.rl_id is None and not isinstance(error, NameTaken):
            self.rl_id = self._find(self.plan.rl.experiment_name)
        self._service_exists()
        created = [("RL", self.rl_id), ("service", self.service_id)]
        self.signals.abandon = lambda: self._tell_commands(created)
        told, commands = [], []
        try:
            for what, identifier in created:
                if identifier is None:
                    continue
                reason = stop_surely(self.engine, identifier, sleep=self.sleep)
                if reason is None:
                    told.append(f"stopped {what} experiment {identifier}")
                else:
                    told.append(f"{what} experiment {identifier} could not be stopped ({reason})")
                    commands.append(" ".join(stop_command(identifier, self.engine.name)))
        except Abandoned:
            return Interrupted("left while created experiments were being stopped; the commands above stop them")
        self._note_rollback(failed=bool(commands))
        original, code = self._ending(error)
        if commands:
            told.append(f"stop by hand: {' && '.join(commands)}")
            code = ExternalError.exit_code
        return RolledBack("; ".join([original, *told]), code)

    def _ending(self, error: BaseException) -> tuple[str, int]:
        """Message and exit code: those of the signal that ended the launch, else those of the error."""
        try:
            self.signals.raise_if_any()
        except Interrupted as interrupted:
            # What a call says when it was cut short is a consequence, unless something may exist unseen.
            unclear = f"; {error}" if isinstance(error, UnclearOutcome) else ""
            return f"{interrupted}{unclear}", interrupted.exit_code
        return _described(error)

    def _service_exists(self) -> bool:
        """Whether the stack's experiment exists, maybe although its submission failed."""
        self.service_id = self.service_id or self._find(self.plan.service.experiment_name)
        return self.service_id is not None

    def _note_rollback(self, *, failed: bool) -> None:
        # The experiments matter more than the note about them.
        with contextlib.suppress(OSError):
            rl = self.receipt.rl
            self.receipt = self.receipt.written(
                state="rollback_failed" if failed else "rolled_back",
                service=replace(self.receipt.service, experiment_id=self.service_id),
                rl=replace(rl, experiment_id=self.rl_id) if rl is not None and self.rl_id is not None else None,
            )

    def _tell_commands(self, created: list[tuple[str, str | None]]) -> None:
        for _, identifier in created:
            if identifier is not None:
                self.say(" ".join(stop_command(identifier, self.engine.name)))


def _described(error: BaseException) -> tuple[str, int]:
    if isinstance(error, PrimeBeakerError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    return f"internal fault ({type(error).__name__}: {error})", 1


@contextlib.contextmanager
def _limited_creation() -> Iterator[None]:
    """Give the creating call no longer than a signal that arrives meanwhile may wait."""
    given = os.environ.get(TIMEOUT_VARIABLE)
    os.environ[TIMEOUT_VARIABLE] = given or str(_PATIENCE)
    try:
        yield
    finally:
        if given is None:
            del os.environ[TIMEOUT_VARIABLE]
