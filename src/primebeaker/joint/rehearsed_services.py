"""The service half of a rehearsed joint run: the stack's own services where they run here, else labelled stand-ins."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.beaker.spec import spec_json
from primebeaker.errors import ExternalError
from primebeaker.fileio import atomic_write
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.prepare import PreparedRehearsal
from primebeaker.rehearsal.problems import Problem
from primebeaker.rehearsal.standins.services.corpus import documents_of
from primebeaker.services.stack_config import build_launcher, given_by_flags
from primebeaker.services.stacks import NativeLauncher, NativeStack

__all__ = [
    "Needed",
    "ServicePlan",
    "Services",
    "StandIn",
    "failures_of",
    "needed_services",
    "plan_services",
    "problems_of",
    "start_services",
]

_WORKSPACE = "rehearsal/local"
#: Programs the native terminal task asks for before it starts.
_TERMINAL_PROGRAMS = ("rg", "xsv", "pandoc", "jq")
_LOCAL_SEARCH = "localsearch:"
_MODULE = "primebeaker.rehearsal.standins.services"
_PORT = re.compile(r"LR_PREFERRED_PORT=\$\(\(([0-9]+)")
#: Ports from here on are given to outgoing connections.
_FIRST_OUTGOING = 32768
_MOST_NAMES = 40


class StandIn(NamedTuple):
    """A stand-in: the name it registers under, its kind, and what it stands for."""

    name: str
    kind: str
    stands_for: str
    corpus: str | None = None


@dataclass(frozen=True)
class Needed:
    """Which services a rehearsal runs.

    Args:
        native: Registered names of those that run as on Beaker.
        standins: The others.
        unknown: Required names that nothing here can serve.
    """

    native: tuple[str, ...]
    standins: tuple[StandIn, ...]
    unknown: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that will be registered."""
        return (*self.native, *(standin.name for standin in self.standins))


class ServicePlan(NamedTuple):
    """An experiment of services that has not been started: its name, its spec, and what is in it."""

    name: str
    spec: Mapping[str, Any]
    native: tuple[str, ...]
    standins: tuple[StandIn, ...]
    folder: Path


@dataclass(frozen=True)
class Services:
    """Services that were started.

    Args:
        experiment_id: Their experiment on the embedded engine.
        native: Task names of those that run as on Beaker, the gateway included.
        standins: The stand-ins.
        folder: Where the stand-ins note their calls.
    """

    experiment_id: str
    native: tuple[str, ...]
    standins: tuple[StandIn, ...]
    folder: Path

    def document(self) -> dict[str, Any]:
        """The entry of the report, with the requests each stand-in has answered so far."""
        return {
            "experiment_id": self.experiment_id,
            "native": list(self.native),
            "stand_ins": [
                {"name": one.name, "stands_for": one.stands_for, "requests": self._requests(number)}
                for number, one in enumerate(self.standins)
            ],
        }

    def _requests(self, number: int) -> int:
        try:
            return len((self.folder / str(number) / "calls.jsonl").read_text().splitlines())
        except FileNotFoundError:
            return 0


def needed_services(config: Any, required: Sequence[str], toml: Path) -> Needed:
    """Which services the stack offers, the run file requires, or the environments of the TOML name.

    Args:
        config: The validated native config of the stack.
        required: Names in ``rl.required_services``.
        toml: The training TOML.

    Raises:
        UserError: The corpus of the local search is here, and the real service would refuse it.
    """
    names = dict.fromkeys([*_offered(config), *required, *_asked_for(toml)])
    native, standins, unknown = [], [], []
    missing = [program for program in _TERMINAL_PROGRAMS if shutil.which(program) is None]
    for name in names:
        if name == "python" or (name == "terminal" and not missing):
            native.append(name)
        elif standin := _stand_in(name, config, missing):
            standins.append(standin)
        else:
            unknown.append(name)
    return Needed(tuple(native), tuple(standins), tuple(unknown))


def plan_services(prepared: PreparedRehearsal, native: NativeStack, needed: Needed) -> ServicePlan:
    """The experiment with the services, one replica each, in the rehearsal's own registry. Starts nothing."""
    registry = f"sqlite:///{prepared.work_dir}/registry.sqlite3"
    folder = prepared.work_dir / "services"
    values = {
        "registry": registry,
        "python_replicas": int("python" in needed.native),
        "terminal_replicas": int("terminal" in needed.native),
        "web_search_replicas": 0,
        "gateway_workers": 1,
        "python_pool_size": 2,
        "name_prefix": "rehearsal",
        "shared_dir": str(prepared.work_dir / "shared"),
    }
    launcher = build_launcher(native, given_by_flags(values))
    name, spec = _with_quiet_ports(launcher, f"{prepared.experiment_name}-services")
    tasks = [{key: value for key, value in task.items() if key != "datasets"} for task in spec["tasks"]]
    own = tuple(task["name"] for task in tasks)
    for number, standin in enumerate(needed.standins):
        words = [standin.kind, f"--name={standin.name}", f"--registry={registry}", f"--folder={folder / str(number)}"]
        if standin.corpus is not None:
            words.append(f"--corpus={standin.corpus}")
        command = [sys.executable, "-m", _MODULE, *words]
        tasks.append({**tasks[0], "name": f"stand-in-{standin.kind}-{number}", "command": command})
    return ServicePlan(name, {**spec, "tasks": tasks}, own, needed.standins, folder)


def _with_quiet_ports(launcher: NativeLauncher, name: str) -> tuple[str, dict[str, Any]]:
    """A name, and its spec, whose ports lie below those of outgoing connections, which could have taken them.

    The native launcher derives the ports of a stack from its name.
    """
    names = (name, *(f"{name}-{number}" for number in range(1, _MOST_NAMES)))
    first: tuple[str, dict[str, Any]] | None = None
    for candidate in names:
        planned = launcher.build_spec(experiment_name=candidate)
        first = first or planned
        ports = [int(port) for port in _PORT.findall(str(planned[1]))]
        if all(port < _FIRST_OUTGOING for port in ports):
            return planned
    assert first is not None
    return first


def start_services(plan: ServicePlan, work_dir: Path, engine: LocalEngine) -> Services:
    """Start the services of a plan."""
    path = work_dir / "services.json"
    atomic_write(path, spec_json(plan.spec))
    created = engine.create(path, name=plan.name, workspace=_WORKSPACE, rehearsal={})
    if created.experiment_id is None:
        raise ExternalError("the embedded engine gave no experiment id")
    return Services(created.experiment_id, plan.native, plan.standins, plan.folder)


def failures_of(services: Services, engine: LocalEngine) -> list[Problem]:
    """The services that did not last until they were stopped."""
    return [
        Problem(
            f"service {job.task}",
            f"it failed during the rehearsal: {job.status.message}",
            f"see `primebeaker logs {services.experiment_id} --engine local --task={job.task}`",
        )
        for job in engine.get(services.experiment_id).latest_jobs
        if job.state == "failed"
    ]


def problems_of(needed: Needed) -> list[Problem]:
    """What a rehearsal with these services does not try."""
    told = [
        Problem(f"service {one.name}", f"a stand-in answers for {one.stands_for}: what it says means nothing")
        for one in needed.standins
    ]
    if needed.unknown:
        names = ", ".join(needed.unknown)
        told.append(Problem("rl.required_services", f"not rehearsed: {names} not waited for here"))
    return told


def _offered(config: Any) -> Iterator[str]:
    if config.python_replicas:
        yield "python"
    if config.terminal_replicas:
        yield "terminal"
    if config.web_search_replicas:
        yield "search"
    if config.local_search_replicas:
        yield _local_search_name(config)
    if config.generation_replicas:
        yield str(config.generation_model)
    if config.classification_replicas:
        yield str(config.classification_model)


def _local_search_name(config: Any) -> str:
    named = config.local_search_service_name
    return str(named or f"{_LOCAL_SEARCH}{Path(config.local_search_corpus_jsonl).stem}")


def _asked_for(toml: Path) -> Iterator[str]:
    """Services that arguments of environments name."""
    orchestrator = tomllib.loads(toml.read_text("utf-8")).get("orchestrator", {})
    for split in ("train", "eval"):
        for source in orchestrator.get(split, {}).get("source", ()):
            arguments: Mapping[str, Any] = source.get("legacy", {}).get("args", {})
            if arguments.get("local_search_model_path"):
                yield str(arguments["local_search_model_path"])
            if arguments.get("judge_model_path"):
                yield str(arguments.get("judge_service_model_path", "judge"))
            if arguments.get("reward_model_path"):
                yield str(arguments["reward_model_path"])


def _stand_in(name: str, config: Any, missing: Sequence[str]) -> StandIn | None:
    """The stand-in that can serve under a name, or None."""
    if name == "terminal":
        return StandIn(name, "terminal", f"the terminal service, without {', '.join(missing)}")
    if name == "search":
        return StandIn(name, "web-search", "the web search service")
    if name.startswith(_LOCAL_SEARCH) or (config.local_search_replicas and name == _local_search_name(config)):
        corpus = config.local_search_corpus_jsonl if config.local_search_replicas else None
        if corpus is not None:
            documents_of(Path(corpus))
        return StandIn(name, "local-search", "the local search service", corpus)
    if name == "judge" or name.endswith("judge"):
        return StandIn(name, "judge", "the judge service")
    if "/" in name:
        return StandIn(name, "model", "a model service")
    return None
