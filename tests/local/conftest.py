"""An engine with a home of its own, and tiny experiments."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from primebeaker.local import LocalEngine
from primebeaker.local.leftovers import leftovers

from ..waiting import until


def job_processes(engine: LocalEngine, experiment_id: str) -> list[int]:
    """Pids of living processes that carry a job id of the experiment."""
    return [process.pid for process in leftovers(job.id for job in engine.store.jobs(experiment_id))]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    """An engine; at the end nothing of it may run."""
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_GRACE_SECONDS", "2")
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_HOME", str(tmp_path / "home"))
    engine = LocalEngine()
    yield engine
    experiments = engine.store.experiments()
    for row in experiments:
        if row.active:
            engine.stop(row.id)
    for row in experiments:
        until(lambda row=row: not job_processes(engine, row.id), 5)


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Path]:
    """A spec file of one task that runs a shell script, or of the given tasks."""

    def write(script: str = "true", *, tasks: list[dict[str, Any]] | None = None, **task: Any) -> Path:
        one = {"name": "main", "image": {"beaker": "me/image"}, "command": ["sh", "-c", script], **task}
        path = tmp_path / f"spec-{os.urandom(4).hex()}.json"
        path.write_text(json.dumps({"version": "v2", "description": "a test", "tasks": tasks or [one]}))
        return path

    return write


@pytest.fixture
def launch(engine: LocalEngine, write_spec: Callable[..., Path]) -> Callable[..., str]:
    """Create an experiment of one task and give its id."""

    def start(script: str, *, name: str = "exp", rehearsal: Any = None, **task: Any) -> str:
        created = engine.create(write_spec(script, **task), name=name, workspace="ai2/lab", rehearsal=rehearsal)
        assert created.experiment_id is not None
        return created.experiment_id

    return start
