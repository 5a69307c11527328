"""What a scan found out, as plain records: pure linking makes them, the store writes those that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.watcher.issues import Issue

__all__ = ["AttemptRecord", "CheckpointRecord", "DatasetRecord", "EdgeRecord", "Facts", "RunRecord", "WandbRecord"]


@dataclass
class Facts:
    """Everything that was read from files of training, by stored path.

    Attributes:
        configs: Source training TOMLs.
        resume_configs: Generated TOMLs of resume attempts.
        resolved: Resolved sub-configs.
        launches: Launch specs.
        receipts: Receipts, by path of their spec.
        attempts: Attempt manifests.
        joint: Joint run files.
        joint_records: What a joint launch left in the run directory.
        manifests: Data manifests.
        run_dirs: One look at each run directory.
        digests: (sha256 of the bytes, digest of the meaning) of each TOML.
    """

    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    resume_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    resolved: dict[str, dict[str, Any]] = field(default_factory=dict)
    launches: dict[str, dict[str, Any]] = field(default_factory=dict)
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: dict[str, dict[str, Any]] = field(default_factory=dict)
    joint: dict[str, dict[str, Any]] = field(default_factory=dict)
    joint_records: dict[str, dict[str, Any]] = field(default_factory=dict)
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    run_dirs: dict[str, dict[str, Any]] = field(default_factory=dict)
    digests: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of_kind(self, kind: str) -> dict[str, dict[str, Any]]:
        """The mapping that files of a kind go to."""
        names: Mapping[str, dict[str, dict[str, Any]]] = {
            "training_config": self.configs,
            "resume_config": self.resume_configs,
            "resolved_config": self.resolved,
            "launch_spec": self.launches,
            "receipt": self.receipts,
            "attempt": self.attempts,
            "joint_run": self.joint,
            "joint_record": self.joint_records,
            "manifest": self.manifests,
            "run_directory": self.run_dirs,
        }
        return names[kind]


@dataclass
class AttemptRecord:
    """One launch of a run; names as in the table ``attempts``."""

    attempt_key: str
    kind: str
    status: str | None = None
    experiment_id: str | None = None
    experiment_name: str | None = None
    workspace: str | None = None
    source_experiment_id: str | None = None
    service_experiment_id: str | None = None
    resume_step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    launch_spec_path: str | None = None
    manifest_path: str | None = None
    joint_config_path: str | None = None
    started_at: str | None = None
    error: str | None = None
    wandb_ids: list[str] = field(default_factory=list)
    config_paths: list[str] = field(default_factory=list)

    def order(self) -> tuple[str, int, str]:
        """Attempts of a run are numbered in this order."""
        return self.started_at or "", self.resume_step or 0, self.launch_spec_path or self.manifest_path or ""


@dataclass
class CheckpointRecord:
    """One step of a run; names as in the table ``checkpoints``."""

    path: str
    step: int
    kind: str
    stable: int = 0
    trainer_shards: int | None = None
    orchestrator_progress: int | None = None
    size_bytes: int | None = None
    modified_at: str | None = None
    attempt: str | None = None


@dataclass
class EdgeRecord:
    """One predecessor of a run."""

    parent_ref: str
    relation: str
    is_checkpoint: bool
    source_path: str
    source_key: str
    ambiguous: int = 0


@dataclass
class WandbRecord:
    """One W&B run; names as in the table ``wandb_runs``."""

    wandb_run_id: str | None
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    url: str | None = None
    offline: int = 0
    state: str | None = None
    launch_spec_path: str | None = None
    local_run_path: str | None = None
    local_paths: list[str] = field(default_factory=list)
    source: str = "config"
    attempt: str | None = None


@dataclass
class DatasetRecord:
    """One dataset; ``facts`` is its manifest."""

    identity_key: str
    name: str
    manifest_path: str | None
    facts: dict[str, Any]
    configured_path: str


@dataclass
class RunRecord:
    """One run with everything that belongs to it."""

    run_dir: str
    name: str
    stage: str
    state: str
    config_state: str
    base_model: str | None = None
    config_path: str | None = None
    max_steps: int | None = None
    #: (path, role, attempt key) of every configuration
    configs: list[tuple[str, str, str | None]] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    edges: list[EdgeRecord] = field(default_factory=list)
    wandb: list[WandbRecord] = field(default_factory=list)
    #: (identity key of the dataset, role, path as written)
    datasets: list[tuple[str, str, str]] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    exists: bool = False
    unreadable: bool = False
    issues: list[Issue] = field(default_factory=list)
    reason: str | None = None
