"""From a source experiment to everything a resume will do. Reads; writes nothing and moves nothing."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.executable import BeakerExecutable
from primebeaker.config import TomlDocument, detect_generation
from primebeaker.errors import Mistakes, UserError
from primebeaker.launch.facts import read_facts
from primebeaker.launch.keys import Keys
from primebeaker.launch.names import GREATEST_NAME, beaker_name, check_beaker_name, check_launch_id
from primebeaker.launch.plan import Extras, LaunchPlan, plan_launch
from primebeaker.launch.preview import masked, preview
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule, find_layout, rl_rule_of
from primebeaker.prime_rl.checkpoints import Selection, StepState, newest_complete, read_step, select_step
from primebeaker.prime_rl.layout import Layout
from primebeaker.resume.attempts import manifest_path, read_attempts
from primebeaker.resume.checkpoints import describe
from primebeaker.resume.inherit import inherited_settings, moved_path, registry_of
from primebeaker.resume.moves import RESUME_DIR, Move, plan_moves
from primebeaker.resume.render import resumed_document
from primebeaker.resume.source import ResumeSettings, SourceLaunch, read_source

__all__ = ["ResumePlan", "make_plan", "plan_resume", "resumed_name", "select_again"]

_RESUME_SUFFIX = re.compile(r"(?:-resume-step\d+-[A-Za-z0-9-]{1,8})+$")
_SHOWN_ID = 8


@dataclass(frozen=True, kw_only=True)
class ResumePlan:
    """One resume, complete and checked."""

    settings: ResumeSettings
    source: SourceLaunch
    attempt_id: str
    output_dir: Path
    layout: Layout
    rule: CompletenessRule
    chosen: StepState
    skipped: tuple[StepState, ...]
    source_config_path: str
    source_config_sha256: str
    generated_config_path: Path
    generated_config: str
    launch: LaunchPlan
    moves: tuple[Move, ...]
    warnings: tuple[str, ...]

    @property
    def manifest_path(self) -> Path:
        """Where this attempt is recorded."""
        return manifest_path(self.output_dir, self.attempt_id)

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The chosen step with every file of it."""
        return describe(self.chosen, self.layout.generation)

    def as_dict(self) -> dict[str, Any]:
        """The ``resume`` object that is printed."""
        return {
            "source_experiment_id": self.source.id,
            "source_experiment_name": self.source.name,
            "checkpoint": self.checkpoint,
            "skipped": [{"step": state.step, "missing": list(state.missing)} for state in self.skipped],
            "source_config_path": self.source_config_path,
            "generated_config_path": str(self.generated_config_path),
            "manifest_path": str(self.manifest_path),
            "experiment_name": self.launch.experiment_name,
            "attempt_id": self.attempt_id,
            "moves_planned": [move.as_dict() for move in self.moves],
            "launch": masked(preview(self.launch)),
        }


def plan_resume(from_experiment: str, *, engine: Engine | None = None, **flags: Any) -> ResumePlan:
    """Plan a resume with the flags of ``rl resume`` as keyword arguments (underscores, typed values).

    Args:
        from_experiment: The source's id, ``owner/name`` or local id.
        engine: Where it lives; by default Beaker.
        flags: The flags.

    Raises:
        UserError: The source cannot be resumed as asked; also a ``ValueError``.
        ExternalError: The engine does not know the source or cannot be asked.
    """
    return make_plan(ResumeSettings(from_experiment=from_experiment, **flags), engine or BeakerExecutable())


def make_plan(settings: ResumeSettings, engine: Engine) -> ResumePlan:
    """See :func:`plan_resume`."""
    if settings.resume_step is not None and settings.resume_step < 1:
        raise UserError(
            f"--resume-step = {settings.resume_step}: steps start at 1",
            hint="leave it out for the newest complete step",
        )
    attempt_id = check_launch_id(settings.attempt_id or uuid.uuid4().hex, "--attempt-id")
    source = read_source(engine.get(settings.from_experiment))
    registry = registry_of(settings, source)
    output_dir = _visible_output_dir(settings, source)
    warnings = list(source.warnings)
    config_path, data = _training_toml(settings, source, warnings)
    document = TomlDocument.from_bytes(data, path=config_path)
    generation = detect_generation(document.values, "rl")
    _check_output_dir(document, settings, source, output_dir)
    layout = find_layout(output_dir, generation=generation, checkpoint_dir=_checkpoint_dir(document, settings, source))
    rule = rl_rule_of(document.values, generation=generation)
    selection = _select(layout, rule, settings.resume_step)
    chosen = selection.chosen
    assert chosen is not None
    _check_not_finished(document, chosen.step, config_path)
    warnings += [f"step {chosen.step}: {warning}" for warning in chosen.warnings]
    warnings += [f"step {state.step} is skipped: {', '.join(state.missing[:5])}" for state in selection.skipped]
    warnings += _repeated_attempts(output_dir, layout, rule, chosen.step)
    warnings.append(f"steps after {chosen.step} that the source logged to W&B stay there and will not be logged again")
    name = resumed_name(settings.experiment_name or source.name, chosen.step, attempt_id)
    generated = output_dir / RESUME_DIR / "configs" / f"{name}-{attempt_id}.toml"
    text = resumed_document(document, chosen.step).text
    launch = plan_launch(
        "rl",
        inherited_settings(settings, source, generated, name, attempt_id, registry),
        Extras(
            environment={
                "PRIMEBEAKER_RESUME_PARENT_EXPERIMENT_ID": source.id,
                "PRIMEBEAKER_RESUME_STEP": str(chosen.step),
                "PRIMEBEAKER_RESUME_ATTEMPT_ID": attempt_id,
            },
            description=f"PrimeBeaker resume of {source.id} from step {chosen.step}",
            toml_data=text.encode(),
        ),
    )
    if not launch.topology.multi_node:
        raise UserError(
            "deployment.type: the source is a multi-node launch, this TOML is for a single node", file=config_path
        )
    return ResumePlan(
        settings=settings,
        source=source,
        attempt_id=attempt_id,
        output_dir=output_dir,
        layout=layout,
        rule=rule,
        chosen=chosen,
        skipped=selection.skipped,
        source_config_path=str(config_path),
        source_config_sha256=hashlib.sha256(data).hexdigest(),
        generated_config_path=generated,
        generated_config=text,
        launch=launch,
        moves=tuple(plan_moves(layout, chosen.step, attempt_id, policy_files=rule.policy_files)),
        warnings=tuple(dict.fromkeys([*warnings, *launch.warnings])),
    )


def resumed_name(base: str, step: int, attempt_id: str) -> str:
    """The experiment name of a resume: one suffix, however often a run was resumed, and at most 128 characters."""
    suffix = f"-resume-step{step}-{attempt_id[:_SHOWN_ID]}"
    name = _RESUME_SUFFIX.sub("", base)
    legal = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or beaker_name(name)
    if not legal:
        raise UserError(f"--experiment-name = {base!r}: nothing of it can be in a Beaker name")
    kept = legal[: GREATEST_NAME - len(suffix)].rstrip("-.")
    return check_beaker_name(f"{kept}{suffix}", "--experiment-name")


def select_again(plan: ResumePlan) -> None:
    """Look at the chosen step once more, just before anything is changed.

    Raises:
        UserError: Its files changed since it was chosen.
    """
    state = read_step(plan.layout, plan.rule, plan.chosen.step)
    if state is None or describe(state, plan.layout.generation) != plan.checkpoint or not state.complete:
        raise UserError(f"step {plan.chosen.step} changed while the resume was prepared", hint="run it again")


def _visible_output_dir(settings: ResumeSettings, source: SourceLaunch) -> Path:
    expected = Path(moved_path(settings, source, source.output_dir))
    chosen = settings.output_dir or expected
    if not chosen.is_dir():
        raise UserError(
            f"the output directory {chosen} of {source.id} is not visible here",
            hint="run this on a machine that mounts the bucket, or name the mount with --mount-path",
        )
    if settings.output_dir is not None and expected.exists() and not chosen.samefile(expected):
        raise UserError(
            f"--output-dir = {chosen}: expected another spelling of the source's output directory {expected}"
        )
    return chosen


def _training_toml(settings: ResumeSettings, source: SourceLaunch, notices: list[str]) -> tuple[Path, bytes]:
    if settings.config is not None:
        return settings.config, _bytes(settings.config)
    config = Path(moved_path(settings, source, source.variables["CONFIG_PATH"]))
    digest = source.variables.get("PRIMEBEAKER_CONFIG_SHA256")
    snapshot_name = source.variables.get("PRIMEBEAKER_CONFIG_SNAPSHOT")
    live = config.read_bytes() if config.is_file() else None
    if snapshot_name and digest:
        snapshot = Path(moved_path(settings, source, snapshot_name))
        if snapshot.is_file() and hashlib.sha256(data := snapshot.read_bytes()).hexdigest() == digest:
            if live is None or hashlib.sha256(live).hexdigest() != digest:
                notices.append(
                    f"{config} has changed since the launch; using the snapshot {snapshot} "
                    "(--config uses the edited file)"
                )
            return snapshot, data
    if live is None:
        raise UserError(f"{config}: the source's training TOML cannot be read", hint="pass one with --config")
    return config, live


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from error


def _check_output_dir(document: TomlDocument, settings: ResumeSettings, source: SourceLaunch, output_dir: Path) -> None:
    mistakes = Mistakes()
    keys = Keys(document.path, document.values, document.line_of, mistakes)
    facts = read_facts("rl", keys, detect_generation(document.values, "rl"), name_given=True)
    mistakes.raise_if_any()
    working_dir = settings.working_dir or Path(moved_path(settings, source, source.variables["WORKING_DIR"]))
    written = working_dir / str(facts.artifact_dir)
    same = written.resolve() == output_dir.resolve()
    if not same and Path(moved_path(settings, source, str(written))).resolve() != output_dir.resolve():
        raise UserError(
            f"the run would write to {written}, the source {source.id} wrote to {output_dir}",
            hint="resume needs the same output directory",
            file=document.path,
            line=document.line_of("output_dir"),
            key=keys.shown("output_dir"),
        )


def _checkpoint_dir(document: TomlDocument, settings: ResumeSettings, source: SourceLaunch) -> Path | None:
    value = document.get("ckpt.output_dir")
    if not isinstance(value, str) or value == "None":
        return None
    working_dir = settings.working_dir or Path(moved_path(settings, source, source.variables["WORKING_DIR"]))
    return Path(moved_path(settings, source, str(working_dir / value)))


def _select(layout: Layout, rule: CompletenessRule, step: int | None) -> Selection:
    try:
        return select_step(layout, rule, step)
    except UserError as error:
        newest = newest_complete(layout, rule)
        looked_at = newest.skipped if step is None else [read_step(layout, rule, step)]
        for state in looked_at:
            found = set() if state is None else _ranks_of(state)
            if state is not None and rule.ranks is not None and found and len(found) != rule.ranks:
                raise UserError(
                    f"step {state.step} has shards of {len(found)} trainer ranks, expected {rule.ranks} "
                    f"(trainer.model.cp x trainer.model.dp_replicate); {error}",
                    hint="resume with the world size of the source",
                ) from error
        raise


def _ranks_of(state: StepState) -> set[str]:
    """The trainer ranks that have shards, by the names Prime-RL gives them."""
    matches = (re.fullmatch(r"__(\d+)_\d+\.distcp", shard.name) for shard in state.trainer_shards)
    return {match[1] for match in matches if match}


def _check_not_finished(document: TomlDocument, step: int, config: Path) -> None:
    most = document.get("max_steps")
    if isinstance(most, int) and not isinstance(most, bool) and most <= step:
        raise UserError(
            f"already finished: step {step} is the last one",
            hint="raise max_steps in a copy of the TOML and pass it with --config",
            file=config,
            line=document.line_of("max_steps"),
            key=f"max_steps = {most}",
        )


def _repeated_attempts(output_dir: Path, layout: Layout, rule: CompletenessRule, step: int) -> list[str]:
    tries = [
        manifest
        for manifest in read_attempts(output_dir)
        if manifest.get("status") == "submitted" and (manifest.get("checkpoint") or {}).get("step") == step
    ]
    if len(tries) < 2:
        return []
    earlier = next(
        (
            state.step
            for number in range(step - 1, 0, -1)
            if layout.trainer_checkpoint(number).is_dir()
            and (state := read_step(layout, rule, number)) is not None
            and state.complete
        ),
        None,
    )
    mend = f"; the complete step before it is {earlier} (--resume-step={earlier})" if earlier is not None else ""
    return [f"{len(tries)} attempts from step {step} ended without a newer complete step{mend}"]
