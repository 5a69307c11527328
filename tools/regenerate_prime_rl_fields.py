"""Write one Prime-RL generation of the field catalogue anew from an installed Prime-RL config package.

Run it with the Python of an environment that holds ``prime-rl-configs`` (and the Verifiers and renderers releases of
that time) in the version wanted; PrimeBeaker itself need not be installed there::

    python tools/regenerate_prime_rl_fields.py --generation=0.7 --tag=v0.7.1.dev83 --commit=2ffe374e… --date=2026-08-01

What the package cannot tell stays as it is in the file: the notes, the subtrees that other packages fill, the fields
that only some images carry, and the map of renamed keys.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import pathlib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AliasChoices, BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

FILE = pathlib.Path(__file__).parent.parent / "src/primebeaker/config/data/prime_rl_fields.json"
ROOTS = {
    "rl": "prime_rl.configs.rl:RLConfig",
    "sft": "prime_rl.configs.sft:SFTConfig",
    "inference": "prime_rl.configs.inference:InferenceConfig",
}
BOUNDS = ((Ge, "min", "ge"), (Gt, "gt", "gt"), (Le, "max", "le"), (Lt, "lt", "lt"))
LENGTHS = ((MinLen, "min_len", "min_length"), (MaxLen, "max_len", "max_length"))
SCALARS = ((bool, "boolean"), (int, "integer"), (float, "float"), (str, "string"), (pathlib.PurePath, "string"))

Fact = dict[str, Any]


class Shape:
    """What an annotation says: its TOML types, its literals, its bounds, the models inside it."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.enum: set[Any] = set()
        self.facts: Fact = {}
        self.models: list[type[BaseModel]] = []
        self.items: Shape | None = None
        self.values: Shape | None = None

    def read(self, annotation: Any) -> Shape:
        """Add what ``annotation`` says."""
        if isinstance(annotation, typing.TypeAliasType):
            return self.read(annotation.__value__)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            self.read(arguments[0])
            self.note(annotation, arguments[1:])
        elif origin in (typing.Union, types.UnionType):
            for part in arguments:
                self.read(part)
        elif origin is typing.Literal:
            self.enum.update(arguments)
            for value in arguments:
                self.read(type(value))
        elif origin in (list, tuple, set, frozenset) or annotation in (list, tuple, set):
            self.types.add("array")
            if arguments:
                self.items = (self.items or Shape()).read(arguments[0])
        elif origin in (dict, Mapping) or annotation is dict:
            self.types.add("table")
            if len(arguments) == 2:
                self.values = (self.values or Shape()).read(arguments[1])
        else:
            self._class(annotation)
        return self

    def _class(self, annotation: Any) -> None:
        if annotation in (None, type(None)):
            self.types.add("null")
        elif annotation is Any or not isinstance(annotation, type):
            self.types.add("any")
        elif issubclass(annotation, BaseModel):
            self.types.add("table")
            self.models.append(annotation)
        elif issubclass(annotation, enum.Enum):
            self.enum.update(member.value for member in annotation)
            for member in annotation:
                self._class(type(member.value))
        else:
            self.types.add(next((name for kind, name in SCALARS if issubclass(annotation, kind)), "any"))

    def note(self, annotation: Any, metadata: typing.Iterable[Any]) -> None:
        """Add what the metadata of ``annotation`` says: bounds, and booleans that a validator turns into a table."""
        for entry in metadata:
            if isinstance(entry, FieldInfo):
                self.note(annotation, entry.metadata)
            for kind, fact, attribute in (*BOUNDS, *LENGTHS):
                if isinstance(entry, kind):
                    self.facts[fact] = getattr(entry, attribute)
            if isinstance(entry, BeforeValidator) and self.models and "boolean" not in self.types:
                try:
                    TypeAdapter(typing.Annotated[annotation, entry]).validate_python(True)
                except (ValidationError, ValueError, TypeError):
                    continue
                self.types.add("boolean")


def tag_of(models: list[type[BaseModel]]) -> str | None:
    """The field that tells the models of a union apart: the first that is a literal in all, each with its own."""
    if len(models) < 2:
        return None
    for name in models[0].model_fields:
        if all(name in model.model_fields for model in models):
            literals = [typing.get_args(model.model_fields[name].annotation) for model in models]
            origins = [typing.get_origin(model.model_fields[name].annotation) for model in models]
            if all(origin is typing.Literal for origin in origins) and len(set(literals)) == len(models):
                return name
    return None


class Walk:
    """Collects the fields of one root."""

    def __init__(self) -> None:
        self.fields: dict[str, Fact] = {}
        self.open_tables: set[str] = set()

    def models(self, prefix: str, models: list[type[BaseModel]], default: Any, above: tuple[type, ...] = ()) -> None:
        """Enter the fields of a table that one of ``models`` describes; ``default`` is what it is when left out."""
        tag = tag_of(models)
        merged: dict[str, list[tuple[str | None, FieldInfo]]] = {}
        for model in models:
            if model in above:
                continue
            if model.model_config.get("extra") == "allow":
                self.open_tables.add(prefix)
            values = typing.get_args(model.model_fields[tag].annotation) if tag else (None,)
            for name, info in model.model_fields.items():
                for value in values:
                    merged.setdefault(name, []).append((None if tag is None else f"{tag}={value}", info))
        total = len({condition for known in merged.values() for condition, _ in known})
        for name, known in merged.items():
            self._field(prefix, name, known, tag, total, default, (*above, *models))

    def _field(
        self,
        prefix: str,
        name: str,
        known: list[tuple[str | None, FieldInfo]],
        tag: str | None,
        total: int,
        parent_default: Any,
        above: tuple[type, ...],
    ) -> None:
        names = [*_names(name, known[0][1])]
        path = f"{prefix}.{names[0]}" if prefix else names[0]
        shape = Shape()
        for _, info in known:
            shape.read(info.annotation)
            shape.note(info.annotation, info.metadata)
        entry: Fact = {"type": "|".join(sorted(shape.types))}
        if shape.enum:
            entry["enum"] = sorted(shape.enum, key=str)
        entry |= shape.facts
        if shape.items is not None:
            if shape.items.types:
                entry["items"] = "|".join(sorted(shape.items.types))
            if shape.items.enum:
                entry["items_enum"] = sorted(shape.items.enum, key=str)
        conditions = [condition for condition, _ in known if condition is not None]
        self._defaults(entry, known, name, tag, parent_default)
        if tag is not None and name != tag and len(conditions) < total:
            entry["variants"] = sorted(conditions)
        required = [condition for condition, info in known if info.is_required()]
        if required:
            named = [condition for condition in required if condition is not None]
            entry["required"] = sorted(named) if named and len(named) < total else True
        if len(names) > 1:
            entry["aliases"] = names[1:]
        self.fields[path] = entry
        default = next(
            (info.get_default(call_default_factory=True) for _, info in known if not info.is_required()), None
        )
        if shape.models:
            self.models(path, list(dict.fromkeys(shape.models)), default, above)
        if shape.items is not None and shape.items.models:
            self.models(f"{path}[]", list(dict.fromkeys(shape.items.models)), None, above)
        if shape.values is not None and shape.values.models:
            self.models(f"{path}.*", list(dict.fromkeys(shape.values.models)), None, above)

    def _defaults(
        self, entry: Fact, known: list[tuple[str | None, FieldInfo]], name: str, tag: str | None, parent: Any
    ) -> None:
        """Enter the default; of a tag it is that of the table Prime-RL uses when the table is left out."""
        # What a factory makes may depend on the machine (Prime-RL's log levels read its environment).
        defaults = [
            (condition, _plain(info.default))
            for condition, info in known
            if not info.is_required() and info.default_factory is None
        ]
        defaults = [(condition, value) for condition, value in defaults if value is not PydanticUndefined]
        if not defaults:
            return
        value = defaults[0][1]
        if name == tag and isinstance(parent, BaseModel) and hasattr(parent, name):
            value = _plain(getattr(parent, name))
        entry["default"] = value
        others = {condition: other for condition, other in defaults if other != value}
        if name != tag and others:
            entry["defaults_by_variant"] = others


def _names(name: str, info: FieldInfo) -> Iterator[str]:
    yield name
    choices = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else [info.alias]
    for choice in choices:
        if isinstance(choice, str) and choice != name:
            yield choice


def _plain(value: Any) -> Any:
    """A default as JSON; tables and what JSON cannot hold are left out."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, bool | int | float | str) for item in value):
        return list(value)
    return PydanticUndefined


def protected_env_vars() -> list[str]:
    """The variables that the package refuses in ``env_vars`` tables."""
    shared = importlib.import_module("prime_rl.configs.shared")
    for name in dir(shared):
        value = getattr(shared, name)
        if "PROTECTED" in name.upper() and isinstance(value, set | frozenset | tuple | list):
            return sorted(value)
    raise SystemExit("the config package names no protected environment variables")


def collect(root: str) -> Fact:
    """The facts of one root."""
    module, name = ROOTS[root].split(":")
    model = getattr(importlib.import_module(module), name)
    walk = Walk()
    walk.models("", [model], None)
    for path, entry in walk.fields.items():
        # Prime-RL hands the tables at the top of an RL file down to trainer and orchestrator before it reads tags.
        below = walk.fields.get(f"trainer.{path}", {})
        if path.count(".") == 1 and path.endswith((".type", ".name")) and "enum" in entry and "default" in below:
            entry["default"] = below["default"]
    return {
        "unknown_keys": model.model_config.get("extra") or "ignore",
        "open_tables": sorted(walk.open_tables),
        "fields": dict(sorted(walk.fields.items())),
    }


def written(facts: Fact) -> str:
    """The file's text: one field a line, so that a difference shows the fields that changed."""
    lines = ["{"]
    for key, value in facts.items():
        if key != "generations":
            lines.append(f"{json.dumps(key)}: {json.dumps(value, indent=1)},")
    lines.append('"generations": {')
    blocks = []
    for generation, known in facts["generations"].items():
        block = [f"{json.dumps(generation)}: {{"]
        block += [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in known.items() if key != "roots"]
        roots = []
        for root, of_root in known["roots"].items():
            entries = of_root["fields"].items()
            fields = ",\n".join(f"   {json.dumps(path)}: {json.dumps(entry)}" for path, entry in entries)
            others = {key: value for key, value in of_root.items() if key != "fields"}
            head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in others.items())
            roots.append(f' {json.dumps(root)}: {{\n{head}  "fields": {{\n{fields}\n  }}\n }}')
        block.append(' "roots": {\n' + ",\n".join(roots) + "\n }\n}")
        blocks.append("\n".join(block))
    return "\n".join([*lines, ",\n".join(blocks), "}", "}", ""])


def main() -> None:
    """Read the arguments, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--generation", required=True, help="0.7 or 0.8")
    parser.add_argument("--tag", required=True, help="the Prime-RL tag of the installed package")
    parser.add_argument("--commit", required=True, help="its commit")
    parser.add_argument("--date", required=True, help="the date of the commit")
    parser.add_argument("--file", type=pathlib.Path, default=FILE, help="the catalogue to update")
    arguments = parser.parse_args()
    facts = json.loads(arguments.file.read_text())
    known = facts["generations"][arguments.generation]
    known["prime_rl"] = {"tag": arguments.tag, "commit": arguments.commit, "date": arguments.date}
    known["protected_env_vars"] = protected_env_vars()
    known["roots"] = {root: collect(root) for root in ROOTS}
    arguments.file.write_text(written(facts))


if __name__ == "__main__":
    main()
