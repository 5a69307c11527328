"""From a launch to its rehearsal: checked, copied, planned, and written into a work folder; nothing is started."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from primebeaker.config import TomlDocument
from primebeaker.errors import Mistakes, UserError, UserErrors, missing_extra
from primebeaker.launch.files import write_launch_files
from primebeaker.launch.images import resolve_image
from primebeaker.launch.plan import Extras, LaunchPlan, plan_launch
from primebeaker.launch.settings import LaunchSettings
from primebeaker.launch.spec import DEFAULT_GATEWAY_PORT
from primebeaker.launch.topology import Kind
from primebeaker.local import Rehearsal
from primebeaker.rehearsal.busy_ports import busy_ports, named_ports
from primebeaker.rehearsal.fault_checks import Stage, check_faults, missing_services
from primebeaker.rehearsal.fault_variables import fault_variables
from primebeaker.rehearsal.faults import Fault, parse_faults
from primebeaker.rehearsal.local_ports import PortBlock, gateway_port, own_ports, port_block
from primebeaker.rehearsal.options import RehearsalOptions, default_timeout
from primebeaker.rehearsal.problems import Problem
from primebeaker.rehearsal.programs import install_programs
from primebeaker.rehearsal.rows import missing_rows
from primebeaker.rehearsal.settings import PORTS, RehearsalSettings
from primebeaker.rehearsal.toml_copy import copy_toml
from primebeaker.rehearsal.tools import ToolPlan, gateway_routes, plan_tools, with_routes, with_short_handshakes

__all__ = ["PreparedRehearsal", "prepare"]

#: What the stand-ins and the environments import, all of it in the extra ``runtime``.
_PACKAGES = ("datasets", "httpx", "literegistry", "uvicorn", "verifiers")
_GRACE_SECONDS = 3
_NO_IMAGE = "beaker://REHEARSAL"
_WORKSPACE = "rehearsal/local"
#: Stands for the registry of the rehearsal itself while the user's file is checked.
_SOME_REGISTRY = "redis://127.0.0.1:6379"


@dataclass(frozen=True)
class PreparedRehearsal:
    """Everything that is needed to start, follow and judge a rehearsal."""

    kind: Kind
    source: Path
    options: RehearsalOptions
    plan: LaunchPlan
    work_dir: Path
    experiment_name: str
    hooks: Rehearsal
    steps: int
    timeout: float
    problems: tuple[Problem, ...]
    #: Whether this call made the work folder, so that it may be removed.
    owns_work_dir: bool
    #: Released when the rehearsal is over.
    ports: PortBlock
    #: Ports that a fault takes before the start.
    busy: tuple[int, ...] = ()
    tools: ToolPlan = field(default_factory=ToolPlan)

    @property
    def output_dir(self) -> Path:
        """Where the rehearsed run writes."""
        return Path(self.plan.paths.output_dir)

    def remove(self) -> None:
        """Remove the work folder, unless the user named it or wants to keep it, and leave the ports to others."""
        self.ports.release()
        if self.owns_work_dir and not self.options.keep:
            shutil.rmtree(self.work_dir, ignore_errors=True)


def prepare(
    kind: Kind, settings: LaunchSettings, options: RehearsalOptions, *, with_tools: bool = False
) -> PreparedRehearsal:
    """Check a launch and write its rehearsal into a work folder.

    Args:
        kind: ``sft`` or ``rl``.
        settings: The launch, as for preview and submit.
        options: How to rehearse it.
        with_tools: Plan the tool services its environments call; the caller runs them.

    Raises:
        UserError: A mistake in the TOML, the flags or the options, or an extra is not installed; nothing was written.
    """
    if any(find_spec(package) is None for package in _PACKAGES):
        raise missing_extra("runtime")
    source = TomlDocument.from_path(settings.toml)
    relaxed = _relaxed(kind, settings)
    # The user's own file is what mistakes are told about, with its own lines.
    checked = plan_launch(kind, relaxed, Extras(any_path=True))
    faults = parse_faults(options.faults)
    if kind == "rl" and not options.no_rollouts:
        Mistakes(list(missing_rows(source, settings.toml, settings.working_dir or Path.cwd()))).raise_if_any()
    tools = ToolPlan()
    if with_tools and kind == "rl" and not options.no_rollouts:
        tools = plan_tools(source.values, settings, _gateway_port(settings), gateway=_starts_gateway(settings, checked))
    problems = [*_before_paying(kind, settings), *tools.problems, *_unwaited(settings, tools)]
    work_dir, owned = _work_dir(options)
    ports = port_block(checked.launch_id)
    try:
        return _prepared(
            _Cast(kind, source, settings, relaxed, checked, faults, tools, options), problems, work_dir, ports, owned
        )
    except BaseException:
        ports.release()
        if owned:
            shutil.rmtree(work_dir, ignore_errors=True)
        raise


class _Cast(NamedTuple):
    """What a rehearsal is made from."""

    kind: Kind
    source: TomlDocument
    settings: LaunchSettings
    relaxed: LaunchSettings
    checked: LaunchPlan
    faults: tuple[Fault, ...]
    tools: ToolPlan
    options: RehearsalOptions

    @property
    def has_gateway(self) -> bool:
        """Whether the rehearsal starts the gateway: as the launch does, or as its services need."""
        services = self.tools.here or (self.kind == "rl" and self.options.services)
        return _starts_gateway(self.settings, self.checked) or bool(services)


def _gateway_port(settings: LaunchSettings) -> int:
    return settings.gateway_port or DEFAULT_GATEWAY_PORT


def _starts_gateway(settings: LaunchSettings, plan: LaunchPlan) -> bool:
    asked = settings.gateway_port or settings.gateway_workers or settings.required_services
    return plan.kind == "rl" and (plan.topology.multi_node or bool(asked))


def _unwaited(settings: LaunchSettings, tools: ToolPlan) -> list[Problem]:
    names = [name for name, _ in settings.required_services if name not in tools.names]
    text = f"not rehearsed: the services {', '.join(names)} are not waited for here"
    return [Problem("--required-service", text)] if names else []


def _prepared(cast: _Cast, problems: list[Problem], work_dir: Path, ports: PortBlock, owned: bool) -> PreparedRehearsal:
    kind, topology, options = cast.kind, cast.checked.topology, cast.options
    base = cast.settings.working_dir or Path.cwd()
    served = replace(options, services=(*options.services, *cast.tools.names))
    copied = copy_toml(cast.source, kind, served, work_dir=work_dir, base=base)
    wanted = _gateway_port(cast.settings) if cast.has_gateway else None
    written = named_ports(cast.source.values, topology, wanted)
    stage = Stage(
        topology=topology,
        values=copied.document.values,
        steps=copied.steps,
        gateway=cast.has_gateway,
        services=cast.tools.native,
        ports={number: use for use, number in written.items()},
    )
    check_faults(cast.faults, stage)
    document = own_ports(copied.document, ports.base) if kind == "rl" else copied.document
    gateway = None
    if wanted is not None:
        moved = gateway_port(wanted, ports.base)
        gateway = moved.number
        document = moved.rewrite(with_routes(document, list(gateway_routes(cast.source.values, wanted))))
    document = with_short_handshakes(document)
    config = work_dir / "config.toml"
    timeout = options.timeout or default_timeout(topology.nodes)
    waited = missing_services(cast.faults) + tuple((name, 1) for name in cast.tools.names)
    plan = plan_launch(
        kind,
        replace(_rehearsed(cast.relaxed, cast.checked, config, work_dir, timeout, gateway), required_services=waited),
        Extras(any_path=True, toml_data=document.text.encode()),
    )
    document.write(config)
    for folder in (plan.paths.working_dir, plan.paths.scratch, plan.paths.home):
        Path(folder).mkdir(parents=True, exist_ok=True)
    write_launch_files(plan)
    return PreparedRehearsal(
        kind=kind,
        source=cast.settings.toml,
        options=options,
        plan=plan,
        work_dir=work_dir,
        experiment_name=f"{cast.checked.experiment_name[:100]}-rehearsal-{plan.launch_id[:8]}",
        hooks=_hooks(plan, options, work_dir, timeout, cast.faults, ports),
        steps=copied.steps,
        timeout=timeout,
        problems=tuple(dict.fromkeys([*problems, *(Problem("rehearsal", text) for text in copied.left_out)])),
        owns_work_dir=owned,
        ports=ports,
        busy=tuple(busy_ports(cast.faults, written, named_ports(document.values, topology, gateway)).values()),
        tools=cast.tools,
    )


def _relaxed(kind: Kind, settings: LaunchSettings) -> LaunchSettings:
    """The settings without what only Beaker needs: an image, the user's registry, live services."""
    image = settings.image
    if image is None:
        try:
            resolve_image(None, settings.workspace)
        except UserError:
            image = _NO_IMAGE
    registry = _SOME_REGISTRY if kind == "rl" else None
    secrets = tuple(pair for pair in settings.secrets if pair[0] != "REGISTRY")
    return replace(
        settings,
        image=image,
        registry=registry,
        secrets=secrets,
        required_services=(),
        # Relative data paths are those of the folder the rehearsal is started in.
        working_dir=settings.working_dir or Path.cwd(),
    )


def _before_paying(kind: Kind, settings: LaunchSettings) -> list[Problem]:
    """What a submit of the same launch would refuse or warn about."""
    try:
        plan = plan_launch(kind, settings)
    except UserErrors as errors:
        return [_problem(error) for error in errors.errors]
    except UserError as error:
        return [_problem(error)]
    found = [_problem(error) for error in plan.refusals]
    told = {str(error) for error in plan.refusals}
    found += [Problem("launch", text) for text in (*plan.warnings, *plan.submit_warnings) if text not in told]
    return found


def _problem(error: UserError) -> Problem:
    where = error.location or (error.key or "")
    message = f"{error.key}: {error.message}" if error.location and error.key else error.message
    return Problem(where or "launch", message, error.hint)


def _work_dir(options: RehearsalOptions) -> tuple[Path, bool]:
    if options.work_dir is None:
        return Path(tempfile.mkdtemp(prefix="primebeaker-rehearsal-")), True
    try:
        options.work_dir.mkdir(parents=True, exist_ok=True)
        if any(options.work_dir.iterdir()):
            raise UserError(f"--work-dir = {options.work_dir}: expected an empty or new folder")
    except OSError as error:
        raise UserError(f"--work-dir = {options.work_dir}: cannot be used: {error.strerror}") from error
    return options.work_dir.resolve(), False


def _rehearsed(
    relaxed: LaunchSettings, checked: LaunchPlan, config: Path, work_dir: Path, timeout: float, gateway_port: int | None
) -> LaunchSettings:
    """The settings of the copy: everything lies in the work folder."""
    multi = checked.topology.multi_node
    rendezvous = relaxed.rendezvous_timeout_seconds or (max(int(timeout / 4), 1) if multi else None)
    return replace(
        relaxed,
        toml=config,
        workspace=_WORKSPACE,
        image=relaxed.image or checked.image,
        mount_path=str(work_dir),
        working_dir=work_dir / "run",
        scratch_dir=work_dir / "scratch",
        home_dir=work_dir / "home",
        registry=None if gateway_port is None else f"sqlite:///{work_dir}/registry.sqlite3",
        gateway_port=gateway_port,
        gateway_workers=None if gateway_port is None else 1,
        rendezvous_timeout_seconds=rendezvous,
        toml_check="off",
        launch_id=checked.launch_id,
        wandb_run_id=checked.settings.wandb_run_id,
    )


def _hooks(
    plan: LaunchPlan,
    options: RehearsalOptions,
    work_dir: Path,
    timeout: float,
    faults: Sequence[Fault],
    ports: PortBlock,
) -> Rehearsal:
    directory = work_dir / "rehearsal"
    model, _, rules = options.model.partition(":") if options.model.startswith("scripted:") else (options.model, "", "")
    settings = RehearsalSettings(
        model=model, rules=rules or None, seed=options.seed, rollouts=not options.no_rollouts, faults=options.faults
    )
    settings.write(directory)
    given = dict(plan.settings.environment)
    quarter = str(max(timeout / 4, 1))
    tunables = {
        "PRIMEBEAKER_GRACE_SECONDS": str(_GRACE_SECONDS),
        "PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS": quarter,
        "PRIMEBEAKER_DRAIN_TIMEOUT_SECONDS": quarter,
        "PRIMEBEAKER_INFERENCE_READY_TIMEOUT_SECONDS": quarter,
        "PRIMEBEAKER_STALL_SECONDS": quarter,
        "PRIMEBEAKER_POLL_SECONDS": "0.2",
        # A single node has no flag for it; others have theirs in the spec.
        **({} if plan.topology.multi_node else {"RENDEZVOUS_TIMEOUT_SECONDS": quarter}),
    }
    # Neither W&B nor a hub is ever asked from a rehearsal.
    offline = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    environment = {name: value for name, value in {**tunables, **offline}.items() if name not in given}
    return Rehearsal(
        path_prepend=[str(install_programs(work_dir / "bin"))],
        env={
            **environment,
            **fault_variables(faults, given),
            **settings.environment(directory),
            PORTS: str(ports.base),
        },
    )


def problems_text(problems: Sequence[Problem]) -> list[str]:
    """One line a problem."""
    return [f"{item.where}: {item.message}" + (f"; {item.hint}" if item.hint else "") for item in problems]
