"""The YAML form of a stack: ``primebeaker.services/v1``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from primebeaker.config.yaml_expansion import Expanded, expand
from primebeaker.config.yaml_loader import YamlDocument, load_yaml
from primebeaker.errors import Mistakes, UserError, nearest
from primebeaker.services.fields import ALIAS, Field, check_typed, parse_text, stack_fields
from primebeaker.services.stack_config import Given
from primebeaker.services.stacks import NativeStack, load_native

__all__ = ["SERVICES_SCHEMA", "check_header", "override", "read_fields", "read_stack_file", "unknown_keys"]

SERVICES_SCHEMA = "primebeaker.services/v1"
_READERS = {
    SERVICES_SCHEMA: "primebeaker services yaml",
    "primebeaker.run/v1": "primebeaker run",
}


def read_stack_file(
    path: str | os.PathLike[str], native: NativeStack, environment: Mapping[str, str] | None = None
) -> dict[str, Given]:
    """The fields a file gives, checked for their types, variables put in.

    Args:
        path: The YAML file.
        native: Whose fields it may hold.
        environment: Where variables come from; by default this process's.

    Raises:
        UserError: All mistakes of the file, each with its line.
    """
    document = load_yaml(path, what="services YAML")
    mistakes = Mistakes()
    check_header(document, SERVICES_SCHEMA, required=("services",), optional=(), mistakes=mistakes)
    given: dict[str, Given] = {}
    with mistakes.collect():
        given = read_fields(document, "services", native, os.environ if environment is None else environment, mistakes)
    mistakes.raise_if_any()
    return given


def check_header(
    document: YamlDocument, schema: str, *, required: Collection[str], optional: Collection[str], mistakes: Mistakes
) -> None:
    """Check the top level: the schema, the sections that must and may be there, nothing else.

    Raises:
        UserError: The document is no mapping or of another schema, so that looking further makes no sense.
    """
    top = document.mapping()
    if "schema" not in top:
        raise UserError(f"required, expected {schema!r}", file=document.file, key="schema")
    if top["schema"] != schema:
        found = top["schema"]
        reader = _READERS.get(found) if isinstance(found, str) else None
        hint = f"`{reader} …` reads {found}" if reader else None
        raise document.error(["schema"], f"expected {schema!r}, found {found!r}", hint=hint)
    for section in required:
        if section not in top:
            mistakes.add(UserError("required", file=document.file, key=section))
    unknown_keys(document, (), ["schema", *required, *optional], mistakes)


def unknown_keys(
    document: YamlDocument,
    path: tuple[str, ...],
    known: Collection[str],
    mistakes: Mistakes,
    *,
    what: str = "unknown key",
    more: Mapping[str, str] | None = None,
) -> None:
    """Report every key at ``path`` that is not known, with the nearest known one.

    Args:
        document: The document.
        path: Where the mapping is.
        known: The keys it may have.
        mistakes: Where mistakes go.
        what: The message.
        more: What to say instead about particular keys.
    """
    for key in document.mapping(path):
        if key in known:
            continue
        close = nearest(key, known, most=1)
        hint = (more or {}).get(key) or (f"did you mean {close[0]}?" if close else None)
        mistakes.add(document.error([*path, key], what, hint=hint))


def read_fields(
    document: YamlDocument,
    section: str,
    native: NativeStack,
    environment: Mapping[str, str],
    mistakes: Mistakes,
) -> dict[str, Given]:
    """The fields of a stack in one section of a document.

    Args:
        document: The document.
        section: The top-level key with the fields.
        native: Whose fields they are.
        environment: Where variables come from.
        mistakes: Where mistakes go.

    Raises:
        UserError: The section is missing or no mapping.
    """
    if section not in document.mapping():
        return {}
    fields = stack_fields(native.config_class)
    known = [*fields, *([ALIAS] if "service_clusters" in fields else [])]
    values = document.mapping([section])
    if not set(values) <= set(known):
        more = _other_stack_hints(native)
        unknown_keys(document, (section,), known, mistakes, what="unknown field", more=more)
    given = {}
    for name, value in values.items():
        if name in known:
            field = fields["service_clusters" if name == ALIAS else name]
            with mistakes.collect():
                converted = _value(document, [section, name], field, value, environment)
                line = document.position([section, name]).line
                given[name] = Given(converted, f"{section}.{name}", str(document.file), line)
    return given


def override(given: Mapping[str, Given], flags: Mapping[str, Given]) -> dict[str, Given]:
    """The fields of a file with those given as flags put over them."""
    clusters = {"service_clusters", ALIAS}
    dropped = clusters if clusters & set(flags) else set()
    return {**{name: one for name, one in given.items() if name not in dropped}, **flags}


def _other_stack_hints(native: NativeStack) -> dict[str, str]:
    other = native.stack.other
    try:
        fields = stack_fields(load_native(other).config_class)
    except UserError:
        return {}
    return dict.fromkeys(fields, f"it is a field of the {other.name} stack, which `{other.command} yaml …` reads")


def _value(
    document: YamlDocument, path: list[str | int], field: Field, value: Any, environment: Mapping[str, str]
) -> Any:
    if isinstance(value, str):
        expanded = _expanded(document, path, value, environment)
        shown = ", ".join(expanded.references)
        try:
            if expanded.whole:
                return parse_text(field, expanded.text, shown)
            return check_typed(field, expanded.text)
        except UserError as error:
            # What came from the environment is not shown, its reference is.
            message = f"{shown}: expected {field.expected}" if shown else error.message
            raise document.error(path, message) from error
    if isinstance(value, list):
        value = [
            _expanded(document, [*path, index], item, environment).text if isinstance(item, str) else item
            for index, item in enumerate(value)
        ]
    try:
        return check_typed(field, value)
    except UserError as error:
        raise document.error(path, error.message) from error


def _expanded(document: YamlDocument, path: list[str | int], value: str, environment: Mapping[str, str]) -> Expanded:
    try:
        return expand(value, environment)
    except UserError as error:
        raise document.error(path, error.message, hint=error.hint) from error
