"""What every stand-in does at its start: read its command line and its config strictly, and stop on any doubt."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from primebeaker.errors import PrimeBeakerError, UserError, did_you_mean
from primebeaker.prime_rl.tables import Table, put
from primebeaker.rehearsal.settings import is_rehearsal
from primebeaker.rehearsal.standins.orders import obey_exit

__all__ = ["Arguments", "FlagKind", "load_config", "log", "parse", "run", "visible_gpus"]

#: ``switch`` takes no value, ``value`` one, ``list`` all that follow up to the next flag.
FlagKind = Literal["switch", "value", "list"]


@dataclass
class Arguments:
    """A command line in Prime-RL's form ``PROGRAM @ FILE --dotted.key value``."""

    config: Path | None = None
    values: dict[str, list[str]] = field(default_factory=dict)
    #: What follows the flags (torchrun's ``-m MODULE`` and the module's own words).
    rest: list[str] = field(default_factory=list)

    def one(self, flag: str, default: str | None = None) -> str:
        """The value of a flag.

        Raises:
            UserError: It was not given and has no default.
        """
        values = self.values.get(flag)
        if values:
            return values[-1]
        if default is None:
            raise UserError(f"{flag} is missing")
        return default

    def number(self, flag: str, default: int | None = None) -> int:
        """The value of a flag as a whole number.

        Raises:
            UserError: It is none, or was not given and has no default.
        """
        value = self.one(flag, None if default is None else str(default))
        if not value.isdigit():
            raise UserError(f"{flag} = {value!r}: expected a whole number")
        return int(value)


def parse(words: Sequence[str], flags: Mapping[str, FlagKind], *, stop_at: str | None = None) -> Arguments:
    """Read a command line that knows only ``flags``.

    Args:
        words: The words after the program's name.
        flags: Flag (spelt with dashes) to its kind.
        stop_at: A flag that ends the reading; it and what follows become ``rest``.

    Raises:
        UserError: An unknown flag, a flag without its value, or a stray word.
    """
    arguments = Arguments()
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if word == stop_at:
            arguments.rest = pending
            return arguments
        if word == "@":
            if not pending:
                raise UserError("@ is not followed by a config file")
            arguments.config = Path(pending.pop(0))
            continue
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            raise UserError(f"unexpected word {word!r}")
        if name not in flags:
            raise UserError(f"unknown flag {name}", hint=did_you_mean(name, flags))
        values = arguments.values.setdefault(name, [])
        if equals:
            values.append(value)
        elif flags[name] == "value":
            if not pending:
                raise UserError(f"{name} needs a value")
            values.append(pending.pop(0))
        elif flags[name] == "list":
            while pending and not pending[0].startswith("--"):
                values.append(pending.pop(0))
            if not values:
                raise UserError(f"{name} needs at least one value")
    return arguments


def load_config(arguments: Arguments, overrides: Sequence[str] = ()) -> Table:
    """The config file of a command line with its dotted flags written over it.

    Args:
        arguments: What :func:`parse` gave.
        overrides: The flags that stand for config keys (``--server.port``).

    Raises:
        UserError: No config file was given, or it is missing or no TOML.
    """
    if arguments.config is None:
        raise UserError("no config file: expected @ FILE")
    try:
        config = tomllib.loads(arguments.config.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError("no such config file", file=arguments.config) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=arguments.config) from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not TOML: {error}", file=arguments.config) from error
    for flag in overrides:
        values = arguments.values.get(flag)
        if values:
            key = flag.removeprefix("--").replace("-", "_")
            typed = [int(value) if value.isdigit() else value for value in values]
            put(config, key, typed if len(typed) > 1 else typed[0])
    return config


def visible_gpus(environment: Mapping[str, str] | None = None, *, all_when_unset: bool = False) -> list[str]:
    """The GPUs this process was given, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        environment: The process's own by default.
        all_when_unset: Without the variable all GPUs of the replica are seen, as CUDA does it.

    Raises:
        UserError: None were given, one is named twice, or one lies outside the GPUs of this replica.
    """
    environment = os.environ if environment is None else environment
    assigned = environment.get("GPUS_PER_NODE") or environment.get("BEAKER_ASSIGNED_GPU_COUNT") or ""
    if all_when_unset and "CUDA_VISIBLE_DEVICES" not in environment and assigned.isdigit():
        return [str(number) for number in range(int(assigned))]
    devices = [part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if not devices:
        raise UserError("CUDA_VISIBLE_DEVICES names no GPU")
    if len(set(devices)) != len(devices):
        raise UserError(f"CUDA_VISIBLE_DEVICES = {','.join(devices)}: a GPU is named twice")
    if assigned.isdigit() and int(assigned):
        outside = [device for device in devices if device.isdigit() and int(device) >= int(assigned)]
        if outside:
            raise UserError(f"GPU {outside[0]} is outside this replica's {assigned} GPUs")
    return devices


def log(text: str) -> None:
    """One line for the program's log."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(program: str, main: Callable[[list[str]], int]) -> NoReturn:
    """Run a stand-in and end the process with its code; a mistake is one line and exit 2."""
    try:
        if not is_rehearsal():
            raise UserError("this is a stand-in for rehearsals; it does not train")
        obey_exit(program)
        code = main(sys.argv[1:])
    except UserError as error:
        sys.stderr.write(f"{program}: {error}\n")
        code = 2
    except PrimeBeakerError as error:
        sys.stderr.write(f"{program}: {error}\n")
        code = 1
    except OSError as error:
        # Said as Python says it, file included, but in one line.
        sys.stderr.write(f"{program}: {error}\n")
        code = 1
    except ExceptionGroup as group:
        sys.stderr.write(f"{program}: {'; '.join(str(error) for error in group.exceptions)}\n")
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait on a socket must not keep an ended program alive.
    os._exit(code)
