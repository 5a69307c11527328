"""Each line of the status table, the rows of result files, and the choice of data manifests."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.watcher.evaluations import Subject, archive_subject, subject_of
from primebeaker.watcher.manifests import manifest_facts, match_manifest
from primebeaker.watcher.outcomes import aggregate, read_averages, read_summary
from primebeaker.watcher.results import Outcome, examine, list_results

from .conftest import age, write

ROW = {"dataset": "a", "runs": 3, "mean_accuracy": 0.5, "stdev_accuracy": 0.1, "min_accuracy": 0.4, "max_accuracy": 0.6}
GOOD = json.dumps(ROW) + "\n"
SUMMARY = '{"dataset": "a", "run": 1, "accuracy": 0.5}\n'


def judge(
    folder: Path,
    files: dict[str, str],
    *,
    workflow: str = "moss",
    fresh: bool = False,
    seen: bool = False,
    **expected: Any,
) -> Outcome:
    for name, text in files.items():
        write(folder / name, text)
    if folder.exists() and not fresh:
        age(folder)
    subject = Subject("/m", True, "/c.yaml", workflow, str(folder), expected)
    listing = list_results(str(folder), str(folder), workflow=workflow)
    return examine(subject, str(folder), listing, seen_before=seen, now_ns=time.time_ns(), stale_seconds=1800)


@pytest.mark.parametrize(
    ("files", "options", "status", "error"),
    [
        ({}, {}, "not_started", None),
        ({}, {"seen": True}, "missing", None),
        ({"failure.json": '{"error": "no GPU"}'}, {}, "failed", "no GPU"),
        ({"failure.json": '{"message": "late"}', "averages.jsonl": GOOD}, {}, "complete", None),
        ({"averages.jsonl": GOOD}, {}, "complete", None),
        ({"averages.jsonl": "\ufeff" + GOOD.replace("\n", "\r\n")}, {}, "complete", None),
        ({"averages.jsonl": GOOD}, {"datasets": ["a", "b", "c"]}, "partial", "2 of 3 datasets missing: b, c"),
        ({"averages.jsonl": GOOD}, {"runs": 4}, "partial", "fewer than 4 runs: a"),
        ({"averages.jsonl": GOOD, "failures.jsonl": '{"dataset": "a"}\n'}, {}, "partial", "1 failed run"),
        ({"summary.jsonl": SUMMARY}, {}, "complete", None),
        ({"averages.jsonl": "", "summary.jsonl": SUMMARY}, {"fresh": True}, "running", None),
        ({"averages.jsonl": "", "summary.jsonl": SUMMARY}, {}, "incomplete", None),
        ({"averages.jsonl": GOOD + '{"data'}, {"fresh": True}, "running", "2: not JSON"),
        ({"averages.jsonl": GOOD + '{"data'}, {}, "incomplete", "2: not JSON"),
        ({"averages.jsonl": '{"data\n' + GOOD}, {"fresh": True}, "incomplete", "1: not JSON"),
        (
            {"averages.jsonl": GOOD.replace("0.5", "NaN")},
            {},
            "incomplete",
            "1: mean_accuracy: expected a finite number",
        ),
        ({"evals.log": "x", "other.json": '{"status": "complete"}'}, {}, "incomplete", "no recognised result file"),
        ({"evals.log": "x"}, {"fresh": True}, "running", None),
        ({"summary.json": '{"status": "success", "n": 3}'}, {"workflow": "tool-use"}, "complete", None),
        ({"summary.json": '{"n": 3}'}, {"workflow": "tool-use"}, "incomplete", "no recognised result file"),
        (
            {"summary.json": '{"overall": {"sampled": 6}}'},
            {"workflow": "rubric-judge-audit", "records": 6},
            "complete",
            None,
        ),
        (
            {"summary.json": '{"overall": {"sampled": 5}}'},
            {"workflow": "rubric-judge-audit", "records": 6},
            "partial",
            "5 of 6",
        ),
        ({"summary.json": '{"status": "completed"}'}, {"workflow": "rejection-sampling"}, "complete", None),
        (
            {"round-001/receipt.json": '{"accepted": 3}'},
            {"workflow": "rejection-sampling", "rounds": 2},
            "incomplete",
            "1 of 2 rounds",
        ),
        (
            {"rollouts/step_0/eval/all/traces.jsonl": '{"rewards": {"r": 1}}\n' * 2},
            {"workflow": "search-agent", "rows": 2},
            "complete",
            None,
        ),
        (
            {"rollouts/step_0/eval/all/traces.jsonl": '{"rewards": {"r": 1}}\n'},
            {"workflow": "search-agent", "rows": 2},
            "partial",
            "1 of 2",
        ),
        (
            {"rollouts/step_0/eval/all/traces.jsonl": '{"rewards": {"r": 1}}\n'},
            {"workflow": "search-agent"},
            "complete",
            None,
        ),
        (
            {
                "averages.jsonl": GOOD,
                ".primebeaker/evaluation/result.json": '{"reason": "time_limit", "exit_code": 124}',
            },
            {},
            "failed",
            "time_limit, exit code 124",
        ),
        (
            {"averages.jsonl": GOOD, ".primebeaker/evaluation/result.json": '{"reason": "completed"}'},
            {},
            "complete",
            None,
        ),
    ],
)
def test_the_status_table(
    tmp_path: Path, files: dict[str, str], options: dict[str, Any], status: str, error: str | None
) -> None:
    outcome = judge(tmp_path / "r", files, **options)
    assert outcome.status == status
    if error is not None:
        assert error in (outcome.error or "")


def test_a_live_worker_decides_first(tmp_path: Path) -> None:
    beat = datetime.now(UTC).isoformat()
    files = {"averages.jsonl": GOOD, ".primebeaker/evaluation/owner.json": json.dumps({"heartbeat_at": beat})}
    assert judge(tmp_path / "r", files).status == "running"
    files[".primebeaker/evaluation/owner.json"] = '{"heartbeat_at": "2020-01-01T00:00:00Z"}'
    assert judge(tmp_path / "s", files).status == "complete"


def test_runs_are_aggregated_with_the_population_deviation() -> None:
    assert aggregate("d", [0.5, 0.75, 1.0]) == ("d", 3, 0.75, 0.2041241452319315, 0.5, 1.0)
    repeated = read_summary(b'{"dataset":"d","run":1,"accuracy":0}\n{"dataset":"d","run":1,"accuracy":1}\n')
    assert repeated.benchmarks["d"].mean == 1
    assert repeated.duplicates == ["d run 1"]


@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_a_reason(data: bytes) -> None:
    for read in (read_averages, read_summary):
        found = read(data)
        assert all(math.isfinite(item.mean) for item in found.benchmarks.values())
        assert found.bad is None or found.bad.line >= 1


@pytest.mark.parametrize(
    ("document", "model", "run_dir", "workflow"),
    [
        ({"evaluation": {"model": "/m/step_1", "run_dir": "/r"}}, "/m/step_1", "/r", "moss"),
        ({"workflow": "standard", "model": "org/m", "run_dir": "/r"}, "org/m", "/r", "standard"),
        ({"workflow": "search-agent", "search_agent": {"model": "/m/", "run_dir": "/r"}}, "/m", "/r", "search-agent"),
        (
            {"workflow": "rubric-judge-audit", "inference": {"model": "m"}, "outputs": {"audit_dir": "/a"}},
            "m",
            "/a",
            "rubric-judge-audit",
        ),
        (
            {"workflow": "rejection-sampling", "rejection": {"model": "m", "output_dir": "/o"}},
            "m",
            "/o",
            "rejection-sampling",
        ),
        (
            {"workflow": "tool-use", "arguments": {"model_path": "/m", "output_path": "/o/x.parquet"}},
            "/m",
            "/o",
            "tool-use",
        ),
    ],
)
def test_what_an_evaluation_yaml_evaluates(document: Any, model: str, run_dir: str, workflow: str) -> None:
    subject = subject_of(document, "/c.yaml", "/repo")
    assert subject is not None
    assert (subject.model, subject.run_dir, subject.workflow) == (model, run_dir, workflow)


def test_other_yamls_and_archives() -> None:
    assert subject_of({"schema": "primebeaker.services/v1"}, "/c", "/repo") is None
    assert subject_of(["a"], "/c", "/repo") is None
    log = b"noise\xff\nLaunching LiteRegistry stack for /m/step_3\n"
    assert archive_subject("/a", log)[:4] == ("/m/step_3", True, "/a/launcher.log", "moss-archive")
    assert archive_subject("/a", None)[:4] == ("", False, "/a", "moss-archive")
    audit = {
        "workflow": "rubric-judge-audit",
        "inference": {"model": "m"},
        "sample": {"min_step": 0, "max_step": 10, "rubrics_per_step": 2},
    }
    subject = subject_of(audit, "/c", "/repo")
    assert subject is not None
    assert subject.expected == {"records": 6}


UID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("manifests", "dataset", "chosen", "tied"),
    [
        ({"/m/a.json": {"train_path": "/d/x_train.jsonl"}}, "/d/x_train.jsonl", "/m/a.json", 0),
        ({"/m/a.json": {"train_path": "/e/x_train.jsonl"}}, "/d/x_validation.parquet", "/m/a.json", 0),
        ({"/m/a.json": {"train_path": "/e/other.jsonl"}}, "/d/otherwise.jsonl", None, 0),
        ({f"/m/{UID}.json": {"train_path": "/e/p.jsonl"}}, f"/d/q-{UID.upper()}.jsonl", f"/m/{UID}.json", 0),
        (
            {"/m/a.json": {"train_path": "/e/x.jsonl"}, "/d/b.json": {"train_path": "/f/x.jsonl"}},
            "/d/x.jsonl",
            "/d/b.json",
            0,
        ),
        (
            {
                "/m/a.json": {"train_path": "/e/x.jsonl", "sources": [{"name": "s", "weight": 1}]},
                "/d/b.json": {"train_path": "/f/x.jsonl"},
            },
            "/d/x.jsonl",
            None,
            2,
        ),
    ],
)
def test_the_manifest_of_a_dataset(manifests: dict[str, Any], dataset: str, chosen: str | None, tied: int) -> None:
    facts = {path: manifest_facts({"sources": [], **value}, path, "/repo") or {} for path, value in manifests.items()}
    found = match_manifest(dataset, facts)
    assert (found.path, len(found.tied)) == (chosen, tied)


def test_sources_keep_their_names_and_only_real_numbers() -> None:
    facts = manifest_facts(
        {
            "sources": [
                {"name": "a", "weight": True},
                {"name": "a", "weight": float("inf")},
                {"path": "p", "train_quota": 1.5},
            ]
        },
        "/m.json",
        "/repo",
    )
    assert facts is not None
    assert [(item["source_name"], item["weight"], item["train_quota"]) for item in facts["sources"]] == [
        ("a", None, None),
        ("a#2", None, None),
        ("#2", None, None),
    ]
    assert facts["sources"][2]["source_path"] == "/repo/p"
