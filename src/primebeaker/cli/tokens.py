"""The strict pass over a command line, before cyclopts binds it.

It knows the flags of the command at hand and turns what the user typed into clean ``--flag=value`` words: both
spellings, both forms, every mistake of the line at once.  cyclopts alone would stop at the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from cyclopts import App

from primebeaker.cli.flags import WITHOUT_VALUE
from primebeaker.errors import Mistakes, UserError, did_you_mean

__all__ = ["FlagShape", "clean", "command_flags"]


#: What may stand behind the ``=`` of a switch.
_SWITCH_WORDS = frozenset({"true", "false", "1", "0", "yes", "no", "y", "n", "t", "f"})


@dataclass(frozen=True)
class FlagShape:
    """What the pass needs to know about one flag."""

    name: str
    switch: bool
    negative: bool
    many: bool
    #: What the flag stands for without a value; None when it needs one.
    without_value: str | None = None


def command_flags(app: App) -> tuple[dict[str, FlagShape], int]:
    """The flags of one command, by each of their spellings, and how many positional words it takes (-1: any)."""
    flags: dict[str, FlagShape] = {}
    positional = 0
    for argument in app.assemble_argument_collection():
        if argument.parameter.parse is False:
            continue
        switch = bool in (argument.hint, *get_args(argument.hint))
        many = argument.token_count()[1]
        dashed = [name for name in argument.names if name.startswith("--")]
        if not dashed:
            if argument.index is not None:
                positional = -1 if many or positional < 0 else positional + 1
            continue
        negatives = set(argument.negatives)
        without_value = getattr(argument.parameter.converter, WITHOUT_VALUE, None)
        for name in dashed:
            flags[name] = FlagShape(dashed[0], switch, name in negatives, many, without_value)
    return flags, positional


def clean(
    words: Sequence[str],
    flags: Mapping[str, FlagShape],
    positional: int,
    mistakes: Mistakes,
    unknown_flag: Callable[[str], UserError] | None = None,
) -> list[str]:
    """The words as ``--flag=value`` for cyclopts; every mistake is added to ``mistakes``.

    Args:
        words: What the user typed after the command's name.
        flags: The command's flags by each of their spellings.
        positional: How many positional words the command takes (-1: any).
        mistakes: Where mistakes go.
        unknown_flag: Makes the mistake of an unknown flag, by its name, for a command that can say more about it.
    """
    cleaned: list[str] = []
    seen: dict[str, str] = {}
    free: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            free.append(word)
            continue
        typed, given, value = word.partition("=")
        name = "--" + typed[2:].replace("_", "-")
        shape = flags.get(name)
        if shape is None:
            mistakes.add(
                unknown_flag(name)
                if unknown_flag
                else UserError(f"unknown flag {typed}", hint=did_you_mean(name, flags))
            )
            # Its value, if any, is part of the same mistake.
            if not given and index < len(words) and not words[index].startswith("--"):
                index += 1
            continue
        if shape.switch and not given:
            value = "false" if shape.negative else "true"
        elif shape.switch and shape.negative:
            mistakes.add(UserError(f"{typed} takes no value", hint=f"write {shape.name}={value}"))
            continue
        elif shape.switch and value.lower() not in _SWITCH_WORDS:
            mistakes.add(UserError(f"{shape.name} = {value!r}: expected true or false"))
            continue
        elif not given and shape.without_value is not None:
            value = shape.without_value
        elif not given:
            if index == len(words) or words[index].startswith("--"):
                mistakes.add(
                    UserError(f"{typed} needs a value", hint=f"a value that starts with '-' is written {typed}=VALUE")
                )
                continue
            value = words[index]
            index += 1
        if not shape.many:
            if shape.name in seen:
                if seen[shape.name] != value:
                    mistakes.add(
                        UserError(
                            f"{shape.name} is given twice, as {seen[shape.name]!r} and {value!r}", hint="give it once"
                        )
                    )
                continue
            seen[shape.name] = value
        cleaned.append(f"{shape.name}={value}")
    if positional >= 0 and len(free) > positional:
        for word in free[positional:]:
            near = did_you_mean(f"--{word}", flags, cutoff=0.8)
            mistakes.add(UserError(f"unexpected word {word!r}", hint=near or "flags start with --"))
        free = free[:positional]
    return [*free, *cleaned]
