"""Do a resume: look, lock, record, move aside, create once, record again; and undo what can be undone.

Every step may be the last one (a signal, a full disk, a killed process).  The manifest says how far an attempt got, so
that the same attempt id continues and never makes a second child.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import primebeaker
from primebeaker.beaker.engine import Engine, UnclearOutcome
from primebeaker.beaker.executable import BeakerExecutable
from primebeaker.beaker.refusals import is_unknown
from primebeaker.errors import ExternalError, Interrupted, PrimeBeakerError, UserError
from primebeaker.fileio import create_exclusively
from primebeaker.launch.files import receipt_path, write_launch_files
from primebeaker.launch.plan import LaunchPlan
from primebeaker.launch.preview import submit_command, wandb_run
from primebeaker.launch.submit import create, preflight, refuse_unready
from primebeaker.redaction import Redactor
from primebeaker.resume.activity import active_jobs, check_files_at_rest, refuse_active
from primebeaker.resume.attempts import held_lock, now, read_manifest, write_manifest
from primebeaker.resume.moves import Move, move_aside, move_back
from primebeaker.resume.plan import ResumePlan, make_plan, select_again
from primebeaker.resume.source import ResumeSettings

__all__ = ["dry_run", "resume", "run_resume"]


def resume(
    from_experiment: str, *, engine: Engine | None = None, dry_run: bool = False, **flags: Any
) -> dict[str, Any]:
    """Resume an experiment and return what ``rl resume`` prints.

    Args:
        from_experiment: The source's id, ``owner/name`` or local id.
        engine: Where source and child live; by default Beaker.
        dry_run: Only plan.
        flags: The flags of ``rl resume`` with underscores, typed.

    Raises:
        UserError: It cannot be resumed as asked; also a ``ValueError``.
        ExternalError: The engine refused, or its answer is unclear.
    """
    settings = ResumeSettings(from_experiment=from_experiment, **flags)
    chosen = engine or BeakerExecutable()
    return _dry_run(settings, chosen) if dry_run else run_resume(settings, chosen)


def dry_run(settings: ResumeSettings, engine: Engine) -> dict[str, Any]:
    """Plan only: nothing is created, moved or locked; active jobs are reported instead of refused."""
    plan = make_plan(settings, engine)
    active = active_jobs(engine, plan.source.id, plan.source.jobs, plan.output_dir)
    return {
        "resume": plan.as_dict(),
        "generated_config": plan.generated_config,
        "source_active": [job.id for job in active],
        "warnings": list(plan.warnings),
    }


_dry_run = dry_run


def run_resume(settings: ResumeSettings, engine: Engine) -> dict[str, Any]:
    """Resume and return ``{"resume", "child_experiment_id", "child_experiment_url", "stdout", "warnings"}``.

    Raises:
        UserError: It cannot be resumed as asked.
        ExternalError: The engine refused, or its answer is unclear.
        Interrupted: Interrupted; the message says what may exist.
    """
    plan = make_plan(settings, engine)
    _refuse_done(plan, read_manifest(plan.manifest_path))
    refuse_unready(plan.launch)
    _check_nobody_writes(plan, engine)
    notices: list[str] = []
    with held_lock(plan.output_dir, plan.attempt_id, notices):
        manifest = read_manifest(plan.manifest_path)
        _refuse_done(plan, manifest)
        # Again under the lock: another attempt may have made its child meanwhile.
        refuse_active(_active(plan, engine))
        launch, warnings = plan.launch, [*plan.warnings, *plan.launch.submit_warnings, *notices]
        if not settings.skip_preflight:
            checked = preflight(launch, engine)
            launch = checked.plan
            warnings += checked.warnings
        select_again(plan)
        return _Attempt(plan, launch, engine, manifest).run(warnings)


def _active(plan: ResumePlan, engine: Engine) -> list[Any]:
    try:
        return list(active_jobs(engine, plan.source.id, plan.source.jobs, plan.output_dir))
    except ExternalError:
        if plan.settings.force:
            return []
        raise


def _check_nobody_writes(plan: ResumePlan, engine: Engine) -> None:
    refuse_active(_active(plan, engine))
    if not plan.settings.force and not plan.settings.rehearse:
        check_files_at_rest(plan.layout, plan.source.variables.get("RENDEZVOUS_DIR"))


def _refuse_done(plan: ResumePlan, manifest: Mapping[str, Any] | None) -> None:
    status = None if manifest is None else manifest.get("status")
    if manifest is not None and status == "submitted":
        raise UserError(
            f"attempt {plan.attempt_id} was submitted already, as {manifest.get('child_experiment_id')}",
            hint="use another --attempt-id for a new one",
        )
    if status == "unknown":
        raise UserError(
            f"attempt {plan.attempt_id} may have created {plan.launch.experiment_name}: "
            f"{(manifest or {}).get('error')}",
            hint="look for it, and use another --attempt-id when it does not exist",
        )


class _Attempt:
    """Steps that change something, for one attempt that holds the lock."""

    def __init__(self, plan: ResumePlan, launch: LaunchPlan, engine: Engine, earlier: Mapping[str, Any] | None) -> None:
        self.plan = plan
        self.launch = launch
        self.engine = engine
        done = [Move(move["from"], move["to"]) for move in (earlier or {}).get("moves", ())]
        self.moves = [*done, *(move for move in plan.moves if move not in done)]
        self.manifest = self._manifest(earlier)
        self.continued = earlier is not None

    def run(self, warnings: list[str]) -> dict[str, Any]:
        self._record(status="prepared")
        if self.continued:
            existing = self._find_child()
            if existing is not None:
                return self._submitted(existing, None, "", [*warnings, f"the child {existing} was created before"])
        try:
            move_aside(self.moves)
            self._write_files()
        except BaseException as error:
            self._undo(error)
            raise _as_interrupt(error) from error
        try:
            receipt = create(self.launch, self.engine, warnings)
        except (UnclearOutcome, Interrupted) as error:
            self._record(status="unknown", error=_text(error))
            raise
        except BaseException as error:
            self._undo(error)
            raise _as_interrupt(error) from error
        return self._submitted(
            receipt["experiment_id"], receipt["experiment_url"], receipt["stdout"], receipt["warnings"]
        )

    def _submitted(self, child: str | None, url: str | None, stdout: str, warnings: list[str]) -> dict[str, Any]:
        self._record(status="submitted", child_experiment_id=child, error=None)
        return {
            "resume": self.plan.as_dict(),
            "child_experiment_id": child,
            "child_experiment_url": url,
            "stdout": stdout,
            "warnings": list(warnings),
        }

    def _write_files(self) -> None:
        path = self.plan.generated_config_path
        data = self.plan.generated_config.encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not create_exclusively(path, data) and path.read_bytes() != data:
                raise UserError("exists with other content", hint="use another --attempt-id", file=path)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", file=path) from error
        write_launch_files(self.launch)

    def _find_child(self) -> str | None:
        """The child of an earlier try that ended between creating it and saying so."""
        receipt = read_manifest(receipt_path(self.launch))
        if receipt is not None:
            return str(receipt.get("experiment_id"))
        if not Path(self.launch.paths.spec).exists():
            return None
        name = f"{self.engine.whoami().name}/{self.launch.experiment_name}"
        try:
            return self.engine.get(name).id
        except PrimeBeakerError as error:
            if isinstance(error, UserError) or is_unknown(str(error)):
                return None
            raise

    def _undo(self, error: BaseException) -> None:
        """Nothing was created: everything moved comes back."""
        move_back(self.moves)
        self._record(status="submission_failed", error=_text(error))

    def _record(self, **changes: Any) -> None:
        self.manifest |= changes
        write_manifest(self.plan.manifest_path, self.manifest)

    def _manifest(self, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
        plan, source = self.plan, self.plan.source
        archives = [move.target for move in self.moves if "/broadcast_archives/" in move.target]
        whole = plan.output_dir / "primebeaker_resume" / "broadcast_archives" / plan.attempt_id
        return {
            "schema_version": 1,
            "created_at": (earlier or {}).get("created_at") or now(),
            "updated_at": now(),
            "status": "prepared",
            "attempt_id": plan.attempt_id,
            "source_experiment_id": source.id,
            "source_experiment_name": source.name,
            "source_workspace": source.workspace,
            "checkpoint": plan.checkpoint,
            "skipped": [{"step": state.step, "missing": list(state.missing)} for state in plan.skipped],
            "source_config_path": plan.source_config_path,
            "source_config_sha256": plan.source_config_sha256,
            "generated_config_path": str(plan.generated_config_path),
            "manifest_path": str(plan.manifest_path),
            "experiment_name": plan.launch.experiment_name,
            "overrides": _overrides(plan.settings),
            "launch": {
                "experiment_name": plan.launch.experiment_name,
                "launch_id": plan.launch.launch_id,
                "spec_path": plan.launch.paths.spec,
                "submit_command": submit_command(plan.launch),
                "topology": plan.launch.topology.as_dict(),
                "wandb_run": wandb_run(plan.launch),
            },
            "broadcast_archive": str(whole) if archives else None,
            "moves": [move.as_dict() for move in self.moves],
            "child_experiment_id": None,
            "error": None,
            "package_version": primebeaker.__version__,
        }


def _overrides(settings: ResumeSettings) -> list[str]:
    """The names of the flags that were given, without their values."""
    empty = ResumeSettings(from_experiment=settings.from_experiment)
    renamed = {
        "clusters": "cluster",
        "environment": "env",
        "secrets": "secret",
        "required_services": "required-service",
    }
    given = [name for name, value in vars(settings).items() if value != getattr(empty, name)]
    return [f"--{renamed.get(name, name.replace('_', '-'))}" for name in given]


def _as_interrupt(error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted; what was moved aside is back and no experiment was created")
    return error


def _text(error: BaseException) -> str:
    return Redactor()(str(error) or type(error).__name__)
