"""All edits of one command line, applied in one go."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.config.binding import TrainingData
from primebeaker.config.document import TomlDocument
from primebeaker.config.generation import kind_of_toml
from primebeaker.config.paths import Path as KeyPath
from primebeaker.config.paths import parse_path
from primebeaker.config.training import RLTrainingToml, SFTTrainingToml, TrainingToml
from primebeaker.errors import Mistakes, UserError, UserErrors

__all__ = [
    "Edits",
    "apply_edits",
    "assignment",
    "flag_path",
    "open_toml",
    "read_training_data",
    "toml_value",
    "training_data",
]


@dataclass(frozen=True, kw_only=True)
class Edits:
    """What to change in a training TOML; what is None or empty stays. See the methods of the same names.

    Args:
        assignments: ``PATH=TOMLVALUE``, each.
        removals: Paths.
        create: Create missing tables for ``assignments``.
    """

    output_dir: str | None = None
    wandb_tags: Sequence[str] = ()
    replace_tags: bool = False
    wandb_name: str | None = None
    checkpoint: str | None = None
    learning_rate: float | None = None
    kl_tau: float | None = None
    oversampling_factor: int | None = None
    eval_num_examples: int | None = None
    environment_namespace: str | None = None
    assignments: Sequence[str] = ()
    removals: Sequence[str] = ()
    create: bool = False


def open_toml(path: str | os.PathLike[str], kind: str | None = None) -> SFTTrainingToml | RLTrainingToml:
    """Read a TOML for editing, without asking for the tables that training needs.

    Args:
        path: The file.
        kind: ``sft`` or ``rl``; by default ``rl`` when ``[orchestrator]`` or ``[trainer]`` is present.
    """
    document = TomlDocument.from_path(path)
    if (kind or kind_of_toml(document.values)) == "rl":
        return RLTrainingToml(document)
    return SFTTrainingToml(document)


def apply_edits(toml: SFTTrainingToml | RLTrainingToml, edits: Edits) -> SFTTrainingToml | RLTrainingToml:
    """The TOML with all edits.

    Raises:
        UserError: Some of them cannot be made; all of their mistakes together.
    """
    mistakes = Mistakes()
    current: Any = toml
    for edit in [*_named_edits(toml, edits, mistakes), *_free_edits(edits)]:
        with mistakes.collect():
            current = edit(current)
    mistakes.raise_if_any()
    edited: SFTTrainingToml | RLTrainingToml = current
    return edited


_Edit = Callable[[Any], TrainingToml]


def _named_edits(toml: TrainingToml, edits: Edits, mistakes: Mistakes) -> list[_Edit]:
    both: list[tuple[Any, _Edit]] = [
        (edits.output_dir, lambda toml: toml.with_output_dir(edits.output_dir)),
        (edits.wandb_tags or None, lambda toml: toml.with_wandb_tags(*edits.wandb_tags, replace=edits.replace_tags)),
        (edits.wandb_name, lambda toml: toml.with_wandb_name(edits.wandb_name)),
    ]
    if edits.replace_tags and not edits.wandb_tags:
        mistakes.add(UserError("--replace-tags needs at least one --wandb-tag"))
    rl: list[tuple[str, Any, _Edit]] = [
        ("--checkpoint", edits.checkpoint, lambda toml: toml.with_model_checkpoint(edits.checkpoint)),
        ("--lr", edits.learning_rate, lambda toml: toml.with_learning_rate(edits.learning_rate)),
        ("--kl-tau", edits.kl_tau, lambda toml: toml.with_kl_tau(edits.kl_tau)),
        (
            "--oversampling-factor",
            edits.oversampling_factor,
            lambda toml: toml.with_oversampling_factor(edits.oversampling_factor),
        ),
        (
            "--eval-num-examples",
            edits.eval_num_examples,
            lambda toml: toml.with_eval_num_examples(edits.eval_num_examples),
        ),
        (
            "--environment-namespace",
            edits.environment_namespace,
            lambda toml: toml.with_environment_namespace(edits.environment_namespace),
        ),
    ]
    if toml.kind != "rl":
        for flag, value, _ in rl:
            if value is not None:
                message = f"{flag} is for RL and {toml.template_path} is an SFT TOML"
                mistakes.add(UserError(message, hint="say --kind=rl if it is not"))
        rl = []
    return [edit for value, edit in [*both, *((value, edit) for _, value, edit in rl)] if value is not None]


def _free_edits(edits: Edits) -> list[_Edit]:
    def setting(text: str) -> _Edit:
        return lambda toml: toml.with_value(*assignment(text, "--set"), edits.create)

    def unsetting(path: str) -> _Edit:
        return lambda toml: toml.without_value(flag_path(path, "--unset"))

    return [*map(setting, edits.assignments), *map(unsetting, edits.removals)]


def assignment(text: str, flag: str) -> tuple[str, Any]:
    """The path and the value of ``PATH=TOMLVALUE``; the path may hold quoted keys with an equals sign."""
    position = text.find("=")
    while position > 0:
        path = text[:position].strip()
        # Inside an open quote the equals sign belongs to the key.
        if path.count('"') % 2 == 0 and path.count("'") % 2 == 0:
            flag_path(path, flag)
            return path, toml_value(text[position + 1 :], flag, path)
        position = text.find("=", position + 1)
    raise UserError(f"{flag}={text}: expected PATH=TOMLVALUE", hint=f"for example {flag}=max_steps=100")


def flag_path(text: str, flag: str) -> KeyPath:
    """The parts of a path given with a flag, which the mistake names."""
    try:
        return parse_path(text)
    except UserError as error:
        raise UserError(error.message, hint=error.hint, key=flag) from error


def toml_value(text: str, flag: str, name: str) -> Any:
    """One value in TOML syntax."""
    try:
        # A line end behind the value keeps a comment from hiding what follows.
        parsed = tomllib.loads(f"value = {text.strip()}\n")
    except (ValueError, RecursionError) as error:
        written = json.dumps(text, ensure_ascii=False)
        raise UserError(
            f"{flag}={name}={text}: not a value in TOML syntax",
            hint=f"text is written in quotes: {flag}='{name}={written}'",
        ) from error
    if set(parsed) != {"value"}:
        raise UserError(f"{flag}={name}={text}: more than one value in TOML syntax")
    return parsed["value"]


def read_training_data(path: Path) -> dict[str, Any]:
    """The JSON manifest of a run's data."""
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from error
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON: {error.msg}", file=path, line=error.lineno, column=error.colno) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"not readable JSON: {error}", file=path) from error
    if not isinstance(loaded, dict):
        raise UserError("expected a JSON object", file=path)
    return loaded


def training_data(manifest: dict[str, Any], kind: str, file: Path | None = None) -> TrainingData:
    """The data of a manifest, whose kind must be ``kind`` when it names one.

    Args:
        manifest: The fields.
        kind: ``sft`` or ``rl``.
        file: The file they come from; without it they come from flags, and messages name those.
    """
    if manifest.get("kind", kind) != kind:
        raise UserError(f"{manifest['kind']!r}, but --kind is {kind!r}", file=file, key="kind")
    try:
        return TrainingData.from_mapping({**manifest, "kind": kind})
    except UserError as error:
        parts = error.errors if isinstance(error, UserErrors) else (error,)
        keys = [part.key if file is not None or part.key is None else _flag(part.key) for part in parts]
        raise UserErrors(
            [UserError(part.message, hint=part.hint, file=file, key=key) for part, key in zip(parts, keys, strict=True)]
        ) from error


def _flag(field: str) -> str:
    name, _, argument = field.partition(".")
    return f"--environment-arg={argument}" if name == "environment_args" else f"--{name.replace('_', '-')}"
