"""Training TOMLs and the edits that people make to them between two runs.

Every edit returns a new object; the object and the file it came from never change, and every byte that an edit is not
about stays as it was (see :mod:`primebeaker.config.document`).
"""

from __future__ import annotations

import keyword
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from primebeaker.bundled import ENVIRONMENT_NAMESPACE, MODULES
from primebeaker.config.binding import DataArtifacts, TrainingData, bound_values
from primebeaker.config.catalogue import Generation, Root
from primebeaker.config.document import TomlDocument
from primebeaker.config.environments import legacy_ids
from primebeaker.config.generation import detect_generation, kind_of_toml
from primebeaker.config.needs import need_sft_data, need_tables
from primebeaker.config.paths import PathLike, kind_of
from primebeaker.errors import UserError

__all__ = [
    "DataArtifacts",
    "RLTrainingToml",
    "SFTTrainingToml",
    "TrainingData",
    "TrainingToml",
    "load_toml",
    "load_training_toml",
    "render_training_toml",
]


class TrainingToml:
    """A Prime-RL training TOML of any kind.

    Args:
        document: Its text and values.
    """

    #: The kind of training this class is for; None when it is open.
    kind: ClassVar[Root | None] = None

    def __init__(self, document: TomlDocument) -> None:
        self._document = document

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            UserError: It cannot be read, is not valid TOML, or lacks a table that this kind of training needs.
        """
        toml = cls(TomlDocument.from_path(path))
        toml._check_kind()
        return toml

    def _check_kind(self) -> None:
        """Nothing is needed of a TOML of open kind."""

    @property
    def document(self) -> TomlDocument:
        """The document."""
        return self._document

    @property
    def template_path(self) -> Path | None:
        """The file this TOML was read from, edits or not."""
        return self._document.path

    @property
    def values(self) -> dict[str, Any]:
        """The current values as plain dicts and lists; changing them does not affect this object."""
        return self._document.values

    @property
    def text(self) -> str:
        """The current document."""
        return self._document.text

    @property
    def generation(self) -> Generation:
        """The Prime-RL generation this TOML is for.

        Raises:
            UserError: It holds keys of both.
        """
        values = self._document.values
        try:
            return detect_generation(values, self.kind or kind_of_toml(values))
        except UserError as error:
            raise UserError(error.message, hint=error.hint, file=self._document.file) from error

    def write(self, path: str | os.PathLike[str], *, in_place: bool = False) -> Path:
        """Write the TOML atomically; see :meth:`TomlDocument.write`."""
        return self._document.write(path, in_place=in_place)

    def with_value(self, path: PathLike, value: Any, create: bool = False) -> Self:
        """Set any value; see :meth:`TomlDocument.with_value`."""
        return self._with(self._document.with_value(path, value, create))

    def without_value(self, path: PathLike) -> Self:
        """Remove any key, table or element; see :meth:`TomlDocument.without_value`."""
        return self._with(self._document.without_value(path))

    def with_output_dir(self, output_dir: str | os.PathLike[str]) -> Self:
        """Set the existing top-level ``output_dir``."""
        text = self._text("output_dir", output_dir)
        if not self._document.has("output_dir"):
            raise self._mistake("output_dir", "no such key", "add output_dir at the top of the file")
        return self.with_value("output_dir", text)

    def with_wandb_name(self, name: str) -> Self:
        """Set the name of the W&B run."""
        table = self._wandb()
        return self.with_value([*table, "name"], self._text(".".join([*table, "name"]), name))

    def with_wandb_tags(self, *tags: str, replace: bool = False) -> Self:
        """Add tags to the W&B run, each once, the first occurrence first.

        Args:
            tags: One or more tags.
            replace: Drop the tags that are there.
        """
        table = self._wandb()
        key = ".".join([*table, "tags"])
        if not tags:
            raise self._mistake(key, "expected at least one tag")
        new = [self._text(key, tag) for tag in tags]
        old = self._document.get([*table, "tags"], [])
        if not isinstance(old, list) or not all(isinstance(tag, str) for tag in old):
            raise self._mistake(key, f"expected an array of strings, found {_described(old)}")
        return self.with_value([*table, "tags"], list(dict.fromkeys(new if replace else old + new)))

    def bind_data(self, data: TrainingData | Mapping[str, Any]) -> Self:
        """Point the TOML at the data it trains and validates on.

        SFT: ``[data]`` and ``[val.data]`` get the Hugging Face dataset and its split. RL: every environment entry gets
        the environment arguments and the path of its dataset.

        Raises:
            UserError: A table or entry that the data goes to is missing, or the data is for the other kind.
        """
        data = data if isinstance(data, TrainingData) else TrainingData.from_mapping(data)
        if self.kind is not None and data.kind != self.kind:
            raise UserError(f"the data is for {data.kind}, the TOML for {self.kind}", file=self._document.file)
        return self._with(bound_values(self._document, data))

    def _with(self, document: TomlDocument) -> Self:
        return self if document is self._document else type(self)(document)

    def _wandb(self) -> list[str]:
        """The table of W&B's settings in this generation."""
        table = ["monitors", "wandb"] if self.generation == "0.8" else ["wandb"]
        need_tables(self._document, ".".join(table))
        return table

    def _text(self, key: str, value: str | os.PathLike[str]) -> str:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(text, str) or not text.strip():
            raise self._mistake(key, f"expected a text that is not empty, found {value!r}")
        return text

    def _mistake(self, key: str, message: str, hint: str | None = None) -> UserError:
        line = self._document.line_of(key)
        return UserError(message, hint=hint, file=self._document.file, line=line, key=key)


class SFTTrainingToml(TrainingToml):
    """A TOML for supervised fine-tuning. It needs ``[data]`` with ``type = "sft"``, and ``[val.data]``."""

    kind = "sft"

    def _check_kind(self) -> None:
        need_sft_data(self._document)


class RLTrainingToml(TrainingToml):
    """A TOML for reinforcement learning. It needs ``[orchestrator]``."""

    kind = "rl"

    def _check_kind(self) -> None:
        need_tables(self._document, "orchestrator")

    def with_model_checkpoint(self, path: str | os.PathLike[str]) -> Self:
        """Start trainer, orchestrator and inference from one model: a folder or a Hugging Face name."""
        text = self._text("model.name", path)
        inference = ("inference.vllm", "model") if self.generation == "0.8" else ("inference.model", "name")
        places = [("trainer.model", "name"), ("orchestrator.model", "name"), inference]
        need_tables(self._document, *(table for table, _ in places))
        edited = self
        for table, key in places:
            edited = edited.with_value(f"{table}.{key}", text)
        return edited

    def with_learning_rate(self, learning_rate: float) -> Self:
        """Set ``trainer.optim.lr``, above 0."""
        return self._with_number("trainer.optim", "lr", learning_rate, zero=False)

    def with_kl_tau(self, kl_tau: float) -> Self:
        """Set ``trainer.loss.kl_tau``, the weight of the KL term, at least 0."""
        return self._with_number("trainer.loss", "kl_tau", kl_tau, zero=True)

    def with_oversampling_factor(self, factor: int) -> Self:
        """Set ``orchestrator.oversampling_factor``, at least 1; only Prime-RL 0.7 has it."""
        if self.generation == "0.8":
            raise self._mistake(
                "orchestrator.oversampling_factor",
                "Prime-RL 0.8 has no oversampling factor",
                "its adaptive [orchestrator.concurrency] took its place",
            )
        self._need_count("orchestrator.oversampling_factor", factor)
        need_tables(self._document, "orchestrator")
        return self.with_value("orchestrator.oversampling_factor", factor)

    def with_eval_num_examples(self, count: int) -> Self:
        """Set ``num_examples`` of every ``[[orchestrator.eval.source]]``, at least 1."""
        self._need_count("orchestrator.eval.source[*].num_examples", count)
        if not self._document.get("orchestrator.eval.source"):
            raise self._mistake("orchestrator.eval.source", "there is no [[orchestrator.eval.source]]")
        return self.with_value("orchestrator.eval.source[*].num_examples", count)

    def with_environment_namespace(self, namespace: str = ENVIRONMENT_NAMESPACE) -> Self:
        """Let every id that names a bundled environment name it in ``namespace``; foreign ids stay.

        Verifiers loads a classic environment by plain module name, so a ``:load_environment`` behind it is dropped.

        Raises:
            UserError: The namespace is no dotted Python name, or an id names another function of a bundled module.
        """
        parts = namespace.split(".") if isinstance(namespace, str) else []
        if not parts or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            raise UserError(f"{namespace!r} is no dotted Python name", hint=f"for example {ENVIRONMENT_NAMESPACE}")
        document = self._document
        for found in legacy_ids(document.values):
            path, colon, suffix = found.value.partition(":")
            module = path.rpartition(".")[2]
            if module not in MODULES:
                continue
            if colon and suffix != "load_environment":
                line = document.line_of(found.path)
                raise UserError(
                    f"{found.value!r} names another function than load_environment of a bundled environment",
                    hint=f"write {namespace}.{module}",
                    file=self._document.file,
                    line=line,
                )
            document = document.with_value(found.path, f"{namespace}.{module}")
        return self._with(document)

    def _with_number(self, table: str, key: str, value: float, *, zero: bool) -> Self:
        path = f"{table}.{key}"
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or value < 0 or (value == 0 and not zero):
            raise self._mistake(
                path, f"expected a finite number {'of at least' if zero else 'above'} 0, found {value!r}"
            )
        need_tables(self._document, table)
        return self.with_value(path, float(value))

    def _need_count(self, key: str, value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(
                f"expected a whole number of at least 1, found {value!r}", file=self._document.file, key=key
            )


def _described(value: Any) -> str:
    if isinstance(value, list):
        return "other elements"
    return kind_of(value)


def load_toml(path: str | os.PathLike[str]) -> TrainingToml:
    """Read any TOML, with the edits that every kind of training has."""
    return TrainingToml.from_path(path)


def load_training_toml(path: str | os.PathLike[str], *, kind: str) -> SFTTrainingToml | RLTrainingToml:
    """Read a training TOML of a known kind, ``sft`` or ``rl``."""
    return training_class(kind).from_path(path)


def training_class(kind: str) -> type[SFTTrainingToml] | type[RLTrainingToml]:
    """The class for a kind of training."""
    if kind == "sft":
        return SFTTrainingToml
    if kind == "rl":
        return RLTrainingToml
    raise UserError(f"kind = {kind!r}: expected 'sft' or 'rl'")


def render_training_toml(
    kind: str,
    *,
    template_toml_path: str | os.PathLike[str],
    data: TrainingData | Mapping[str, Any],
    output_toml_path: str | os.PathLike[str],
) -> Path:
    """Write a training TOML that is a template with its data bound.

    Args:
        kind: ``sft`` or ``rl``.
        template_toml_path: The template; it stays as it is.
        data: The data, or a manifest that holds it; its kind must be ``kind``.
        output_toml_path: The file to write, in a folder that is created when missing.

    Returns:
        The path that was written.
    """
    toml = load_training_toml(template_toml_path, kind=kind)
    return toml.bind_data(data).write(output_toml_path)
