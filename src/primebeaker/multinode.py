"""``python3 -m primebeaker.multinode``: what Beaker starts on every replica of a task.

Imports nothing heavy before a role's first action.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from primebeaker.errors import UserError, did_you_mean
from primebeaker.roles import arguments
from primebeaker.roles.arguments import Flag

__all__ = ["main"]

_KINDS = ("rl", "sft")


def _validation(text: str) -> str:
    if text not in ("auto", "required", "never"):
        raise ValueError("auto, required or never")
    return text


_PREPARE: dict[str, Flag] = {
    "config": Flag("the training TOML", Path, required=True),
    "config-dir": Flag("where the sub-configs go", Path, required=True),
    "runtime-dir": Flag("where runtime.json goes; its start.json, if any, names the replicas", Path, required=True),
    "outcome": Flag("write notices and planned moves there, as JSON", Path),
    "validation": Flag("whether Prime-RL itself must validate: auto, required, never", _validation, "auto"),
}
_PREPARE_SFT: dict[str, Flag] = {
    "config": _PREPARE["config"],
    "output": Flag("the sub-config to write", Path),
    "config-dir": Flag("instead of --output: its directory", Path),
    **{name: _PREPARE[name] for name in ("runtime-dir", "outcome", "validation")},
}
COMMANDS: dict[str, dict[str, Flag]] = {
    "role rl|sft": {},
    "single-node-rl": {"config": Flag("the TOML for rl", Path, required=True)},
    "prepare-rl": _PREPARE,
    "prepare-sft": _PREPARE_SFT,
    "stop-services": {},
    "status": {"rendezvous-dir": Flag("RENDEZVOUS_DIR of the launch", Path, required=True)},
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    return arguments.run(lambda: _run(given))


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(arguments.usage("python3 -m primebeaker.multinode", COMMANDS))
        return 0
    command, rest = words[0], words[1:]
    if command == "role":
        return _role(rest)
    if command not in COMMANDS:
        names = ["role", *list(COMMANDS)[1:]]
        raise UserError(
            f"unknown command {command!r}", hint=did_you_mean(command, names) or f"expected {', '.join(names)}"
        )
    values = arguments.parse(rest, COMMANDS[command])
    if command == "single-node-rl":
        from primebeaker.roles.run import run_single

        return run_single(Path.cwd() / cast(Path, values["config"]))
    if command == "stop-services":
        from primebeaker.roles.managed import stop_services_of

        return stop_services_of(os.environ)
    if command == "status":
        from primebeaker.roles.status import print_status

        return print_status(cast(Path, values["rendezvous-dir"]))
    return _prepare(command.removeprefix("prepare-"), values)


def _role(words: Sequence[str]) -> int:
    kinds = [word for word in words if not word.startswith("-")]
    rest = [word for word in words if word.startswith("-")]
    values = arguments.parse(rest, {"kind": Flag("rl or sft")})
    named = [*kinds, *([str(values["kind"])] if values["kind"] is not None else [])]
    if len(named) != 1 or named[0] not in _KINDS:
        raise UserError(f"role {' '.join(named)}".rstrip() + ": expected rl or sft")
    from primebeaker.roles.run import run_role

    return run_role(cast('Literal["rl", "sft"]', named[0]))


def _prepare(kind: str, values: Mapping[str, Any]) -> int:
    from primebeaker.roles.prepare_command import prepare

    directory, name = values["config-dir"], None
    if kind == "sft" and (values["output"] is None) == (directory is None):
        raise UserError("prepare-sft needs either --output or --config-dir")
    if kind == "sft" and values["output"] is not None:
        directory, name = values["output"].absolute().parent, values["output"].name
    return prepare(
        kind,
        config=values["config"],
        config_dir=directory,
        name=name,
        runtime_dir=values["runtime-dir"],
        outcome=values["outcome"],
        validation=values["validation"],
        env=os.environ,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait for a hanging file system or a slow answer must not hold up the exit.
    os._exit(code)
