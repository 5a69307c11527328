"""Read an experiment spec as Beaker would, and say what cannot run on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primebeaker.beaker.legality import check_spec
from primebeaker.errors import Mistakes, UserError

__all__ = ["check_runnable", "gpu_warning", "read_spec"]


def read_spec(data: bytes, file: str) -> Mapping[str, Any]:
    """The checked spec of a JSON or YAML file.

    Args:
        data: The file's bytes.
        file: How the file is called in messages.

    Raises:
        UserError: It cannot be read, Beaker would expand or refuse it.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8: byte {error.start}", file=file) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if "{{" in line:
            raise UserError(
                "holds '{{', which Beaker would expand as a template",
                hint=r"write it as \u007b\u007b inside a JSON string",
                file=file,
                line=number,
            )
    try:
        spec = json.loads(text)
    except ValueError:
        spec = _yaml(text, file)
    return check_spec(spec, file=file)


def check_runnable(spec: Mapping[str, Any], file: str, *, mounts: bool = True) -> None:
    """Say what this machine cannot give the spec's tasks.

    Args:
        spec: A checked spec.
        file: How the file is called in messages.
        mounts: Whether the mounted folders must exist here.

    Raises:
        UserError: A task without a command, or a data source this engine does not have.
    """
    mistakes = Mistakes()
    for index, task in enumerate(spec["tasks"]):
        where = f"tasks[{index}]"
        if not task.get("command"):
            mistakes.add(
                UserError(
                    "is required here: the local engine runs no image, so it knows no entry point",
                    file=file,
                    key=f"{where}.command",
                )
            )
        for number, mount in enumerate(task.get("datasets") or ()):
            key = f"{where}.datasets[{number}]"
            source = next(name for name, value in mount["source"].items() if value is not None)
            if source != "weka":
                reason = "reads Weka buckets at their mount path only"
                mistakes.add(UserError(f"{source}: the local engine {reason}", file=file, key=f"{key}.source"))
            elif mounts and not Path(mount["mountPath"]).is_dir():
                mistakes.add(
                    UserError(
                        f"{mount['mountPath']} does not exist on this machine",
                        hint="make it, or launch with another --mount-path",
                        file=file,
                        key=f"{key}.mountPath",
                    )
                )
    mistakes.raise_if_any()


def gpu_warning(spec: Mapping[str, Any]) -> str | None:
    """A line when the tasks ask for more GPUs than this machine has."""
    wanted = max((int((task.get("resources") or {}).get("gpuCount") or 0) for task in spec["tasks"]), default=0)
    present = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if wanted <= present:
        return None
    return f"a task asks for {wanted} GPUs, this machine has {present}; the local engine runs it all the same"


def _yaml(text: str, file: str) -> Any:
    # Specs are JSON as a rule, and a YAML parser costs more than the rest of this module.
    from primebeaker.config.yaml_loader import parse_yaml

    return parse_yaml(text, file).values


def account_name() -> str:
    """The user this engine acts for."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME")
    if name:
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"
