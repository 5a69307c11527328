"""What a joint launch leaves on disk, so that both experiments can be found and stopped whatever happened since.

A receipt holds no environment values and no secrets; passwords in URLs are masked.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import primebeaker
from primebeaker.errors import Mistakes, UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.joint.plan import RunPlan
from primebeaker.joint.run_file import read_run_file
from primebeaker.launch.paths import Mount
from primebeaker.launch.settings import LaunchSettings
from primebeaker.services.masking import masked
from primebeaker.services.stacks import STACKS, load_native

__all__ = [
    "OUTPUT_RECEIPT",
    "RECEIPT_SCHEMA",
    "Experiment",
    "Receipt",
    "State",
    "find_receipt",
    "new_receipt",
    "output_receipt",
    "read_receipt",
    "receipt_folder",
]

RECEIPT_SCHEMA = "primebeaker.run_receipt/v1"
#: The copy in the run's output directory.
OUTPUT_RECEIPT = "primebeaker_run.json"
_FOLDER = Path("primebeaker/runs")

State = Literal["creating_service", "service_created", "launched", "rolled_back", "rollback_failed"]


@dataclass(frozen=True)
class Experiment:
    """One of the two experiments; its ID is None while only its name is known."""

    experiment_id: str | None
    experiment_name: str
    workspace: str
    client_registry: str | None = None
    spec_path: str | None = None

    def document(self) -> dict[str, Any]:
        """As in the receipt."""
        values = asdict(self)
        optional = ("client_registry", "spec_path")
        return {name: value for name, value in values.items() if name not in optional or value is not None}


@dataclass(frozen=True)
class Receipt:
    """One joint launch. ``rl`` is None until its submission begins."""

    path: Path
    state: State
    config: str
    config_sha256: str
    toml: str
    created_at: str
    engine: str
    service: Experiment
    rl: Experiment | None
    cleanup_service_on_training_exit: bool
    package_version: str = primebeaker.__version__

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        values = {
            "schema": RECEIPT_SCHEMA,
            "state": self.state,
            "config": self.config,
            "config_sha256": self.config_sha256,
            "toml": self.toml,
            "created_at": self.created_at,
            "engine": self.engine,
            "service": self.service.document(),
            "rl": self.rl.document() if self.rl is not None else None,
            "cleanup_service_on_training_exit": self.cleanup_service_on_training_exit,
            "package_version": self.package_version,
        }
        return dict(masked(values))

    def written(self, **changes: Any) -> Receipt:
        """The receipt with changes, written; once the service's ID is known the file is named after it.

        Raises:
            OSError: It cannot be written.
        """
        changed = replace(self, **changes)
        if changed.service.experiment_id is not None:
            changed = replace(changed, path=self.path.with_name(f"{changed.service.experiment_id}.json"))
        changed.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(changed.path, changed.document())
        if changed.path != self.path:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        return changed


def receipt_folder(settings: LaunchSettings) -> Path:
    """Where the receipts of a run with these settings are: below its scratch directory, as the task sees it.

    Raises:
        UserError: The scratch directory is not under the mount.
    """
    mount = Mount.at(settings.mount_path)
    return Path(mount.task_path(settings.scratch_dir or mount.path, "rl.scratch_dir")) / _FOLDER


def output_receipt(plan: RunPlan) -> Path:
    """The copy in the output directory, by which a second launch into it is refused."""
    return Path(plan.rl.paths.output_dir) / OUTPUT_RECEIPT


def new_receipt(plan: RunPlan, engine: str) -> Receipt:
    """The receipt before anything is created; both names are known by then."""
    service = plan.service
    return Receipt(
        path=receipt_folder(plan.file.rl) / f"creating-{service.experiment_name}.json",
        state="creating_service",
        config=str(plan.file.path),
        config_sha256=plan.file.sha256,
        toml=str(plan.rl.settings.toml),
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        engine=engine,
        service=Experiment(None, service.experiment_name, service.workspace, client_registry=service.client_registry),
        rl=None,
        cleanup_service_on_training_exit=plan.file.lifecycle.cleanup,
    )


def read_receipt(path: Path) -> Receipt:
    """Read a receipt.

    Raises:
        UserError: It is missing or no receipt.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"receipt not found: {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError("not a receipt: no JSON", file=path) from error
    if not isinstance(values, dict) or values.get("schema") != RECEIPT_SCHEMA:
        raise UserError(f"not a receipt: expected the schema {RECEIPT_SCHEMA!r}", file=path)
    try:
        return Receipt(
            path=path,
            state=values["state"],
            config=values["config"],
            config_sha256=values["config_sha256"],
            toml=values["toml"],
            created_at=values["created_at"],
            engine=values.get("engine", "beaker"),
            service=Experiment(**values["service"]),
            rl=Experiment(**values["rl"]) if values["rl"] is not None else None,
            cleanup_service_on_training_exit=values["cleanup_service_on_training_exit"],
            package_version=values["package_version"],
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"not a complete receipt: {error}", file=path) from error


def find_receipt(config: Path) -> Receipt:
    """The newest receipt of a run file, whatever else is wrong with the file by now.

    Raises:
        UserError: The file cannot be read, or there is no receipt of it.
    """
    file = read_run_file(config, load_native(STACKS["base"]), Mistakes())
    folder = receipt_folder(file.rl)
    receipts = [receipt for path in sorted(folder.glob("*.json")) if (receipt := _of(path, file.path)) is not None]
    if not receipts:
        raise UserError(f"no receipt of {file.path} below {folder}", hint="give one with --receipt=PATH")
    return max(receipts, key=lambda receipt: (receipt.created_at, receipt.path.stat().st_mtime_ns))


def _of(path: Path, config: Path) -> Receipt | None:
    try:
        receipt = read_receipt(path)
    except UserError:
        return None
    return receipt if receipt.config == str(config) else None
