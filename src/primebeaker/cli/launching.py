"""The flags of a launch, shared by every command that starts one.

A flag that is not given stays None (or empty), so that the launch can tell "not given" from "given the default".
"""

# No deferred annotations: option classes of other modules inherit these, see primebeaker.cli.output.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.output import OutputOptions
from primebeaker.errors import Mistakes, UserError, did_you_mean
from primebeaker.launch.plan import LaunchPlan, plan_launch
from primebeaker.launch.settings import PRIORITIES, TOML_CHECKS, LaunchSettings
from primebeaker.launch.topology import Kind

__all__ = [
    "LaunchOptions",
    "PlacementOptions",
    "RLLaunchOptions",
    "ServiceOptions",
    "engine_flag",
    "explain_unknown_flags",
    "given_settings",
    "launch_settings",
    "pairs",
    "planned",
    "service_counts",
]

_PLACEMENT, _RUNTIME, _SECRETS, _WANDB, _SERVICES = "Placement", "Runtime", "Secrets", "W&B", "Services"


@dataclass(kw_only=True)
class PlacementOptions(OutputOptions):
    """The flags of everything that ends in a new experiment of ours, a resume included."""

    image: Annotated[
        str | None,
        text("beaker://ID, docker://REFERENCE or a Docker reference.", panel=_PLACEMENT, default="catalogued image"),
    ] = None
    workspace: Annotated[
        str | None, text("Beaker workspace, owner/name.", panel=_PLACEMENT, default="ai2/oe-agents")
    ] = None
    cluster: Annotated[
        tuple[str, ...],
        repeated("Cluster that may run it (repeat).", split_commas=True, panel=_PLACEMENT, default="ai2/holmes"),
    ] = ()
    priority: Annotated[str | None, choice("Job priority.", PRIORITIES, panel=_PLACEMENT, default="high")] = None
    min_runtime_hours: Annotated[
        int | None, integer("Hours the job may not be preempted.", least=0, panel=_PLACEMENT, default="0")
    ] = None
    timeout_hours: Annotated[
        float | None, number("Hours after which Beaker ends the task.", above=0, panel=_PLACEMENT, default="no limit")
    ] = None
    budget: Annotated[str | None, text("Beaker budget.", panel=_PLACEMENT, default="none")] = None
    shared_memory: Annotated[
        str | None, text("Shared memory, such as 64GiB.", panel=_PLACEMENT, default="Beaker's")
    ] = None
    memory: Annotated[str | None, text("Memory, such as 256GiB.", panel=_PLACEMENT, default="Beaker's")] = None
    cpu_count: Annotated[float | None, number("CPUs.", above=0, panel=_PLACEMENT, default="Beaker's")] = None

    mount_path: Annotated[
        str | None, text("Where the Weka bucket is mounted in the task.", panel=_RUNTIME, default="/weka")
    ] = None
    dataset: Annotated[str | None, text("Weka bucket.", panel=_RUNTIME, default="oe-adapt-default")] = None
    working_dir: Annotated[
        Path | None, path("Directory the task starts in.", panel=_RUNTIME, default="the mount path")
    ] = None
    scratch_dir: Annotated[
        Path | None, path("Directory for launch files and caches.", panel=_RUNTIME, default="the mount path")
    ] = None
    home_dir: Annotated[Path | None, path("HOME of the task.", panel=_RUNTIME, default="the mount path")] = None
    env: Annotated[
        tuple[str, ...], repeated("NAME=VALUE for the task (repeat).", mappings=True, panel=_RUNTIME, default="none")
    ] = ()
    setup_command: Annotated[
        str | None, text("Bash text to run in the task before anything else.", panel=_RUNTIME, default="none")
    ] = None
    rendezvous_timeout_seconds: Annotated[
        int | None,
        integer("How long replicas wait for each other (multi-node).", least=1, panel=_RUNTIME, default="1800"),
    ] = None

    secret: Annotated[
        tuple[str, ...],
        repeated("NAME=BEAKER_SECRET for the task (repeat).", mappings=True, panel=_SECRETS, default="none"),
    ] = ()
    wandb_secret: Annotated[
        str | None, text("Beaker secret with the W&B key; none for no key.", panel=_SECRETS, default="WANDB_API_KEY")
    ] = None
    hf_secret: Annotated[
        str | None,
        text("Beaker secret with the Hugging Face token; none for no token.", panel=_SECRETS, default="HF_TOKEN"),
    ] = None

    wandb_run_id: Annotated[str | None, text("W&B run id.", panel=_WANDB, default="new uuid4 hex")] = None
    wandb_entity: Annotated[str | None, text("W&B entity, when the TOML names none.", panel=_WANDB, default="none")] = (
        None
    )


@dataclass(kw_only=True)
class LaunchOptions(PlacementOptions):
    """The flags of every launch from a TOML."""

    toml: Annotated[Path | None, path("The Prime-RL training TOML (required).", panel="Input")] = None
    toml_check: Annotated[
        str | None,
        choice("How to check the TOML against Prime-RL's fields.", TOML_CHECKS, panel="Input", default="warn"),
    ] = None
    live_config: Annotated[
        bool, boolean("Let the task read the TOML as it is when it starts.", name="live-config", panel="Input")
    ] = False
    name: Annotated[str | None, text("Experiment name.", panel=_RUNTIME, default="from the TOML's run name")] = None
    description: Annotated[
        str | None, text("Experiment description.", panel=_RUNTIME, default="PrimeBeaker KIND NAME")
    ] = None
    launch_id: Annotated[str | None, text("Id of this launch, used once.", panel=_RUNTIME, default="new uuid4 hex")] = (
        None
    )


@dataclass(kw_only=True)
class ServiceOptions:
    """The flags about tool services, which RL has."""

    registry: Annotated[
        str | None, text("LiteRegistry URI; required for multi-node.", panel=_SERVICES, default="none")
    ] = None
    gateway_port: Annotated[
        int | None, integer("Port of the local tool gateway.", least=1, most=65535, panel=_SERVICES, default="1212")
    ] = None
    gateway_workers: Annotated[
        int | None, integer("Worker processes of the gateway.", least=1, panel=_SERVICES, default="8")
    ] = None
    required_service: Annotated[
        tuple[str, ...],
        repeated(
            "NAME=N: wait for N live instances of a service (repeat).",
            split_commas=True,
            mappings=True,
            panel=_SERVICES,
            default="none",
        ),
    ] = ()


@dataclass(kw_only=True)
class RLLaunchOptions(ServiceOptions, LaunchOptions):
    """The flags of every RL launch."""


#: Flag (as a field) -> setting, where the names differ.
_RENAMED = {"cluster": "clusters", "env": "environment", "secret": "secrets", "required_service": "required_services"}


def launch_settings(options: LaunchOptions) -> LaunchSettings:
    """The settings of a command line; what was not given keeps the setting's own default.

    Raises:
        UserError: ``--toml`` is missing, or a repeated flag has a malformed value.
    """
    mistakes = Mistakes()
    settings = _settings(options, mistakes)
    mistakes.raise_if_any()
    assert settings is not None  # nothing is missing where there is no mistake
    return settings


def planned(kind: Kind, options: LaunchOptions) -> LaunchPlan:
    """The launch of a command line; mistakes of its words and of what they stand for are told together.

    Raises:
        UserError: One or more mistakes.
    """
    mistakes = Mistakes()
    settings = _settings(options, mistakes)
    if settings is not None:
        with mistakes.collect():
            plan = plan_launch(kind, settings)
    mistakes.raise_if_any()
    return plan


def _settings(options: LaunchOptions, mistakes: Mistakes) -> LaunchSettings | None:
    """What could be read of the flags; None without a TOML."""
    values = given_settings(options, LaunchSettings, mistakes)
    if options.toml is None:
        mistakes.add(UserError("--toml is missing", hint="pass the training TOML with --toml=FILE"))
        return None
    return LaunchSettings(**values)


def given_settings(options: PlacementOptions, settings: type[Any], mistakes: Mistakes) -> dict[str, Any]:
    """The values that were given, by the names of a settings class; malformed repeated flags go to ``mistakes``."""
    values: dict[str, Any] = {}
    known = {field.name for field in fields(settings)}
    for option in fields(options):
        value = getattr(options, option.name)
        setting = _RENAMED.get(option.name, option.name)
        if setting not in known or value is None or value == ():
            continue
        if option.name in ("env", "secret"):
            value = pairs(f"--{option.name}", value, mistakes)
        elif option.name == "required_service":
            value = service_counts(value, mistakes)
        values[setting] = value
    return values


def pairs(flag: str, words: Sequence[str], mistakes: Mistakes) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` words as pairs, split at the first ``=``; a word without one is not repeated in the message."""
    found = []
    for position, word in enumerate(words, start=1):
        name, equals, value = word.partition("=")
        if equals and name:
            found.append((name, value))
        else:
            what = "BEAKER_SECRET" if flag == "--secret" else "VALUE"
            mistakes.add(UserError(f"{flag} (number {position}): expected NAME={what}"))
    return tuple(found)


def service_counts(words: Sequence[str], mistakes: Mistakes) -> tuple[tuple[str, int], ...]:
    """``NAME=N`` words as pairs, split at the last ``=``, since names may hold ``:`` and ``/``."""
    found: dict[str, int] = {}
    for word in words:
        name, _, count = word.rpartition("=")
        if not name or not count.isascii() or not count.isdigit() or int(count) < 1:
            mistakes.add(UserError(f"--required-service = {word!r}: expected NAME=N with a count of at least 1"))
        elif found.setdefault(name, int(count)) != int(count):
            mistakes.add(UserError(f"--required-service {name} is given twice, as {found[name]} and {count}"))
    return tuple(found.items())


def engine_flag() -> Any:
    """The parameter of ``--engine``."""
    return choice("Where it runs.", ("beaker", "local"), panel=_PLACEMENT, default="PRIMEBEAKER_ENGINE, else beaker")


def explain_unknown_flags(
    command: Callable[..., Any],
    options: type[Any],
    elsewhere: Mapping[str, str],
    find_more: Callable[[Any], object] | None = None,
) -> Callable[..., Any]:
    """Let ``command`` say more about a command line it refuses.

    Args:
        command: The command's function.
        options: Its option class, whose flags the nearest name is looked for in.
        elsewhere: Flag -> where it has a meaning.
        find_more: Checks the options without doing anything, so that a mistyped word does not hide other mistakes.
    """
    names = [f"--{field.name.replace('_', '-')}" for field in fields(options)]

    def unknown_flag(name: str) -> UserError:
        if name in elsewhere:
            return UserError(f"{name} has no meaning here: {elsewhere[name]}", hint="leave it out")
        return UserError(f"unknown flag {name}", hint=did_you_mean(name, names))

    command.unknown_flag = unknown_flag  # type: ignore[attr-defined]
    command.find_more = find_more  # type: ignore[attr-defined]
    return command
