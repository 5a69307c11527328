"""What the launch looks at on disk, as far as the submitting machine can see it. Nothing is changed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from primebeaker.launch.keys import Keys
from primebeaker.launch.paths import Mount, classify_data_name

__all__ = ["check_data_paths", "existing_checkpoints", "is_data_path", "missing_datasets", "outside_mount"]

_STEP = re.compile(r"step_(0|[1-9][0-9]*)")


def check_data_paths(keys: Keys, mount: Mount, working_dir: str, home_dir: str) -> list[str]:
    """Check ``data.name`` and ``val.data.name`` of an SFT TOML.

    Args:
        keys: The TOML; a local path outside the mount, or a name that is neither path nor hub id, is a mistake.
        mount: Where the bucket is.
        working_dir: The directory the task starts in.
        home_dir: What ``~`` stands for in the task.

    Returns:
        A warning for each local path that does not exist although the mount is visible here.
    """
    warnings: list[str] = []
    for key in ("data.name", "val.data.name"):
        name = keys.value(key)
        if not isinstance(name, str) or not name or keys.value(f"{key.removesuffix('.name')}.type") == "fake":
            continue
        reference = classify_data_name(name, working_dir)
        if reference is None:
            keys.refuse(
                key,
                f"expected a path that exists under the working directory {working_dir}, "
                "or the id of a hub dataset (owner/name)",
                "pass --working-dir with the directory it is relative to, or begin a path that is not here with ./",
            )
            continue
        if not reference.local:
            continue
        path = _at_home(name, home_dir)
        with keys.mistakes.collect():
            mount.task_path(path, keys.shown(key), base=working_dir, file=keys.file, line=keys.line_of(key))
            if mount.visible and not (Path(working_dir) / path).exists():
                warnings.append(keys.warning(key, "this path does not exist here"))
    return warnings


def missing_datasets(keys: Keys, mount: Mount, working_dir: str, home_dir: str) -> list[str]:
    """A warning for each ``dataset`` argument of an environment that is a local path and does not exist.

    Says nothing where the mount is not visible, nor about a path outside it, which may be in the image.
    """
    if not mount.visible:
        return []
    warnings: list[str] = []
    for path, value in keys.strings():
        if not path.endswith("args.dataset") or not is_data_path(value):
            continue
        full = Path(working_dir) / _at_home(value, home_dir)
        if (not value.startswith("/") or full.is_relative_to(mount.path)) and not full.exists():
            warnings.append(
                keys.warning(path, f"{full} does not exist here", "relative paths in the TOML begin at --working-dir")
            )
    return warnings


def outside_mount(keys: Keys, mount: Mount) -> list[str]:
    """A warning for each absolute model name or ``dataset`` argument outside the mount: it may be in the image."""
    warnings: list[str] = []
    for path, value in keys.strings():
        if not value.startswith("/") or not path.endswith(("model.name", "args.dataset")):
            continue
        real = os.path.realpath(value)
        if real != mount.real and not real.startswith(mount.real.rstrip("/") + "/"):
            warnings.append(
                keys.warning(
                    path, f"this path is not under the mount {mount.path}; the task only finds it if the image has it"
                )
            )
    return warnings


def _at_home(path: str, home_dir: str) -> str:
    return home_dir + path[1:] if path == "~" or path.startswith("~/") else path


def is_data_path(name: str) -> bool:
    """Whether a dataset argument can only be a path: hub ids have one slash and no file ending."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith((".jsonl", ".json", ".parquet"))


def existing_checkpoints(output_dir: str, ckpt_output_dir: str | None) -> Path | None:
    """A folder below the output directory (or ``ckpt.output_dir``) that already holds ``step_N`` directories."""
    roots = [Path(output_dir) / "checkpoints", Path(output_dir) / "run_default" / "checkpoints"]
    if ckpt_output_dir is not None:
        roots.append(Path(ckpt_output_dir) / "checkpoints")
    for root in roots:
        try:
            names = os.listdir(root)  # noqa: PTH208 - an unreadable folder is the same as one that is not visible here
        except OSError:
            continue
        if any(_STEP.fullmatch(name) for name in names):
            return root
    return None
