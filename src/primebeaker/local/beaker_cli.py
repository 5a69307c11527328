"""The ``beaker`` program of an engine's home: the part of the stock client's commands that launchers use.

Started as ``python -m primebeaker.local.beaker_cli HOME WORD…``.  Output and exit codes are the stock client's: JSON
lists with ``--format json``, bare ids with ``--quiet``, 0 or 1.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from primebeaker.errors import PrimeBeakerError, UserError, did_you_mean
from primebeaker.local.engine import LocalEngine
from primebeaker.local.ids import new_id
from primebeaker.local.shapes import account_shape, workspace_shape
from primebeaker.local.specfile import read_spec

__all__ = ["main"]

_DEFAULT_WORKSPACE = "local/default"

_SWITCHES = frozenset({"--quiet", "-q", "--follow", "-f", "--no-timestamps", "--timestamps", "--version", "--all"})
_VALUES = frozenset({"--format", "--name", "-n", "--workspace", "-w", "--experiment", "--limit", "--tail"})
_SHORT = {"-q": "--quiet", "-f": "--follow", "-n": "--name", "-w": "--workspace"}


@dataclass
class _Call:
    """A parsed command line."""

    words: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> bool:
        return self.flags.get("--format") == "json"

    def workspace(self, fallback: str | None = None) -> str:
        value = self.flags.get("--workspace") or fallback
        if value is None:
            raise UserError("--workspace: is required, as owner/name")
        return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. ``arguments`` starts with the engine's home."""
    home, *words = sys.argv[1:] if arguments is None else arguments
    try:
        call = _parse(words)
        if "--version" in call.flags:
            from primebeaker import __version__

            _print(f"beaker (primebeaker local engine {__version__})")
            return 0
        command, rest = _find(call)
        call.words = rest
        engine = LocalEngine(Path(home), warn=_warn)
        command(engine, call)
        sys.stdout.flush()
    except PrimeBeakerError as error:
        sys.stderr.write("".join(f"Error: {line}\n" for line in str(error).splitlines()))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parse(words: Sequence[str]) -> _Call:
    call = _Call()
    pending = list(words)
    while pending:
        word = pending.pop(0)
        name, has_value, value = word.partition("=")
        if word in _SWITCHES:
            call.flags[_SHORT.get(word, word)] = "true"
        elif name in _VALUES:
            if not has_value and not pending:
                raise UserError(f"{name}: expected a value")
            call.flags[_SHORT.get(name, name)] = value if has_value else pending.pop(0)
        elif word.startswith("-") and word != "-":
            raise UserError(
                f"{word}: not supported by the local engine", hint=did_you_mean(word, sorted(_SWITCHES | _VALUES))
            )
        else:
            call.words.append(word)
    chosen = call.flags.get("--format", "text")
    if chosen not in ("json", "text", "table"):
        raise UserError(f"--format = {chosen!r}: expected 'json' or 'text'")
    return call


def _find(call: _Call) -> tuple[Callable[[LocalEngine, _Call], None], list[str]]:
    command = _COMMANDS.get(" ".join(call.words[:2]))
    if command is None:
        shown = " ".join(call.words) or "beaker without a command"
        raise UserError(f"{shown}: not supported by the local engine")
    return command, call.words[2:]


def _whoami(engine: LocalEngine, call: _Call) -> None:
    account = account_shape(engine.account)
    _answer(call, [account], account["name"])


def _create(engine: LocalEngine, call: _Call) -> None:
    file = _one(call, "FILE")
    if file == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=file) from error
    name = call.flags.get("--name") or f"exp-{new_id()[-10:].lower()}"
    created = engine.create_from(read_spec(data, file), file, name=name, workspace=call.workspace(_DEFAULT_WORKSPACE))
    experiment_id = str(created.experiment_id)
    if "--quiet" in call.flags:
        _print(experiment_id)
    else:
        _answer(call, [{"id": experiment_id, "name": f"{engine.account}/{name}"}], created.stdout.rstrip("\n"))


def _get(engine: LocalEngine, call: _Call) -> None:
    _experiments(call, [engine.shape(word) for word in _some(call, "experiment")])


def _stop(engine: LocalEngine, call: _Call) -> None:
    # Every id is looked up first, so that a wrong one stops nothing.
    rows = [engine.find(word) for word in _some(call, "experiment")]
    for row in rows:
        engine.request_stop(row.id)
        _print(row.id)


def _list(engine: LocalEngine, call: _Call) -> None:
    _experiments(call, engine.shapes(workspace=call.flags.get("--workspace"), limit=_limit(call)))


def _workspace_experiments(engine: LocalEngine, call: _Call) -> None:
    _experiments(call, engine.shapes(workspace=_one(call, "WORKSPACE"), limit=_limit(call)))


def _job_get(engine: LocalEngine, call: _Call) -> None:
    _jobs(call, [engine.job_shape(word) for word in _some(call, "job")])


def _job_list(engine: LocalEngine, call: _Call) -> None:
    experiment = call.flags.get("--experiment")
    if experiment is None:
        raise UserError("job list: expected --experiment=ID")
    _jobs(call, engine.shape(experiment)["jobs"])


def _job_logs(engine: LocalEngine, call: _Call) -> None:
    job_id = _one(call, "job")
    engine.job_shape(job_id)
    tail = call.flags.get("--tail")
    for line in engine.logs(
        job_id, follow="--follow" in call.flags, tail=int(tail) if tail and tail.isdigit() else None
    ):
        stamp = "" if "--no-timestamps" in call.flags or line.timestamp is None else f"{line.timestamp.isoformat()} "
        _print(stamp.replace("+00:00", "Z") + line.text)


def _job_stop(engine: LocalEngine, call: _Call) -> None:
    for word in _some(call, "job"):
        engine.request_job_stop(word)
        _print(word)


def _secret_list(engine: LocalEngine, call: _Call) -> None:
    workspace = call.workspace()
    names = engine.secret_list(workspace)
    reference = workspace_shape(workspace)["id"]
    _answer(call, [{"name": name, "workspace": reference} for name in names], "\n".join(names))


def _secret_write(engine: LocalEngine, call: _Call) -> None:
    # As the stock client: the value may follow the name; nothing may be printed of it.
    name, *value = _some(call, "NAME")
    engine.secrets.write(call.workspace(), name, value[0] if value else sys.stdin.read())


def _secret_read(engine: LocalEngine, call: _Call) -> None:
    name = _one(call, "NAME")
    value = engine.secrets.read(call.workspace(), name)
    if value is None:
        hint = did_you_mean(name, engine.secret_list(call.workspace()))
        raise UserError(f"{name}: no such secret in {call.workspace()}", hint=hint)
    if sys.stdout.isatty():
        raise UserError("the value of a secret is not printed on a terminal", hint="read it through a pipe")
    sys.stdout.write(value)


def _secret_delete(engine: LocalEngine, call: _Call) -> None:
    engine.secrets.delete(call.workspace(), _one(call, "NAME"))


def _image_get(engine: LocalEngine, call: _Call) -> None:
    shapes = []
    for reference in _some(call, "image"):
        image = engine.image_get(reference)
        if image is None or image.committed is None:
            raise UserError(f"{reference}: image not found")
        committed = image.committed.isoformat().replace("+00:00", "Z")
        workspace = workspace_shape(call.flags.get("--workspace") or image.workspace or _DEFAULT_WORKSPACE)
        shapes.append({"id": reference, "committed": committed, "workspaceRef": workspace})
    _answer(call, shapes, "\n".join(str(shape["id"]) for shape in shapes))


def _experiments(call: _Call, shapes: Iterable[dict[str, Any]]) -> None:
    found = list(shapes)
    lines = (
        shape["id"] if "--quiet" in call.flags else f"{shape['id']} {shape['name']} {shape['state']}" for shape in found
    )
    _answer(call, found, "\n".join(lines))


def _jobs(call: _Call, shapes: Iterable[dict[str, Any]]) -> None:
    found = list(shapes)
    lines = (
        shape["id"] if "--quiet" in call.flags else f"{shape['id']} {shape['name']} {shape['execution']['replicaRank']}"
        for shape in found
    )
    _answer(call, found, "\n".join(lines))


def _answer(call: _Call, value: Any, text: str) -> None:
    if call.json:
        _print(json.dumps(value, indent=2, ensure_ascii=False))
    elif text:
        _print(text)


def _limit(call: _Call) -> int | None:
    value = call.flags.get("--limit")
    if value is None:
        return None
    if not value.isdigit():
        raise UserError(f"--limit = {value!r}: expected a whole number")
    return int(value)


def _some(call: _Call, what: str) -> list[str]:
    if not call.words:
        raise UserError(f"expected at least one {what}")
    return call.words


def _one(call: _Call, what: str) -> str:
    if len(call.words) != 1:
        raise UserError(f"expected exactly one {what}, found {len(call.words)}")
    return call.words[0]


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stderr.write(f"Warning: {line}\n")


_COMMANDS: dict[str, Callable[[LocalEngine, _Call], None]] = {
    "account whoami": _whoami,
    "experiment create": _create,
    "experiment get": _get,
    "experiment inspect": _get,
    "experiment list": _list,
    "experiment stop": _stop,
    "image get": _image_get,
    "image inspect": _image_get,
    "job get": _job_get,
    "job inspect": _job_get,
    "job list": _job_list,
    "job logs": _job_logs,
    "job stop": _job_stop,
    "secret delete": _secret_delete,
    "secret list": _secret_list,
    "secret read": _secret_read,
    "secret write": _secret_write,
    "workspace experiments": _workspace_experiments,
}


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
