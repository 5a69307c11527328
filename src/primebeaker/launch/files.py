"""The files of a launch: spec, snapshot of the TOML, receipt. A launch id is used once, so none is ever overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from primebeaker.beaker.spec import spec_json
from primebeaker.errors import UserError
from primebeaker.fileio import create_exclusively
from primebeaker.launch.plan import LaunchPlan

__all__ = ["receipt_path", "write_launch_files", "write_receipt"]


def write_launch_files(plan: LaunchPlan) -> None:
    """Write the snapshot and the spec file (mode 0600: it holds real values). Files that are there and equal stay.

    Raises:
        UserError: The directory cannot be written, the launch was submitted before, or a file has other content.
    """
    receipt = receipt_path(plan)
    if receipt.exists():
        raise UserError(
            f"--launch-id = {plan.launch_id}: this launch was submitted before, see {receipt}",
            hint="choose another one",
        )
    directory = Path(plan.paths.spec).parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_once(Path(plan.paths.snapshot), plan.toml_data, 0o644)
        _write_once(Path(plan.paths.spec), spec_json(plan.spec).encode(), 0o600)
    except OSError as error:
        raise _unwritable(directory, error) from error


def write_receipt(plan: LaunchPlan, receipt: dict[str, Any]) -> Path:
    """Write the receipt beside the spec file.

    Raises:
        UserError: The directory cannot be written.
    """
    path = receipt_path(plan)
    try:
        create_exclusively(path, json.dumps(receipt, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    return path


def receipt_path(plan: LaunchPlan) -> Path:
    """Where the receipt of a launch is."""
    return Path(plan.paths.spec.removesuffix(".json") + ".receipt.json")


def _write_once(path: Path, data: bytes, mode: int) -> None:
    if not create_exclusively(path, data, mode=mode) and path.read_bytes() != data:
        raise UserError(
            f"{path} exists with other content: a launch id is used once", hint="choose another --launch-id"
        )


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(
        f"{directory}: the launch files cannot be written: {error.strerror or error}",
        hint="make room or choose another --scratch-dir",
    )
