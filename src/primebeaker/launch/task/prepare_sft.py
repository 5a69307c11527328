"""Prepare a single-node SFT task: choose the config, look at the data, set incomplete checkpoints aside.

This file is also run as ``python3 -c`` inside images that hold Prime-RL but no PrimeBeaker, so it uses the standard
library alone.  It prints the path of the config to train with; notices and faults are lines on stderr.
"""

import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

_HUB_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")


def stop(message: str) -> NoReturn:
    """End with exit code 2 and one line."""
    sys.stderr.write("primebeaker: error: " + " ".join(message.split("\n")) + "\n")
    raise SystemExit(2)


def notice(message: str) -> None:
    """Write one line for the task's log."""
    sys.stderr.write("primebeaker: " + message + "\n")


def choose_config(environment: Mapping[str, str]) -> tuple[Path, bytes]:
    """The config to train with, and its bytes.

    The snapshot taken at submission counts as long as it is intact, since the file it was taken from may be edited
    while the task waits in the queue; without a snapshot (a live config) the file itself is used.
    """
    expected = environment.get("PRIMEBEAKER_CONFIG_SHA256")
    source = Path(environment["CONFIG_PATH"])
    snapshot_path = environment.get("PRIMEBEAKER_CONFIG_SNAPSHOT")
    snapshot = _read(Path(snapshot_path)) if snapshot_path else None
    live = _read(source)
    if snapshot is not None and hashlib.sha256(snapshot).hexdigest() == expected:
        if live is None or hashlib.sha256(live).hexdigest() != expected:
            notice(f"{source} has changed since the launch; using the snapshot {snapshot_path}")
        return Path(str(snapshot_path)), snapshot
    if live is None:
        stop(f"{source}: the training TOML cannot be read, and no intact snapshot is left")
    if hashlib.sha256(live).hexdigest() != expected:
        notice(f"{source} has changed since the launch; using it as it is now")
    return source, live


def parse_config(path: Path, data: bytes) -> dict[str, Any]:
    """The values of a config; a fault in it ends the task with one line."""
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:
        stop(f"{path}: not a TOML file: {error}")


def check_data(config: Mapping[str, Any]) -> None:
    """Stop when a local data path of the config cannot be read here."""
    for key, table in (("data", config.get("data")), ("val.data", _table(config, "val").get("data"))):
        if not isinstance(table, dict) or table.get("type") == "fake":
            continue
        name = table.get("name")
        if not isinstance(name, str) or (_HUB_DATASET.fullmatch(name) and not name.startswith(".")):
            continue
        path = os.path.expanduser(name)  # noqa: PTH111 - as the trainer's reader does
        if not os.access(path, os.R_OK):
            stop(f"{key}.name = {name!r}: the data cannot be read")


def checkpoint_root(config: Mapping[str, Any], environment: Mapping[str, str]) -> Path:
    """The folder of the trainer's ``step_N`` directories."""
    directory = _table(config, "ckpt").get("output_dir")
    base = directory if isinstance(directory, str) and directory != "None" else environment["OUTPUT_DIR"]
    return Path(base) / "checkpoints"


def set_aside(root: Path, incomplete: Callable[[Path], str | None], job: str) -> list[Path]:
    """Rename every incomplete ``step_N`` below ``root``, so that the trainer does not try to load it.

    Nothing is deleted and nothing leaves the folder.  The new name does not start with ``step_``: Prime-RL reads what
    follows the last ``_`` of such a name as a number.

    Args:
        root: The folder of the step directories.
        incomplete: Says what is missing in a step directory, or None.
        job: Goes into the new name.
    """
    renamed: list[Path] = []
    for step in sorted(root.glob("step_*")) if root.is_dir() else []:
        if not _STEP.fullmatch(step.name) or not step.is_dir():
            continue
        missing = incomplete(step)
        if missing is None:
            continue
        target = _free_name(root / f"incomplete-{step.name}-{job}")
        step.rename(target)
        notice(f"{step} is incomplete ({missing}); set aside as {target.name}")
        renamed.append(target)
    return renamed


def without_metadata(step: Path) -> str | None:
    """What an SFT checkpoint lacks: the trainer commits it by writing ``.metadata`` last."""
    trainer = step / "trainer"
    return "trainer .metadata" if trainer.is_dir() and not (trainer / ".metadata").is_file() else None


def main() -> None:
    """Prepare the task this process runs in."""
    path, data = choose_config(os.environ)
    config = parse_config(path, data)
    check_data(config)
    set_aside(checkpoint_root(config, os.environ), without_metadata, os.environ.get("BEAKER_JOB_ID") or "manual")
    sys.stdout.write(f"{path}\n")


def _free_name(wanted: Path) -> Path:
    free, number = wanted, 2
    while free.exists() or free.is_symlink():
        free, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return free


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    main()
