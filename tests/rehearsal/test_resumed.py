"""A rehearsal that lost an engine goes on from its last common checkpoint as a second rehearsal."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from primebeaker.errors import UserError
from primebeaker.launch.settings import LaunchSettings
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.resumed import RehearsingEngine
from primebeaker.rehearsal.run import rehearse
from primebeaker.resume.run import run_resume
from primebeaker.resume.source import ResumeSettings
from primebeaker.watcher.database import open_reader
from primebeaker.watcher.details import run_detail
from primebeaker.watcher.metrics import Curves, run_metrics
from primebeaker.watcher.references import resolve_reference
from primebeaker.watcher.roots import Given
from primebeaker.watcher.update import ScanOptions, update

from .conftest import ROOT

MULTINODE = ROOT / "examples/rl/multinode.toml"


def wandb_ids(engine: LocalEngine, experiment: str) -> set[str]:
    """The W&B run of an experiment's jobs."""
    names = ("WANDB_RUN_ID", "WANDB_SHARED_RUN_ID")
    tasks = json.loads(engine.find(experiment).spec_json)["tasks"]
    return {entry["value"] for task in tasks for entry in task["envVars"] if entry["name"] in names}


def watched(work: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """What the watcher knows of a kept work folder: its run, and the curve of its rewards."""
    database = work / "watcher.sqlite3"
    given = Given(train_config_roots=(str(work),), launch_spec_roots=(str(work / "scratch"),), output_roots=())
    update(database, given, ScanOptions(stale_minutes=0), warn=lambda line: None)
    with contextlib.closing(open_reader(database)) as connection:
        entity = resolve_reference(connection, str(work / "output"))
        name = "train/agg/all/reward/mean"
        (series,) = run_metrics(connection, entity, Curves.beside(database), names=[name])["series"]
        return run_detail(connection, entity), series["points"]


@pytest.mark.parametrize(
    ("fault", "made"), [("kill:rank=1,process=engine0@step=3", 3), ("midsave:step=4", 3)], ids=["engine", "midsave"]
)
def test_a_second_run_continues_at_the_right_step(home: Path, tmp_path: Path, fault: str, made: int) -> None:
    """The next step, the same W&B run, a manifest; and what struck the first run does not strike the second."""
    # With one checkpoint kept, the orchestrator, which is a step ahead, leaves none that both sides finished.
    toml = tmp_path / "rl.toml"
    toml.write_text(MULTINODE.read_text().replace("keep_last = 1", "keep_last = 2"))
    options = RehearsalOptions(steps=4, no_rollouts=True, work_dir=tmp_path / "work", faults=(fault,), timeout=240)
    report = rehearse("rl", LaunchSettings(toml=toml), options)
    assert report["ok"], report["faults"]
    source = report["experiment_id"]
    engine = RehearsingEngine(source)
    document = run_resume(ResumeSettings(from_experiment=source, rehearse=True), engine)
    child = document["child_experiment_id"]
    assert document["resume"]["checkpoint"]["step"] == made
    assert engine.wait(child, timeout=120).state == "succeeded", list(engine.logs(child, tail=50))
    output = tmp_path / "work/output"
    manifest = json.loads(Path(document["resume"]["manifest_path"]).read_text())
    assert Path(document["resume"]["manifest_path"]).is_relative_to(output)
    assert (manifest["status"], manifest["child_experiment_id"], manifest["checkpoint"]["step"]) == (
        "submitted",
        child,
        made,
    )
    assert wandb_ids(engine, child) == wandb_ids(engine, source) and len(wandb_ids(engine, child)) == 1
    records = [json.loads(line) for line in (output / "run_default/metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if "progress/rollouts" in record]
    assert steps[len(report["steps"]) :] == list(range(made + 1, 5))
    run, rewards = watched(tmp_path / "work")
    assert (run["state"], run["last_step"]) == ("finished", 4)
    assert [attempt["experiment_id"] for attempt in run["attempts"]] == [source, child]
    assert [attempt["resume_step"] for attempt in run["attempts"]] == [None, made]
    assert [row["step"] for row in run["checkpoints"] if row["kind"] == "both"] == [3, 4]
    assert {row["wandb_run_id"] for row in run["wandb_runs"]} == wandb_ids(engine, child)
    assert [point[0] for point in rewards] == [1, 2, 3, 4]
    shutil.rmtree(tmp_path / "work")
    with pytest.raises(UserError, match=r"the work folder of .* is gone.*--keep"):
        RehearsingEngine(source)


@pytest.mark.soak
def test_the_tools_of_the_first_run_serve_the_second_and_end_with_it(home: Path, tmp_path: Path) -> None:
    toml = tmp_path / "rl.toml"
    text = MULTINODE.read_text().replace("keep_last = 1", "keep_last = 2")
    toml.write_text(text.replace("jtc_label_env", "jtc_code_tool_label_env"))
    options = RehearsalOptions(steps=3, work_dir=tmp_path / "work", faults=("kill:process=router@step=2",), timeout=300)
    report = rehearse("rl", LaunchSettings(toml=toml), options)
    assert report["ok"], report["faults"]
    source = report["experiment_id"]
    engine = RehearsingEngine(source)
    document = run_resume(ResumeSettings(from_experiment=source, rehearse=True), engine)
    child = document["child_experiment_id"]
    ended = engine.wait(child, timeout=240)
    assert ended.state == "succeeded", "\n".join(line.text for line in engine.logs(child, tail=50))
    services = [experiment.id for experiment in engine.list() if experiment.name.endswith("-tools")]
    assert [engine.wait(service, timeout=60).state for service in services] == ["canceled", "canceled"]
