"""Bind the data of a run, the paths its preparation wrote, into a training TOML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.config.document import TomlDocument
from primebeaker.config.environments import entries
from primebeaker.config.needs import need_sft_data, need_tables
from primebeaker.config.paths import format_path
from primebeaker.config.render import normalize
from primebeaker.errors import Mistakes, UserError

__all__ = ["DataArtifacts", "TrainingData", "bound_values"]

_SPLITS = {"data": "train", "val.data": "validation"}


@dataclass(frozen=True, init=False)
class TrainingData:
    """The data of one training run.

    Args:
        kind: ``sft`` or ``rl``.
        train_path: The rows to train on.
        validation_path: The rows to validate on.
        hf_dataset_path: The Hugging Face dataset with the splits ``train`` and ``validation``; SFT needs it.
        environment_args: Arguments for every environment of an RL run. ``dataset`` is not among them.
        ignored: Anything else, so that the manifest of the data can be passed whole.

    Raises:
        UserError: A field is missing, of the wrong type, or cannot be written in TOML.
    """

    kind: str
    train_path: str
    validation_path: str
    hf_dataset_path: str | None = None
    environment_args: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        *,
        kind: str | None = None,
        train_path: str | os.PathLike[str] | None = None,
        validation_path: str | os.PathLike[str] | None = None,
        hf_dataset_path: str | os.PathLike[str] | None = None,
        environment_args: Mapping[str, Any] | None = None,
        **ignored: Any,
    ) -> None:
        mistakes = Mistakes()
        if kind not in ("sft", "rl"):
            mistakes.add(UserError(f"expected 'sft' or 'rl', found {kind!r}", key="kind"))
        found = {"train_path": train_path, "validation_path": validation_path}
        if kind == "sft" or hf_dataset_path is not None:
            found["hf_dataset_path"] = hf_dataset_path
        texts: dict[str, str | None] = {"hf_dataset_path": None}
        for name, value in found.items():
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            if not isinstance(text, str) or not text.strip():
                shown = "nothing" if value is None else repr(value)
                mistakes.add(UserError(f"expected a path that is not empty, found {shown}", key=name))
            else:
                texts[name] = text
        arguments: Any = {}
        if environment_args is not None and not isinstance(environment_args, Mapping):
            mistakes.add(UserError(f"expected a table, found {environment_args!r}", key="environment_args"))
        elif environment_args:
            if "dataset" in environment_args:
                mistakes.add(
                    UserError(
                        "not allowed here",
                        key="environment_args.dataset",
                        hint="train_path and validation_path set it",
                    )
                )
            with mistakes.collect():
                arguments = normalize(environment_args, ["environment_args"])
        mistakes.raise_if_any()
        for name, value in {**texts, "kind": kind, "environment_args": arguments}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_mapping(cls, manifest: Mapping[str, Any]) -> TrainingData:
        """The data that a manifest describes; its other fields are ignored."""
        return cls(**{str(name): value for name, value in manifest.items()})


DataArtifacts = TrainingData


def bound_values(document: TomlDocument, data: TrainingData) -> TomlDocument:
    """The document with the data bound; see :meth:`TrainingToml.bind_data`."""
    return _bind_sft(document, data) if data.kind == "sft" else _bind_rl(document, data)


def _bind_sft(document: TomlDocument, data: TrainingData) -> TomlDocument:
    need_sft_data(document)
    for table, split in _SPLITS.items():
        document = document.with_value(f"{table}.type", "sft")
        document = document.with_value(f"{table}.name", data.hf_dataset_path)
        document = document.with_value(f"{table}.splits", [split])
    return document


def _bind_rl(document: TomlDocument, data: TrainingData) -> TomlDocument:
    need_tables(document, "orchestrator.train", "orchestrator.eval")
    found = list(entries(document.values))
    if not found:
        raise UserError(
            "there is no [[orchestrator.train.source]] and no [[orchestrator.eval.source]] to bind data to",
            file=document.file,
            line=document.line_of("orchestrator.train"),
        )
    mistakes = Mistakes()
    for path, entry in found:
        side, collection = path[1], path[2]
        if collection == "source" and "env" in entry and "legacy" not in entry:
            mistakes.add(
                UserError(
                    "has an env table and no legacy table, so it takes no arguments of a classic environment",
                    file=document.file,
                    line=document.line_of(path),
                    key=format_path(path),
                )
            )
            continue
        table = [*path, "legacy", "args"] if collection == "source" else [*path, "args"]
        dataset = data.train_path if side == "train" else data.validation_path
        with mistakes.collect():
            for name, value in {**data.environment_args, "dataset": dataset}.items():
                document = document.with_value([*table, name], value, create=True)
    mistakes.raise_if_any()
    return document
