"""``python -m primebeaker.environments [NAME] [--json] [--canonical]``: the names, modules and arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from primebeaker.bundled import ALIASES, CANONICAL, ENVIRONMENT_NAMESPACE
from primebeaker.environments.registry import UnknownEnvironment, canonical_name, environment_names, module_name
from primebeaker.errors import did_you_mean

__all__ = ["main"]

_OPTIONS = ("--canonical", "--json", "--help")
_USAGE = "usage: python -m primebeaker.environments [NAME] [--json] | [--canonical]"


def main(words: Sequence[str]) -> int:
    """Run one command line; 0 done, 2 a mistake, told in one line on stderr."""
    try:
        sys.stdout.write(_answer(words))
    except _Mistake as mistake:
        sys.stderr.write(f"primebeaker.environments: error: {' '.join(str(mistake).splitlines())}\n")
        return 2
    return 0


class _Mistake(Exception):
    pass


def _answer(words: Sequence[str]) -> str:
    options = [word for word in words if word.startswith("-")]
    names = [word for word in words if not word.startswith("-")]
    for option in options:
        if option not in _OPTIONS:
            raise _Mistake(f"unknown option {option!r}; {did_you_mean(option, _OPTIONS) or _USAGE}")
    if "--help" in options:
        return f"{_USAGE}\n"
    if len(names) > 1:
        raise _Mistake(f"unexpected word {names[1]!r} after {names[0]!r}; {_USAGE}")
    if "--canonical" in options:
        if names or "--json" in options:
            raise _Mistake(f"--canonical lists names and takes nothing else; {_USAGE}")
        return _lines(sorted(CANONICAL))
    if not names:
        if "--json" in options:
            return _json([_identity(name) for name in sorted(CANONICAL)])
        return _lines(environment_names())
    try:
        module = module_name(names[0])
    except UnknownEnvironment as error:
        raise _Mistake(str(error)) from None
    if "--json" in options:
        return _json(_described(canonical_name(names[0]), module))
    return f"{ENVIRONMENT_NAMESPACE}.{module}:load_environment\n"


def _identity(name: str, module: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "aliases": [alias for alias, canonical in ALIASES.items() if canonical == name],
        "module": f"{ENVIRONMENT_NAMESPACE}.{module or CANONICAL[name]}",
        "factory": "load_environment",
    }


def _described(name: str, module: str) -> dict[str, Any]:
    from primebeaker.environments.registry import environment_spec

    spec = environment_spec(module)
    return {
        **_identity(name, module),
        "tools": [dict(tool) for tool in spec.tools],
        "arguments": [
            {
                "name": argument.name,
                "type": argument.kind.label,
                "default": None if argument.required else _plain(argument.default),
                "required": argument.required,
                "description": argument.description,
            }
            for argument in spec.arguments
        ],
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _lines(names: Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
