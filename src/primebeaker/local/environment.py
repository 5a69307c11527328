"""The environment of a replica: a small known base, the spec's variables, and what Beaker sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.local.home import HOME_VARIABLE, Home, program_folders
from primebeaker.local.ids import derived_id, machine_id
from primebeaker.local.secret_store import Origin, secret_names

__all__ = ["Replica", "capture_origin", "replica_environment"]

HOSTNAME = "127.0.0.1"
RESULT_VARIABLE = "PRIMEBEAKER_LOCAL_RESULT_DIR"
REHEARSAL_VARIABLE = "PRIMEBEAKER_REHEARSAL"

_BASE = frozenset(
    {"HOME", "PATH", "LANG", "TZ", "USER", "LOGNAME", "SHELL",
     "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
     "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT"}
)  # fmt: skip
_BASE_PREFIXES = ("LC_", "PRIMEBEAKER_LOCAL_")
_GPU = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class Replica(NamedTuple):
    """What tells one replica from another."""

    experiment_id: str
    task_id: str
    job_id: str
    rank: int
    replicas: int


def capture_origin(spec: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Origin:
    """What an experiment takes from the submitting process: a few known variables, and the secrets it names.

    Args:
        spec: The spec; of the environment, only variables named like one of its secrets are taken as their values.
        environment: By default this process's own.
    """
    own = os.environ if environment is None else environment
    return Origin(
        environment={name: own[name] for name in own if name in _BASE or name.startswith(_BASE_PREFIXES)},
        gpu_environment={name: own[name] for name in _GPU if name in own},
        secrets={name: own[name] for name in secret_names(spec) if name in own},
    )


def replica_environment(
    home: Home,
    replica: Replica,
    task: Mapping[str, Any],
    origin: Origin,
    *,
    secret: Callable[[str], str | None],
    rehearsal: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The whole environment of one replica.

    Args:
        home: The engine's home.
        replica: Which one.
        task: The task of the spec.
        origin: What came from the submitting process.
        secret: Gives the value of a secret, or None when it is not known here.
        rehearsal: ``{"path_prepend": [folders], "env": {…}}`` or None. The variables are added to the spec's; the
            folders go first on ``PATH`` when ``PRIMEBEAKER_REHEARSAL`` is ``1`` then.
    """
    environment = dict(origin.environment)
    gpus = int((task.get("resources") or {}).get("gpuCount") or 0)
    if gpus:
        environment.update(origin.gpu_environment)
    for entry in task.get("envVars") or ():
        value = secret(entry["secret"]) if entry.get("secret") is not None else entry.get("value")
        if value is not None:
            environment[entry["name"]] = value
    environment.update((rehearsal or {}).get("env") or {})
    environment.update(_beaker_variables(replica, task, gpus))
    folders = [str(folder) for folder in program_folders(home)]
    if rehearsal and environment.get(REHEARSAL_VARIABLE) == "1":
        folders = [*map(str, rehearsal.get("path_prepend") or ()), *folders]
    path = environment.get("PATH") or os.defpath
    environment["PATH"] = os.pathsep.join([*folders, path])
    environment["VIRTUAL_ENV"] = sys.prefix
    folder = home.job(replica.experiment_id, replica.job_id)
    environment.setdefault("TMPDIR", str(folder / "tmp"))
    environment[RESULT_VARIABLE] = str(folder / "result")
    environment[HOME_VARIABLE] = str(home.root)
    environment["PRIMEBEAKER_LOCAL_ENGINE"] = "1"
    return environment


def _beaker_variables(replica: Replica, task: Mapping[str, Any], gpus: int) -> dict[str, str]:
    variables = {
        "BEAKER_JOB_ID": replica.job_id,
        "BEAKER_TASK_ID": replica.task_id,
        "BEAKER_EXPERIMENT_ID": replica.experiment_id,
        "BEAKER_WORKLOAD_ID": replica.experiment_id,
        "BEAKER_JOB_KIND": "batch",
        "BEAKER_REPLICA_RANK": str(replica.rank),
        "BEAKER_REPLICA_COUNT": str(replica.replicas),
        "BEAKER_NODE_HOSTNAME": HOSTNAME,
        "BEAKER_NODE_ID": machine_id(),
        "BEAKER_ASSIGNED_GPU_COUNT": str(gpus),
        "BEAKER_RESULT_DATASET_ID": result_id(replica.job_id),
    }
    if task.get("leaderSelection"):
        variables["BEAKER_LEADER_REPLICA_HOSTNAME"] = HOSTNAME
        variables["BEAKER_LEADER_REPLICA_NODE_ID"] = machine_id()
    return variables


def result_id(job_id: str) -> str:
    """The id of a job's result data set."""
    return derived_id("result", job_id)


def working_folder(home: Home, replica: Replica) -> Path:
    """Where a replica starts: a folder of its own, so that relative paths litter nothing."""
    return home.job(replica.experiment_id, replica.job_id) / "tmp"
