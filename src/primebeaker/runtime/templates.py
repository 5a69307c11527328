"""Prompt templates: find them, check them, render them.

A template is a JSON object with ``name``, ``input_variables`` and ``chat_template``, a list of messages.  In a
message, ``{name}`` stands for a value and ``{{`` and ``}}`` for literal braces; nothing else with a brace is allowed,
and a value is never rendered again, so a prompt cannot be broken or read out by what stands in a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError, did_you_mean
from primebeaker.json_keys import RepeatedKey, unique_keys

__all__ = ["load_prompt_template", "render_chat_template", "resolve_resource_path", "template_variables"]

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|[{}]")
_ROLES = ("system", "user", "assistant", "tool")


def resolve_resource_path(path: str | Path) -> Path | Traversable:
    """Find a template file.

    Args:
        path: An absolute path; else it is taken from the working directory when it is there, else from the package's
            ``resources`` folder, which ``..`` cannot leave.

    Raises:
        UserError: It is in neither place; the text names both, and the nearest shipped template.
    """
    given = Path(path).expanduser()
    if given.is_absolute():
        if given.is_file():
            return given
        raise UserError("template not found", file=given)
    local = Path.cwd() / given
    if local.is_file():
        return local
    package = resources.files("primebeaker.resources")
    if ".." not in given.parts:
        shipped = package.joinpath(*given.parts)
        if shipped.is_file():
            return shipped
    raise UserError(
        f"template {str(path)!r}: not found as {local} nor in the package's resources",
        hint=did_you_mean(str(path), _shipped_names(package)),
    )


def _shipped_names(package: Traversable) -> list[str]:
    folder = package / "templates"
    return [f"templates/{entry.name}" for entry in folder.iterdir() if entry.name.endswith(".json")]


def load_prompt_template(path: str | Path) -> dict[str, Any]:
    """Read a template and check its shape and its placeholders.

    Raises:
        UserError: The file is missing or is no template; the text names the file, the message and the position.
    """
    found = resolve_resource_path(path)
    try:
        template = json.loads(found.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    except RepeatedKey as error:
        raise UserError(str(error), file=path, hint="keep one of them") from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=path, line=error.lineno, column=error.colno) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the template: {error}", file=path) from None
    _check_shape(template, path)
    declared = set(template["input_variables"])
    for name in template_variables(template, file=path):
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise UserError(f"placeholder {{{name}}} is not declared; input_variables are: {known}", file=path)
    return dict(template)


def template_variables(template: Mapping[str, Any], *, file: object | None = None) -> list[str]:
    """The names of the placeholders of a template, each once, in order.

    Raises:
        UserError: A brace that is no placeholder and not doubled.
    """
    names: dict[str, None] = {}
    for number, message in enumerate(template["chat_template"], start=1):
        for piece in _pieces(message["content"], number, file):
            if piece["name"]:
                names[piece["name"]] = None
    return list(names)


def render_chat_template(template: Mapping[str, Any], /, **values: Any) -> list[dict[str, str]]:
    """Render a template into messages.

    Args:
        template: What :func:`load_prompt_template` gives.
        **values: The value of every placeholder, inserted as its text and verbatim; extra ones are fine.

    Returns:
        The messages, each with ``role`` and ``content``.

    Raises:
        UserError: Values are missing; the text lists their names.
    """
    missing = sorted(set(template_variables(template)) - set(values))
    if missing:
        raise UserError(f"template {template.get('name', '')!r}: missing values: {', '.join(missing)}")
    return [
        {"role": message["role"], "content": _rendered(message["content"], number, values)}
        for number, message in enumerate(template["chat_template"], start=1)
    ]


def _rendered(content: str, number: int, values: Mapping[str, Any]) -> str:
    parts, position = [], 0
    for piece in _pieces(content, number, None):
        parts.append(content[position : piece.start()])
        parts.append(str(values[piece["name"]]) if piece["name"] else piece[0][0])
        position = piece.end()
    return "".join([*parts, content[position:]])


def _pieces(content: str, number: int, file: object | None) -> Iterator[re.Match[str]]:
    for piece in _PIECE.finditer(content):
        if len(piece[0]) == 1:
            raise UserError(
                f"message {number}, character {piece.start() + 1}: a single {piece[0]!r} that is no placeholder"
                " {name}; write a literal brace twice",
                file=file,
            )
        yield piece


def _check_shape(template: Any, path: object) -> None:
    def expect(fine: bool, what: str) -> None:
        if not fine:
            raise UserError(what, file=path)

    expect(isinstance(template, dict), "expected a JSON object")
    expect(isinstance(template.get("name"), str), "name: expected text")
    expect(isinstance(template.get("description", ""), str), "description: expected text")
    variables = template.get("input_variables")
    expect(
        isinstance(variables, list) and all(isinstance(name, str) for name in variables),
        "input_variables: expected a list of text",
    )
    messages = template.get("chat_template")
    expect(isinstance(messages, list) and bool(messages), "chat_template: expected a list of messages, not empty")
    for number, message in enumerate(messages, start=1):
        fine = isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
        expect(fine, f"chat_template: message {number}: expected an object with a role and text as content")
    tools = template.get("tools", [])
    expect(isinstance(tools, list), "tools: expected a list of tool definitions")
    for number, tool in enumerate(tools, start=1):
        fine = isinstance(tool, dict) and {"name", "description", "parameters"} <= tool.keys()
        expect(fine, f"tools: tool {number}: expected an object with name, description and parameters")
