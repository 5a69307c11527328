"""A whole family with every state of an evaluation six times; what must come out is written down here by hand.

Qwen/Qwen3-0.6B -> chat-sft@20 -> math-rl@5,10,15 (launch, two resumes) -> math-rl2@20
                               -> joint-rl@10 (with a service experiment)
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from primebeaker.watcher import details, lineage, lists, summary
from primebeaker.watcher.database import reading
from primebeaker.watcher.references import resolve_reference

from .conftest import Tree, age, as_nobody, write
from .test_family import rows

CHECKPOINTS = ("chat-sft@20", "math-rl@5", "math-rl@10", "math-rl@15", "math-rl2@20", "joint-rl@10")
ROW = (
    '{"dataset": "a", "runs": 2, "mean_accuracy": %s, "stdev_accuracy": 0.1, "min_accuracy": 0.1, "max_accuracy": 1}\n'
)
SUMMARY = '{"dataset": "a", "run": 1, "accuracy": 0.25}\n'
#: status -> (files, overall score, provisional, error or None)
STATES: dict[str, tuple[dict[str, str], float | None, int, str | None]] = {
    "complete": ({"averages.jsonl": ROW % 0.5 + ROW.replace('"a"', '"b"') % 0.7}, 0.6, 0, None),
    "partial": ({"averages.jsonl": ROW % 0.4}, 0.4, 0, "1 of 2 datasets missing: b"),
    "running": ({"averages.jsonl": "", "summary.jsonl": SUMMARY}, 0.25, 1, None),
    "incomplete": ({"averages.jsonl": "", "summary.jsonl": SUMMARY}, 0.25, 1, "1 of 2 datasets missing: b"),
    "failed": ({"failure.json": '{"error": "no GPU"}'}, None, 0, "no GPU"),
    "not_started": ({}, None, 0, None),
    "missing": ({"averages.jsonl": ROW % 0.9 + ROW.replace('"a"', '"b"') % 0.9}, 0.9, 0, None),
    "unreadable": ({"averages.jsonl": ROW % 0.8 + ROW.replace('"a"', '"b"') % 0.8}, 0.8, 0, "permission denied"),
    "unconfigured": ({}, None, 0, None),
}


def joint(tree: Tree, base: Path) -> None:
    """An RL run launched together with its services."""
    config = tree.rl("joint-rl", str(base))
    tree.checkpoint("joint-rl", 10)
    run_file = write(
        tree.repo / "specs/joint.yaml",
        f"schema: primebeaker.run/v1\nservice:\n  terminal_replicas: 1\nrl:\n  toml: {config}\n",
    )
    values = {
        "OUTPUT_DIR": tree.runs / "joint-rl",
        "CONFIG_PATH": config,
        "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID": "01SERVICE",
    }
    spec = {"tasks": [{"envVars": [{"name": name, "value": str(value)} for name, value in values.items()]}]}
    write(tree.repo / "specs/joint-rl.json", json.dumps(spec))
    receipt = {"experiment_id": "01JOINT", "experiment_name": "joint-rl", "submitted_at": "2023-11-05T00:00:00Z"}
    write(tree.repo / "specs/joint-rl.receipt.json", json.dumps(receipt))
    record = {
        "schema": "primebeaker.run_receipt/v1",
        "state": "launched",
        "config": str(run_file),
        "service": {"experiment_id": "01SERVICE"},
        "rl": {"experiment_id": "01JOINT"},
    }
    write(tree.runs / "joint-rl/primebeaker_run.json", json.dumps(record))


def evaluations(tree: Tree) -> None:
    for status, (files, *_) in STATES.items():
        for checkpoint in CHECKPOINTS:
            run, _, step = checkpoint.partition("@")
            name = f"{status}-{checkpoint.replace('@', '-')}"
            model = tree.runs / run / f"weights/step_{step}"
            if status == "unconfigured":
                write(
                    tree.repo / f"examples/configs/eval/{name}.yaml",
                    f"evaluation:\n  model: {model}\n  datasets: [a, b]\n",
                )
                continue
            tree.evaluation(name, str(model), more="  datasets: [a, b]\n")
            for file, text in files.items():
                write(tree.results / name / file, text)


def test_the_whole_family_in_every_state(family: Tree) -> None:
    for path in (family.repo / "examples/configs/eval").iterdir():
        path.unlink()
    joint(family, family.runs / "chat-sft/weights/step_20")
    evaluations(family)
    age(family.root, time.time() - 7200)
    for checkpoint in CHECKPOINTS:
        age(family.results / f"running-{checkpoint.replace('@', '-')}", time.time() - 60)
    family.update()
    for checkpoint in CHECKPOINTS:
        shutil.rmtree(family.results / f"missing-{checkpoint.replace('@', '-')}")
        (family.results / f"unreadable-{checkpoint.replace('@', '-')}").chmod(0)
    as_nobody(family)

    # Evaluations: nine states, six of each, their scores and reasons.
    found = rows(
        family,
        "SELECT e.config_path, e.status, round(e.overall, 9), e.provisional, e.error, r.name || '@' || c.step"
        " FROM evaluations e JOIN checkpoints c ON c.id = e.checkpoint_id JOIN runs r ON r.id = c.run_id",
    )
    assert len(found) == 54
    expected = {
        (f"{status}-{checkpoint.replace('@', '-')}", status, overall, provisional, error, checkpoint)
        for status, (_files, overall, provisional, error) in STATES.items()
        for checkpoint in CHECKPOINTS
    }
    assert {(Path(str(row[0])).stem, *row[1:]) for row in found} == expected
    assert rows(family, "SELECT count(*) FROM evaluations WHERE missing_since IS NOT NULL") == [(6,)]
    assert rows(family, "SELECT count(*) FROM evaluation_benchmarks") == [(6 * (2 + 1 + 1 + 1 + 2 + 2),)]

    # Runs: stage, state, best final score (an unreadable result keeps what is known), evaluations that are there.
    with reading(family.database) as connection:
        listed = lists.list_runs(connection, {"sort": "name"})["items"]
        status, _ = summary.status(family.database, warn=lambda _line: None)
        graph = lineage.lineage_graph(connection, resolve_reference(connection, "math-rl2"), direction="up")
        shown = details.show_model(connection, resolve_reference(connection, "joint-rl@10", kinds=("checkpoint",)))
    assert [
        (row["name"], row["stage"], row["state"], row["last_step"], row["best_overall"], row["evaluation_count"])
        for row in listed
    ] == [
        ("chat-sft", "sft", "finished", 20, 0.8, 8),
        ("joint-rl", "rl", "stopped", 10, 0.8, 8),
        ("math-rl", "rl", "stopped", 15, 0.8, 24),
        ("math-rl2", "rl", "finished", 20, 0.8, 8),
    ]
    assert (status["rl_checkpoints"], status["sft_checkpoints"], status["training_stages"]) == (5, 1, 4)
    assert (status["rl_outputs"], status["sft_outputs"]) == (3, 1)
    assert (status["evaluations"], status["missing"]) == (48, 6)

    # Lineage.
    assert rows(
        family,
        "SELECT r.name, e.relation, p.name || '@' || c.step, e.parent_ref FROM lineage_edges e JOIN runs r"
        " ON r.id = e.child_run_id LEFT JOIN checkpoints c ON c.id = e.parent_checkpoint_id LEFT JOIN runs p"
        " ON p.id = c.run_id ORDER BY r.name",
    ) == [
        ("chat-sft", "base_model", None, "Qwen/Qwen3-0.6B"),
        ("joint-rl", "init", "chat-sft@20", str(family.runs / "chat-sft/weights/step_20")),
        ("math-rl", "init", "chat-sft@20", str(family.runs / "chat-sft/weights/step_20")),
        ("math-rl2", "init", "math-rl@15", str(family.runs / "math-rl/weights/step_15")),
    ]
    named = {node["id"]: node["label"] for node in graph["nodes"]}
    chain = {(named[edge["from"]], named[edge["to"]]) for edge in graph["edges"]}
    assert chain >= {
        ("Qwen/Qwen3-0.6B", "chat-sft"),
        ("chat-sft", "chat-sft@20"),
        ("chat-sft@20", "math-rl"),
        ("math-rl", "math-rl@15"),
        ("math-rl@15", "math-rl2"),
    }
    assert [item["name"] for item in shown["ancestors"]] == ["chat-sft"]
    assert shown["counts"]["training_runs"] == 2

    # Attempts, and which of them wrote which checkpoint.
    assert rows(
        family,
        "SELECT r.name, a.ordinal, a.kind, a.experiment_id, a.service_experiment_id, a.resume_step,"
        " a.joint_config_path FROM attempts a JOIN runs r ON r.id = a.run_id ORDER BY r.name, a.ordinal",
    ) == [
        ("joint-rl", 1, "launch", "01JOINT", "01SERVICE", None, str(family.repo / "specs/joint.yaml")),
        ("math-rl", 1, "launch", "01A", None, None, None),
        ("math-rl", 2, "resume", "01one", None, 5, None),
        ("math-rl", 3, "resume", "01two", None, 10, None),
    ]
    assert rows(
        family,
        "SELECT c.step, a.ordinal FROM checkpoints c JOIN runs r ON r.id = c.run_id LEFT JOIN attempts a"
        " ON a.id = c.attempt_id WHERE r.name = 'math-rl' ORDER BY c.step",
    ) == [(5, 1), (10, 2), (15, 3)]
