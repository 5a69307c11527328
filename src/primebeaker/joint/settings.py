"""The ``rl`` section of a run file: the settings of ``primebeaker rl submit`` under their own names.

Keys, types and defaults are read from :class:`~primebeaker.launch.settings.LaunchSettings`, so that a setting a launch
gains becomes a key by itself.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primebeaker.config.yaml_expansion import Expanded, expand
from primebeaker.config.yaml_loader import YamlDocument
from primebeaker.errors import Mistakes, UserError, UserErrors
from primebeaker.launch.settings import LaunchSettings
from primebeaker.services.fields import Field, Kind, check_typed, parse_text
from primebeaker.services.stack_file import unknown_keys

__all__ = ["SECTION", "locate", "read_settings"]

SECTION = "rl"
#: Other spellings -> the key.
_ALIASES = {
    "cluster": "clusters",
    "env": "environment",
    "secret": "secrets",
    "required_service": "required_services",
}
#: Their text runs in a shell inside the task, whose variables it names.
_NOT_EXPANDED = frozenset({"setup_command"})
#: Null and empty switch these off.
_SWITCHED_OFF = frozenset({"wandb_secret", "hf_secret"})
_SCALARS: Mapping[Any, Kind] = {str: "str", Path: "str", int: "int", float: "float", bool: "bool"}
_FLAG = re.compile(r"^--(?P<flag>[a-z][a-z-]*)(?: (?P<name>[^\s:=]+))?(?P<rest>.*)", re.DOTALL)


def read_settings(document: YamlDocument, environment: Mapping[str, str], mistakes: Mistakes) -> LaunchSettings:
    """The settings of the ``rl`` section.

    Args:
        document: The run file.
        environment: Where variables come from.
        mistakes: Where mistakes go; settings that are wrong keep their defaults.

    Raises:
        UserError: The section is no mapping.
    """
    return _Reader(document, environment, mistakes).read()


def locate(document: YamlDocument, error: UserError) -> list[UserError]:
    """The same mistakes about the file's keys, where they speak of a launch's flags."""
    if isinstance(error, UserErrors):
        return [located for part in error.errors for located in locate(document, part)]
    found = _FLAG.match(str(error))
    if found is None or error.file is not None:
        return [error]
    field = found["flag"].replace("-", "_")
    key = _ALIASES.get(field, field)
    values = document.mapping([SECTION])
    written = next((name for name in (key, *(a for a, k in _ALIASES.items() if k == key)) if name in values), None)
    if key not in {one.name for one in dataclasses.fields(LaunchSettings)}:
        return [error]
    if written is None:
        return [UserError(f"{SECTION}.{key}{_joined(found['name'], found['rest'])}", file=document.file)]
    path: list[str | int] = [SECTION, written]
    rest = found["rest"].strip()
    if found["name"] and isinstance(values[written], dict) and found["name"] in values[written]:
        path.append(found["name"])
    elif found["name"]:
        rest = f"{found['name']}{found['rest']}"
    return [document.error(path, rest.lstrip(":= ") or str(error))]


def _joined(name: str | None, rest: str) -> str:
    return f" {name}{rest}" if name else rest


class _Reader:
    def __init__(self, document: YamlDocument, environment: Mapping[str, str], mistakes: Mistakes) -> None:
        self.document = document
        self.environment = environment
        self.mistakes = mistakes

    def read(self) -> LaunchSettings:
        hints = typing.get_type_hints(LaunchSettings)
        unknown_keys(self.document, (SECTION,), [*hints, *_ALIASES], self.mistakes)
        values = self._named()
        settings: dict[str, Any] = {}
        for key, (written, value) in values.items():
            with self.mistakes.collect():
                converted = self._converted(key, written, value, hints[key])
                if converted is not None:
                    settings[key] = converted
        if "toml" not in values:
            self.mistakes.add(UserError("required", file=self.document.file, key=f"{SECTION}.toml"))
        settings.setdefault("toml", Path())
        return LaunchSettings(**settings)

    def _named(self) -> dict[str, tuple[str, Any]]:
        """Key -> how it is written in the file and its value."""
        found: dict[str, tuple[str, Any]] = {}
        known = {field.name for field in dataclasses.fields(LaunchSettings)}
        for written, value in self.document.mapping([SECTION]).items():
            key = _ALIASES.get(written, written)
            if key in found:
                names = f"{key}, {next(alias for alias, name in _ALIASES.items() if name == key)}"
                line = self.document.position([SECTION, written]).line
                self.mistakes.add(
                    UserError(f"give only one of {names}", file=self.document.file, line=line, key=SECTION)
                )
            elif key in known:
                found[key] = (written, value)
        return found

    def _converted(self, key: str, written: str, value: Any, hint: Any) -> Any:
        path: list[str | int] = [SECTION, written]
        if key == "clusters":
            return self._words(path, value)
        if key in ("environment", "secrets"):
            return self._pairs(path, value, plain=key == "environment")
        if key == "required_services":
            return self._counts(path, value)
        if key in _SWITCHED_OFF and value in (None, ""):
            return ""
        members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kind: Kind = next((_SCALARS[member] for member in members if member in _SCALARS), "str")
        converted = self._scalar(path, Field(key, kind, type(None) in members, None), value)
        if key in _SWITCHED_OFF and converted is None:
            return ""
        return self._path(path, key, converted) if Path in members and converted is not None else converted

    def _path(self, path: list[str | int], key: str, text: str) -> Path:
        if key != "toml":
            return Path.cwd() / Path(text).expanduser()
        resolved = (Path(self.document.file).parent / Path(text).expanduser()).resolve()
        if not resolved.is_file():
            problem = "is no file" if resolved.exists() else "no such file"
            raise self.document.error(path, f"{problem}: {resolved}")
        return resolved

    def _scalar(self, path: list[str | int], field: Field, value: Any) -> Any:
        expanded = self._expanded(path, value) if field.name not in _NOT_EXPANDED else None
        shown = ", ".join(expanded.references) if expanded else ""
        try:
            if field.name in _NOT_EXPANDED and isinstance(value, str):
                return value or None
            if expanded is not None and expanded.whole:
                return parse_text(field, expanded.text, shown)
            return check_typed(field, expanded.text if expanded is not None else value)
        except UserError as error:
            # What came from the environment is not shown, its reference is.
            raise self.document.error(
                path, f"{shown}: expected {field.expected}" if shown else error.message
            ) from error

    def _expanded(self, path: list[str | int], value: Any) -> Expanded | None:
        if not isinstance(value, str):
            return None
        try:
            return expand(value, self.environment)
        except UserError as error:
            raise self.document.error(path, error.message, hint=error.hint) from error

    def _text(self, path: list[str | int], value: str) -> str:
        expanded = self._expanded(path, value)
        return expanded.text if expanded is not None else value

    def _words(self, path: list[str | int], value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            words = [word.strip() for word in self._text(path, value).split(",")]
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            words = [self._text([*path, index], item).strip() for index, item in enumerate(value)]
        else:
            raise self.document.error(path, "expected a string or a list of strings")
        if not words or not all(words):
            raise self.document.error(path, "expected at least one value, and no empty one")
        return tuple(words)

    def _items(self, path: list[str | int], value: Any, form: str) -> list[tuple[list[str | int], str, Any]]:
        """The place, name and value of each item of a mapping, or of a list of ``NAME=VALUE`` strings."""
        if isinstance(value, dict):
            return [([*path, name], name, item) for name, item in value.items()]
        if not isinstance(value, list):
            raise self.document.error(path, f"expected a mapping or a list of {form} strings")
        items: list[tuple[list[str | int], str, Any]] = []
        for index, item in enumerate(value):
            place = [*path, index]
            if not isinstance(item, str) or "=" not in item:
                raise self.document.error(place, f"expected {form}")
            # Service names may hold an equals sign, values of variables too.
            name, _, text = item.rpartition("=") if form.endswith("N") else item.partition("=")
            items.append((place, name, text))
        return items

    def _pairs(self, path: list[str | int], value: Any, *, plain: bool) -> tuple[tuple[str, str], ...]:
        pairs: list[tuple[str, str]] = []
        for place, name, item in self._items(path, value, "NAME=VALUE"):
            with self.mistakes.collect():
                if isinstance(item, str):
                    pairs.append((name, self._text(place, item)))
                elif plain and isinstance(item, bool | int | float):
                    # Numbers and booleans reach the task as they are written.
                    pairs.append((name, self.document.text(place) or str(item)))
                else:
                    wanted = "a string, a number or a boolean" if plain else "the name of a Beaker secret"
                    raise self.document.error(place, f"expected {wanted}")
        return tuple(pairs)

    def _counts(self, path: list[str | int], value: Any) -> tuple[tuple[str, int], ...]:
        counts: list[tuple[str, int]] = []
        field = Field("count", "int", False, None)
        for place, name, item in self._items(path, value, "NAME=N"):
            with self.mistakes.collect():
                from_list = isinstance(value, list)
                count = parse_text(field, item, name) if from_list else self._scalar(place, field, item)
                if not name.strip():
                    raise self.document.error(place, "expected a service name")
                if count < 1:
                    raise self.document.error(place, "expected a whole number of at least 1")
                counts.append((name, count))
        return tuple(counts)
