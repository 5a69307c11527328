"""Help as plain text, for pipes: no library that draws boxes is loaded, so ``--help | grep`` is quick.

On a terminal cyclopts draws the same facts in panels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from cyclopts import App, Group
from cyclopts.command_spec import CommandSpec

__all__ = ["plain_help"]

_WIDTH = 100
_TYPES: dict[object, str] = {str: "TEXT", int: "INT", float: "NUMBER", Path: "PATH", bool: ""}


def plain_help(command: App, chain: Sequence[str]) -> str:
    """The help text of one command or group.

    Args:
        command: The command or group asked about.
        chain: Its name, word by word, without the program's.
    """
    place = " ".join(["primebeaker", *chain])
    if command.default_command is None:
        names = [name for name in command if not name.startswith("-")]
        rows = [(name, _unimported_sentence(command, name) or _sentence(command[name])) for name in names]
        parts = [f"Usage: {place} COMMAND", _paragraphs(command.help), _section("Commands", rows)]
        parts.append(f"'{place} COMMAND --help' tells more.")
    else:
        words, panels = _parameters(command)
        usage = " ".join([f"Usage: {place}", *[name for name, _ in words], *(["[FLAGS]"] if panels else [])])
        parts = [usage, _paragraphs(command.help), _section("Words", words)]
        # The flags every command has come last.
        parts += [_section(title, rows) for title, rows in sorted(panels.items(), key=lambda item: item[0] == "Output")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _unimported_sentence(command: App, name: str) -> str | None:
    """The sentence a command was registered with by its module's name, which stays unimported."""
    registered = command._commands.get(name)
    return registered.help if isinstance(registered, CommandSpec) else None


def _parameters(command: App) -> tuple[list[tuple[str, str]], dict[str, list[tuple[str, str]]]]:
    words: list[tuple[str, str]] = []
    panels: dict[str, list[tuple[str, str]]] = {}
    for argument in command.assemble_argument_collection():
        parameter = argument.parameter
        if argument.children or parameter.parse is False or not argument.show:
            continue
        flags = [name for name in argument.names if name.startswith("--") and name not in argument.negatives]
        explanation = " ".join((parameter.help or "").split())
        default = parameter.show_default(None) if callable(parameter.show_default) else None
        if default:
            explanation += f" [default: {default}]"
        if not flags:
            words.append((argument.names[0], explanation))
            continue
        metavar = _type_name(argument.hint)
        head = " ".join(part for part in (", ".join(flags), metavar) if part)
        if argument.negatives:
            head += f" / {argument.negatives[0]}"
        panel = next((group.name for group in _groups(parameter.group)), "Flags")
        panels.setdefault(panel, []).append((head, explanation))
    return words, panels


def _groups(group: Any) -> list[Group]:
    return [member for member in (group if isinstance(group, tuple) else (group,)) if isinstance(member, Group)]


def _type_name(hint: Any) -> str:
    """``INT``, ``TEXT...`` and the like for the type of a field, null aside."""
    members = [member for member in get_args(hint) if member is not type(None)]
    if get_origin(hint) in (tuple, list):
        return f"{_type_name(members[0]) if members else 'TEXT'}..."
    if members and get_origin(hint) is not None:
        return _type_name(members[0])
    return _TYPES.get(members[0] if members else hint, "TEXT")


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    indent = min(max(len(head) for head, _ in rows) + 4, 34)
    lines = [f"{title}:"]
    for head, explanation in rows:
        first = f"  {head}".ljust(indent)
        if len(first) > indent or (first.rstrip() and not first.endswith(" ") and explanation):
            lines.append(first.rstrip())
            first = " " * indent
        wrapped = textwrap.wrap(
            explanation, _WIDTH, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False
        )
        lines += wrapped or [first.rstrip()]
    return "\n".join(lines)


def _paragraphs(text: str | None) -> str:
    parts = [" ".join(part.split()) for part in (text or "").strip().split("\n\n")]
    # What follows "Args:" in a docstring is told by the flags themselves.
    kept = [part for part in parts if part and not part.startswith(("Args:", "Returns:", "Raises:"))]
    return "\n\n".join(textwrap.fill(part, _WIDTH) for part in kept)


def _sentence(command: App) -> str:
    return _paragraphs(command.help).split("\n\n")[0].replace("\n", " ")
