"""``primebeaker toml``: read, edit, bind, check and compare training TOMLs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.bundled import ENVIRONMENT_NAMESPACE
from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.output import OutputOptions, Result
from primebeaker.config.catalogue import GENERATIONS
from primebeaker.config.check import CheckReport, check_toml
from primebeaker.config.differences import as_json, differences
from primebeaker.config.document import TomlDocument
from primebeaker.config.edits import (
    Edits,
    apply_edits,
    assignment,
    flag_path,
    open_toml,
    read_training_data,
    training_data,
)
from primebeaker.config.generation import kind_of_toml
from primebeaker.config.paths import MISSING, expand, lookup, missing, parse_path
from primebeaker.config.training import TrainingToml, training_class
from primebeaker.errors import Mistakes, UserError

app = new_app("toml", "Read, edit, bind, check and compare training TOMLs; every other byte stays.")

_KINDS = ("sft", "rl")


@dataclass(kw_only=True)
class InputOptions(OutputOptions):
    """The TOML a command reads."""

    toml: Annotated[Path | None, path("The training TOML.", panel="Input")] = None


@dataclass(kw_only=True)
class GetOptions(InputOptions):
    """What ``toml get`` takes."""

    key: Annotated[str | None, text("The key, like a.b[0].c; [*] stands for every element.", panel="Input")] = None


@app.command
def get(options: Annotated[GetOptions | None, Parameter(name="*")] = None) -> Result:
    """Print one value of a TOML as JSON; dates are RFC 3339 text."""
    options = options or GetOptions()
    _need(toml=options.toml, key=options.key)
    document = TomlDocument.from_path(options.toml or "")
    parts = flag_path(options.key or "", "--key")
    tree = document.values
    found: list[Any] = []
    try:
        for target in expand(tree, parts):
            value = lookup(tree, target)
            if value is MISSING:
                raise missing(tree, target)
            found.append(as_json(value))
    except UserError as error:
        raise UserError(error.message, hint=error.hint, file=document.path) from error
    value = found[0] if all(isinstance(part, str | int) for part in parts) else found
    return Result(value, text=lambda: value if isinstance(value, str) else _as_text(value))


@dataclass(kw_only=True)
class WriteOptions(InputOptions):
    """Where an edited TOML goes."""

    output: Annotated[Path | None, path("Write the result to this .toml file.", panel="Output")] = None
    in_place: Annotated[bool, boolean("Replace the TOML itself.", name="in-place", panel="Output")] = False
    stdout: Annotated[bool, boolean("Print the result; the default.", name="stdout", panel="Output")] = False


@dataclass(kw_only=True)
class EditOptions(WriteOptions):
    """What ``toml edit`` takes."""

    kind: Annotated[
        str | None, choice("What it trains.", _KINDS, panel="Input", default="rl with [orchestrator] or [trainer]")
    ] = None
    output_dir: Annotated[str | None, text("Set output_dir.", panel="Edits")] = None
    wandb_tag: Annotated[tuple[str, ...], repeated("Add a W&B tag; repeats.", panel="Edits")] = ()
    replace_tags: Annotated[bool, boolean("Drop the W&B tags that are there.", name="replace-tags", panel="Edits")] = (
        False
    )
    wandb_name: Annotated[str | None, text("Set the name of the W&B run.", panel="Edits")] = None
    checkpoint: Annotated[str | None, text("Start all three models from this one (RL).", panel="Edits")] = None
    lr: Annotated[float | None, number("Set trainer.optim.lr (RL).", above=0, panel="Edits")] = None
    kl_tau: Annotated[float | None, number("Set trainer.loss.kl_tau (RL).", least=0, panel="Edits")] = None
    oversampling_factor: Annotated[
        int | None, integer("Set orchestrator.oversampling_factor (RL).", least=1, panel="Edits")
    ] = None
    eval_num_examples: Annotated[
        int | None, integer("Set num_examples of every evaluation source (RL).", least=1, panel="Edits")
    ] = None
    environment_namespace: Annotated[
        str | None,
        text(
            "Move the ids of bundled environments to this Python package (RL).",
            panel="Edits",
            without_value=ENVIRONMENT_NAMESPACE,
        ),
    ] = None
    set: Annotated[tuple[str, ...], repeated("PATH=TOMLVALUE, set any value; repeats.", panel="Edits")] = ()
    unset: Annotated[tuple[str, ...], repeated("PATH, remove a key or table; repeats.", panel="Edits")] = ()
    create: Annotated[bool, boolean("Create missing tables for --set.", name="create", panel="Edits")] = False


@app.command
def edit(options: Annotated[EditOptions | None, Parameter(name="*")] = None) -> Result | int:
    """Edit a TOML; every byte outside the edited values stays."""
    options = options or EditOptions()
    _need(toml=options.toml)
    _one_target(options)
    toml = open_toml(options.toml or "", options.kind)
    edits = Edits(
        output_dir=options.output_dir,
        wandb_tags=options.wandb_tag,
        replace_tags=options.replace_tags,
        wandb_name=options.wandb_name,
        checkpoint=options.checkpoint,
        learning_rate=options.lr,
        kl_tau=options.kl_tau,
        oversampling_factor=options.oversampling_factor,
        eval_num_examples=options.eval_num_examples,
        environment_namespace=options.environment_namespace,
        assignments=options.set,
        removals=options.unset,
        create=options.create,
    )
    return _deliver(toml, apply_edits(toml, edits), options)


@dataclass(kw_only=True)
class BindOptions(WriteOptions):
    """What ``toml bind`` takes."""

    kind: Annotated[str | None, choice("What it trains.", _KINDS, panel="Input")] = None
    data: Annotated[Path | None, path("JSON manifest of the data.", panel="Data")] = None
    train_path: Annotated[str | None, text("The rows to train on.", panel="Data")] = None
    validation_path: Annotated[str | None, text("The rows to validate on.", panel="Data")] = None
    hf_dataset_path: Annotated[str | None, text("The Hugging Face dataset (SFT).", panel="Data")] = None
    environment_arg: Annotated[
        tuple[str, ...], repeated("NAME=TOMLVALUE for every environment (RL); repeats.", panel="Data")
    ] = ()


@app.command
def bind(options: Annotated[BindOptions | None, Parameter(name="*")] = None) -> Result | int:
    """Point a TOML at the data it trains and validates on."""
    options = options or BindOptions()
    _need(toml=options.toml, kind=options.kind)
    _one_target(options)
    kind = options.kind or ""
    data = training_data(_manifest(options), kind, options.data)
    toml = training_class(kind).from_path(options.toml or "")
    return _deliver(toml, toml.bind_data(data), options)


def _manifest(options: BindOptions) -> dict[str, Any]:
    """The data from the manifest or from the four flags."""
    flags = {
        "train_path": options.train_path,
        "validation_path": options.validation_path,
        "hf_dataset_path": options.hf_dataset_path,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if options.data is None:
        mistakes = Mistakes()
        arguments: dict[str, Any] = {}
        for word in options.environment_arg:
            with mistakes.collect():
                name, value = assignment(word, "--environment-arg")
                name = ".".join(str(part) for part in parse_path(name))
                if name in arguments:
                    raise UserError(f"--environment-arg: {name} is given twice", hint="give it once")
                arguments[name] = value
        mistakes.raise_if_any()
        return {**given, "environment_args": arguments}
    if given or options.environment_arg:
        raise UserError("--data holds the data already", hint="give either --data or the flags of its parts")
    return read_training_data(options.data)


@dataclass(kw_only=True)
class CheckOptions(InputOptions):
    """What ``toml check`` takes."""

    kind: Annotated[
        str | None, choice("What it trains.", _KINDS, panel="Input", default="rl with [orchestrator] or [trainer]")
    ] = None
    prime_rl: Annotated[
        str, choice("The Prime-RL generation.", ("auto", *GENERATIONS), panel="Input", default="auto")
    ] = "auto"
    strict: Annotated[bool, boolean("Unknown keys are errors.", name="strict", panel="Input")] = False


@app.command
def check(options: Annotated[CheckOptions | None, Parameter(name="*")] = None) -> Result:
    """Check a TOML against Prime-RL's fields; exit 2 when Prime-RL would refuse it."""
    options = options or CheckOptions()
    _need(toml=options.toml)
    document = TomlDocument.from_path(options.toml or "")
    kind: Any = options.kind or kind_of_toml(document.values)
    generation: Any = None if options.prime_rl == "auto" else options.prime_rl
    report = check_toml(document, kind, generation=generation, strict=options.strict)
    data = {
        "toml": str(document.path),
        "kind": report.kind,
        "generation": report.generation,
        "ok": report.ok,
        "errors": [finding.as_dict() for finding in report.errors],
        "warnings": [finding.as_dict() for finding in report.warnings],
    }
    return Result(data, text=lambda: _check_text(document.path, report), exit_code=0 if report.ok else 2)


def _check_text(file: Path | None, report: CheckReport) -> str:
    lines = [f"error    {finding.error(file)}" for finding in report.errors]
    lines += [f"warning  {finding.error(file)}" for finding in report.warnings]
    counts = f"{_count(len(report.errors), 'error')}, {_count(len(report.warnings), 'warning')}"
    return "\n".join([*lines, f"{file}: {report.kind} TOML of Prime-RL {report.generation}: {counts}"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@app.command
def diff(a: Path, b: Path, /, *, options: Annotated[OutputOptions | None, Parameter(name="*")] = None) -> Result:
    """Print how two TOMLs differ by value; layout and comments do not count."""
    found = differences(TomlDocument.from_path(a).values, TomlDocument.from_path(b).values)
    data = found.as_dict()

    def as_text() -> str:
        lines = [f"~ {item['path']}: {_as_text(item['from'])} -> {_as_text(item['to'])}" for item in data["changed"]]
        lines += [f"+ {item['path']} = {_as_text(item['value'])}" for item in data["added"]]
        lines += [f"- {item['path']} = {_as_text(item['value'])}" for item in data["removed"]]
        return "\n".join(lines or ["no difference"])

    return Result(data, text=as_text)


def _as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _need(**flags: object) -> None:
    mistakes = Mistakes()
    for name, value in flags.items():
        if value is None:
            mistakes.add(UserError(f"--{name} is required"))
    mistakes.raise_if_any()


def _one_target(options: WriteOptions) -> None:
    targets = {"--output": options.output, "--in-place": options.in_place, "--stdout": options.stdout}
    given = [flag for flag, value in targets.items() if value]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other", hint="give one of them")


def _deliver(before: TrainingToml, after: TrainingToml, options: WriteOptions) -> Result | int:
    """Print the edited TOML, or write it and say what changed."""
    if options.output is None and not options.in_place:
        sys.stdout.flush()
        sys.stdout.buffer.write(after.text.encode())
        sys.stdout.flush()
        return 0
    target = options.output or before.template_path
    assert target is not None
    written = after.write(target, in_place=options.in_place)
    changed = differences(before.values, after.values).paths()
    return Result(
        {"toml": str(written), "changed": changed},
        text=lambda: "\n".join([f"wrote {written}", *(f"  {path}" for path in changed or ["nothing changed"])]),
    )
