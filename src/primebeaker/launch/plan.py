"""From settings and a TOML to everything a launch is: checked, computed, and not yet written anywhere.

Preview, submit, resume, rehearsal and joint runs all start here, so that what is shown is what is run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import primebeaker
from primebeaker.config import CheckReport, TomlDocument, check_toml, kind_of_toml
from primebeaker.errors import Mistakes, UserError, UserErrors
from primebeaker.launch.data import check_data_paths, existing_checkpoints, missing_datasets, outside_mount
from primebeaker.launch.environment import UserEnvironment, check_user_environment, merge_default_secrets
from primebeaker.launch.facts import TrainingFacts, local_search_model_paths, read_facts
from primebeaker.launch.images import is_immutable, resolve_image
from primebeaker.launch.keys import Keys
from primebeaker.launch.names import beaker_name
from primebeaker.launch.paths import Mount
from primebeaker.launch.registry import check_registry, has_password
from primebeaker.launch.rules import check_generation, check_tables, check_training, topology_type
from primebeaker.launch.settings import LaunchSettings, is_workspace, secret_setting
from primebeaker.launch.spec import LaunchPaths, SpecInput, build_spec
from primebeaker.launch.topology import Generation, Kind, Topology, plan_topology

__all__ = ["Extras", "LaunchPlan", "plan_launch"]

#: Placeholders of the examples, spelled so that a human sees them.
PLACEHOLDERS = ("IMMUTABLE_", "YOUR_")
_FILES = "primebeaker/beaker_experiments"
_RENDEZVOUS = "primebeaker/rendezvous"


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One launch, complete and checked."""

    kind: Kind
    generation: Generation
    settings: LaunchSettings
    topology: Topology
    facts: TrainingFacts
    experiment_name: str
    run_name: str
    entity: str | None
    image: str
    paths: LaunchPaths
    #: With real values; :func:`primebeaker.launch.preview.preview` masks URL passwords.
    spec: dict[str, Any]
    toml_data: bytes
    config_sha256: str
    #: Names of the Beaker secrets the task reads, by variable.
    secrets: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    #: What a submit adds to the warnings.
    submit_warnings: tuple[str, ...] = ()
    #: What a preview only warns about and a submit refuses.
    refusals: tuple[UserError, ...] = ()

    @property
    def launch_id(self) -> str:
        """The id of this launch: used once, in file names and in the task."""
        return str(self.settings.launch_id)

    def with_secret_names(self, known: Mapping[str, str]) -> LaunchPlan:
        """The same plan with secret names as the workspace spells them."""
        renamed = {variable: known.get(secret, secret) for variable, secret in self.secrets.items()}
        spec = {**self.spec, "tasks": [_with_secrets(task, renamed) for task in self.spec["tasks"]]}
        return replace(self, spec=spec, secrets=renamed)


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What other launches than a plain one add."""

    #: Variables beyond the user's, which may have reserved names.
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    #: The TOML's bytes when the file is not written yet.
    toml_data: bytes | None = None
    #: Paths need not lie under the mount: the task runs on this machine.
    any_path: bool = False


def plan_launch(kind: Kind, settings: LaunchSettings, extras: Extras | None = None) -> LaunchPlan:
    """Check everything and compute the launch. Reads files; writes nothing and calls nothing.

    Args:
        kind: ``sft`` or ``rl``.
        settings: What the user asks for.
        extras: What a resume, a rehearsal or a joint run adds.

    Raises:
        UserError: One or more mistakes; all that can be found in one pass are in it.
    """
    return _Planner(kind, settings, extras or Extras()).plan()


class _Planner:
    """One pass over settings and TOML that collects mistakes and warnings."""

    def __init__(self, kind: Kind, settings: LaunchSettings, extras: Extras) -> None:
        self.kind: Kind = kind
        self.extras = extras
        self.mistakes = Mistakes()
        self.warnings: list[str] = []
        self.refusals: list[UserError] = []
        self.settings = settings.checked(self.mistakes)

    def plan(self) -> LaunchPlan:
        mount = self._mount()
        user = check_user_environment(self.settings.environment, self.settings.secrets, self.mistakes)
        secrets = self._secrets(user)
        try:
            document = self._document()
            self._check_kind(document)
        except UserError as error:
            self.mistakes.add(error)
            raise self._all() from None
        data = document.text.encode()
        keys = Keys(self.settings.toml, document.values, document.line_of, self.mistakes)
        check = settings_check(document, self.kind, self.settings.toml_check)
        generation = check.generation
        multi_node = topology_type(keys) == "multi_node"
        self._check_flags(user, mount, multi_node=multi_node)
        image = self._image()
        facts = read_facts(self.kind, keys, generation, name_given=self.settings.name is not None)
        check_generation(facts, keys, multi_node=multi_node, image_given=self.settings.image is not None)
        check_tables(facts, keys, multi_node=multi_node)
        refused = self.kind == "rl" and multi_node and generation == "0.8"
        topology = None if refused else plan_topology(self.kind, keys, generation)
        self.warnings += check_training(facts, keys, topology_type(keys))
        self._add_findings(check, keys)
        models = local_search_model_paths(keys) if self.kind == "rl" else []
        experiment_name = self._experiment_name(facts, keys)
        paths = self._paths(mount, facts, keys, experiment_name)
        self._find_placeholders(image, keys)
        self.mistakes.raise_if_any()
        assert topology is not None and paths is not None and image is not None
        self._find_checkpoints(facts, topology, paths, keys)
        digest = hashlib.sha256(data).hexdigest()
        run_name = facts.run_name or experiment_name
        entity = facts.entity or self.settings.wandb_entity
        all_secrets = {**secrets, **self.extras.secrets}
        spec = build_spec(
            SpecInput(
                topology=topology,
                settings=self.settings,
                paths=paths,
                experiment_name=experiment_name,
                run_name=run_name,
                image=image,
                entity=entity,
                config_sha256=digest,
                environment={**user.values, **self.extras.environment},
                secrets=all_secrets,
                local_search_model_paths=models,
                gateway=self.kind == "rl" and (topology.multi_node or self._asks_for_gateway()),
                version=primebeaker.__version__,
                description=self.settings.description or self.extras.description,
            )
        )
        return LaunchPlan(
            kind=self.kind,
            generation=generation,
            settings=self.settings,
            topology=topology,
            facts=facts,
            experiment_name=experiment_name,
            run_name=run_name,
            entity=entity,
            image=image,
            paths=paths,
            spec=spec.as_dict(),
            toml_data=data,
            config_sha256=digest,
            secrets=all_secrets,
            warnings=tuple(dict.fromkeys([*self.warnings, *(str(refusal) for refusal in self.refusals)])),
            submit_warnings=()
            if is_immutable(image)
            else (f"--image = {image}: this reference may mean other bytes tomorrow; use a Beaker id or a digest",),
            refusals=tuple(self.refusals),
        )

    def _all(self) -> UserError:
        errors = self.mistakes.errors
        return errors[0] if len(errors) == 1 else UserErrors(errors)

    def _document(self) -> TomlDocument:
        if self.extras.toml_data is not None:
            return TomlDocument.from_bytes(self.extras.toml_data, path=self.settings.toml)
        return TomlDocument.from_path(self.settings.toml)

    def _check_kind(self, document: TomlDocument) -> None:
        """Refuse a TOML of the other kind: Prime-RL would, once the GPUs are paid for."""
        telling = ("orchestrator", "trainer") if self.kind == "sft" else ("data",)
        table = next((name for name in telling if name in document.values), None)
        found = kind_of_toml(document.values)
        if table is not None and found != self.kind:
            raise UserError(
                f"[{table}]: this TOML is for {found} training, not for {self.kind}",
                file=self.settings.toml,
                line=document.line_of((table,)),
                hint=f"use primebeaker {found}",
            )

    def _mount(self) -> Mount | None:
        with self.mistakes.collect():
            return replace(Mount.at(self.settings.mount_path), anywhere=self.extras.any_path)
        return None

    def _add_findings(self, check: CheckReport, keys: Keys) -> None:
        for finding in check.errors:
            # The launch's own rule about a key says more than the field's type does.
            if finding.path not in keys.refused:
                self.mistakes.add(finding.error(keys.file))
        self.warnings += [str(finding.error(keys.file)) for finding in check.warnings]

    def _image(self) -> str | None:
        if self.settings.image is None and not is_workspace(self.settings.workspace):
            return None
        with self.mistakes.collect():
            return resolve_image(self.settings.image, self.settings.workspace)
        return None

    def _secrets(self, user: UserEnvironment) -> dict[str, str]:
        wandb, hugging_face = self.settings.wandb_secret, self.settings.hf_secret
        return merge_default_secrets(
            user,
            {
                "WANDB_API_KEY": ("--wandb-secret", secret_setting(wandb, "WANDB_API_KEY"), wandb is not None),
                "HF_TOKEN": ("--hf-secret", secret_setting(hugging_face, "HF_TOKEN"), hugging_face is not None),
            },
            self.mistakes,
        )

    def _asks_for_gateway(self) -> bool:
        settings = self.settings
        return (
            settings.gateway_port is not None
            or settings.gateway_workers is not None
            or bool(settings.required_services)
        )

    def _check_flags(self, user: UserEnvironment, mount: Mount | None, *, multi_node: bool) -> None:
        """Flags that have no meaning for this launch, and the registry rules."""
        settings = self.settings
        if settings.rendezvous_timeout_seconds is not None and not multi_node:
            self._add("--rendezvous-timeout-seconds has no meaning for a single-node launch", "leave it out")
        for name, _count in settings.required_services:
            if not name.strip():
                self._add("--required-service: expected a service name before '='")
        if self.kind == "sft":
            for flag, given in (
                ("--registry", settings.registry is not None),
                ("--gateway-port", settings.gateway_port is not None),
                ("--gateway-workers", settings.gateway_workers is not None),
                ("--required-service", bool(settings.required_services)),
            ):
                if given:
                    self._add(f"{flag} has no meaning for an SFT launch", "leave it out")
            return
        if settings.registry is not None:
            with self.mistakes.collect():
                check_registry(settings.registry, mount)
            if "REGISTRY" in user.secrets:
                self._add("REGISTRY is set by both --registry and --secret", "keep one of them")
            if has_password(settings.registry):
                self.warnings.append(
                    "--registry carries a password, which everybody who can see the experiment can read; "
                    "prefer --secret REGISTRY=SECRET_NAME"
                )
        if settings.registry is None and "REGISTRY" not in user.secrets and "REGISTRY" not in self.extras.secrets:
            if multi_node:
                self._add("--registry is required for multi-node RL", "pass it, or --secret REGISTRY=SECRET_NAME")
            elif self._asks_for_gateway():
                self._add(
                    "--gateway-port, --gateway-workers and --required-service need a registry",
                    "pass --registry, or --secret REGISTRY=SECRET_NAME",
                )

    def _experiment_name(self, facts: TrainingFacts, keys: Keys) -> str:
        if self.settings.name is not None:
            return self.settings.name
        if facts.run_name is None:
            return ""
        name = beaker_name(facts.run_name)
        if not name:
            keys.refuse(
                facts.run_name_key,
                "nothing of it can be in a Beaker name (ASCII letters, digits, '.', '_', '-')",
                "choose another name, or pass --name",
            )
        elif name != facts.run_name:
            self.warnings.append(
                keys.warning(facts.run_name_key, f"the experiment is named {name!r}; the W&B name stays as it is")
            )
        return name

    def _paths(self, mount: Mount | None, facts: TrainingFacts, keys: Keys, name: str) -> LaunchPaths | None:
        if mount is None:
            return None
        settings = self.settings
        places: dict[str, str] = {}
        flags: dict[str, tuple[str, str | Path]] = {
            "config": ("--toml", settings.toml),
            "working_dir": ("--working-dir", settings.working_dir or mount.path),
            "scratch": ("--scratch-dir", settings.scratch_dir or mount.path),
            "home": ("--home-dir", settings.home_dir or mount.path),
        }
        for place, (flag, path) in flags.items():
            with self.mistakes.collect():
                places[place] = mount.task_path(path, f"{flag} = {path}")
        # What the TOML says is relative to the directory the task starts in.
        base = os.fspath(settings.working_dir or mount.path)
        for place, path_key, value in (
            ("output_dir", "output_dir", facts.artifact_dir),
            ("ckpt", "ckpt.output_dir", facts.ckpt_output_dir),
        ):
            if value is not None:
                with self.mistakes.collect():
                    places[place] = mount.task_path(
                        value, keys.shown(path_key), base=base, file=keys.file, line=keys.line_of(path_key)
                    )
        home = os.fspath(settings.home_dir or mount.path)
        if self.kind == "sft":
            self.warnings += check_data_paths(keys, mount, base, home)
        self.warnings += missing_datasets(keys, mount, base, home)
        self.warnings += outside_mount(keys, mount)
        if len(places.keys() - {"ckpt"}) < len(flags) + 1:
            return None
        scratch = places["scratch"].rstrip("/")
        stem = f"{scratch}/{_FILES}/{name}-{settings.launch_id}"
        return LaunchPaths(
            mount=mount.path,
            config=places["config"],
            output_dir=places["output_dir"],
            ckpt_output_dir=places.get("ckpt"),
            working_dir=places["working_dir"],
            scratch=places["scratch"],
            home=places["home"],
            rendezvous=f"{scratch}/{_RENDEZVOUS}",
            snapshot=f"{stem}.toml",
            spec=f"{stem}.json",
        )

    def _find_checkpoints(self, facts: TrainingFacts, topology: Topology, paths: LaunchPaths, keys: Keys) -> None:
        if facts.resumes or (facts.clean and topology.multi_node):
            return
        found = existing_checkpoints(paths.output_dir, paths.ckpt_output_dir)
        if found is not None:
            own = paths.ckpt_output_dir is not None and found == Path(paths.ckpt_output_dir) / "checkpoints"
            key = "ckpt.output_dir" if own else "output_dir"
            mend = "add [resume]" if facts.generation == "0.8" else "set ckpt.resume_step = -1"
            self.refusals.append(
                UserError(
                    f"{found} already holds checkpoints, and the TOML does not say to continue from them",
                    hint=f"{mend}, use 'primebeaker rl resume', or choose another output_dir"
                    if self.kind == "rl"
                    else f"{mend}, or choose another output_dir",
                    file=keys.file,
                    line=keys.line_of(key),
                    key=keys.shown(key),
                )
            )

    def _find_placeholders(self, image: str | None, keys: Keys) -> None:
        found = [
            UserError(f"{flag} = {value}: this is a placeholder of an example", hint="write your own value")
            for flag, value in (("--image", image), ("--registry", self.settings.registry))
            if value is not None and any(word in value for word in PLACEHOLDERS)
        ]
        found += [
            UserError(
                "this is a placeholder of an example",
                hint="write your own value",
                file=keys.file,
                line=keys.line_of(path),
                key=keys.shown(path),
            )
            for path, value in keys.strings()
            if any(word in value for word in PLACEHOLDERS)
        ]
        self.refusals += found

    def _add(self, message: str, hint: str | None = None) -> None:
        self.mistakes.add(UserError(message, hint=hint))


def settings_check(document: TomlDocument, kind: Kind, mode: str) -> CheckReport:
    """The check against Prime-RL's fields in the mode of ``--toml-check``."""
    return check_toml(document, kind, strict=mode == "strict", off=mode == "off")


def _with_secrets(task: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    variables = [{**entry, "secret": names[entry["name"]]} if "secret" in entry else entry for entry in task["envVars"]]
    return {**task, "envVars": variables}
