"""A family of runs: expected lineage, attempts, states and numbers, written out by hand."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time

import pytest

from primebeaker.watcher import details, lineage, lists, summary
from primebeaker.watcher.database import reading
from primebeaker.watcher.references import resolve_reference

from .conftest import Tree, age, write


def rows(tree: Tree, sql: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(tree.database)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def test_the_whole_family(family: Tree) -> None:
    answer = family.update()
    assert answer["indexed_checkpoints"] == 4
    assert answer["indexed_sft_checkpoints"] == 1
    assert answer["unresolved_outputs"] == 0
    assert answer["evaluations_changed"] == 3
    assert rows(family, "SELECT name, stage, state, config_state FROM runs ORDER BY name") == [
        ("chat-sft", "sft", "finished", "ok"),
        ("math-rl", "rl", "stopped", "ok"),
        ("math-rl2", "rl", "finished", "ok"),
    ]
    assert rows(
        family,
        "SELECT ordinal, kind, experiment_id, resume_step, first_step, last_step FROM attempts a JOIN runs r"
        " ON r.id = a.run_id WHERE r.name = 'math-rl' ORDER BY ordinal",
    ) == [(1, "launch", "01A", None, 1, 5), (2, "resume", "01one", 5, 6, 10), (3, "resume", "01two", 10, 11, 15)]
    assert rows(
        family,
        "SELECT wandb_run_id, project, url FROM wandb_runs w JOIN runs r ON r.id = w.run_id WHERE r.name = 'math-rl'",
    ) == [("w1", "p", "https://wandb.ai/e/p/runs/w1")]
    assert rows(family, "SELECT config_path, status, overall, error FROM evaluations ORDER BY config_path") == [
        (str(family.repo / "examples/configs/eval/hub.yaml"), "complete", 0.3, None),
        (str(family.repo / "examples/configs/eval/rl-full.yaml"), "complete", 0.6, None),
        (str(family.repo / "examples/configs/eval/sft-part.yaml"), "partial", 0.4, "1 of 2 datasets missing: b"),
    ]
    with reading(family.database) as connection:
        entity = resolve_reference(connection, "math-rl2@20", kinds=("checkpoint",))
        shown = details.show_model(connection, entity)
        graph = lineage.lineage_graph(connection, entity, direction="up")
    assert [item["name"] for item in shown["ancestors"]] == ["math-rl", "chat-sft"]
    assert shown["provenance"]["sft_output_dir"] == str(family.runs / "chat-sft")
    assert shown["counts"]["training_runs"] == 3
    assert lineage.as_text(graph).splitlines()[0] == "base_model Qwen/Qwen3-0.6B"
    assert [line.split()[1] for line in lineage.as_text(graph).splitlines()] == [
        "Qwen/Qwen3-0.6B",
        "chat-sft",
        "chat-sft@20",
        "math-rl",
        "math-rl@15",
        "math-rl2",
        "math-rl2@20",
    ]


def test_a_second_scan_of_an_unchanged_tree_changes_nothing(family: Tree) -> None:
    family.update()
    before = rows(family, "SELECT value FROM meta WHERE name = 'generation'")
    answer = family.update()
    assert (answer["files_parsed"], answer["indexed_checkpoints"], answer["evaluations_changed"]) == (0, 0, 0)
    assert answer["skipped_indexed"] == 5
    assert rows(family, "SELECT value FROM meta WHERE name = 'generation'") == before


def test_a_result_that_arrives_later_appears(family: Tree) -> None:
    family.evaluation("late", str(family.runs / "math-rl/weights/step_10"))
    family.update()
    assert rows(family, "SELECT status FROM evaluations WHERE config_path LIKE '%late.yaml'") == [("not_started",)]
    family.averages("late", a=0.9)
    age(family.results / "late")
    answer = family.update()
    assert (answer["evaluations_changed"], answer["indexed_checkpoints"]) == (1, 0)
    assert rows(family, "SELECT status, overall FROM evaluations WHERE config_path LIKE '%late.yaml'") == [
        ("complete", 0.9)
    ]


def test_a_deleted_checkpoint_is_missing_and_keeps_its_key_when_it_returns(family: Tree) -> None:
    family.update()
    place = family.runs / "math-rl/weights/step_10"
    key = rows(family, "SELECT id, key FROM checkpoints WHERE path = ?", str(place))
    shutil.rmtree(place)
    assert family.update()["removed"] == 1
    assert rows(family, "SELECT missing_since IS NULL FROM checkpoints WHERE path = ?", str(place)) == [(0,)]
    family.checkpoint("math-rl", 10)
    family.update()
    assert rows(family, "SELECT id, key FROM checkpoints WHERE path = ? AND missing_since IS NULL", str(place)) == key


def test_a_moved_run_keeps_key_id_and_answers_to_both_places(family: Tree) -> None:
    family.update()
    old, new = family.runs / "math-rl", family.runs / "moved-rl"
    before = rows(family, "SELECT id, key FROM runs WHERE name = 'math-rl'")
    old.rename(new)
    family.update()
    assert rows(family, "SELECT id, key FROM runs WHERE run_dir = ?", str(new)) == before
    assert rows(family, "SELECT count(*) FROM runs") == [(3,)]
    with reading(family.database) as connection:
        assert resolve_reference(connection, str(old)).key == before[0][1]
        detail = details.run_detail(connection, resolve_reference(connection, "math-rl2"))
    assert detail["parents"][0]["run"] == before[0][1]


def test_a_vanished_root_does_not_empty_the_index(family: Tree) -> None:
    family.update()
    for name in ("runs", "results", "repo"):
        (family.root / name).rename(family.root / f"{name}-unmounted")
    (family.root / "other").mkdir()
    answer = family.update(given=family.given(archive_roots=(str(family.root / "other"),)))
    assert answer["removed"] == 0
    assert rows(family, "SELECT count(*) FROM runs WHERE missing_since IS NULL") == [(3,)]
    assert rows(family, "SELECT count(*) FROM evaluations WHERE missing_since IS NULL") == [(3,)]
    assert "root_vanished" in {row[0] for row in rows(family, "SELECT code FROM issues")}


def test_two_different_tomls_for_one_run_are_reported_and_nothing_is_guessed(family: Tree) -> None:
    text = (family.repo / "examples/configs/train/math-rl2.toml").read_text()
    family.train("other", text.replace("1e-5", "2e-5"))
    family.train("same-again", "# a comment\n" + text)
    answer = family.update()
    assert answer["unresolved_outputs"] == 1
    assert answer["unresolved"][0]["output_dir"] == str(family.runs / "math-rl2")
    assert len(answer["unresolved"][0]["configs"]) == 3
    assert rows(family, "SELECT config_state FROM runs WHERE name = 'math-rl2'") == [("ambiguous",)]
    assert rows(
        family, "SELECT count(*) FROM checkpoints c JOIN runs r ON r.id = c.run_id WHERE r.name = 'math-rl2'"
    ) == [(1,)]


def test_secrets_are_stored_nowhere(family: Tree) -> None:
    family.train(
        "leak",
        'output_dir = "/nowhere/leak"\n[data]\ntype="sft"\nname="d"\n[wandb]\napi_key = "hunter2hunter2"\n# hf_'
        + "q" * 20,
    )
    family.evaluation("leaky", "m/x", more="  api_key: hunter3hunter3\n")
    write(
        family.repo / "specs/secret.json",
        json.dumps({"tasks": [{"envVars": [{"name": "OUTPUT_DIR", "value": "redis://u:pw123456@h/x"}]}]}),
    )
    family.update()
    data = family.database.read_bytes()
    for suffix in ("-wal",):
        path = family.database.with_name(family.database.name + suffix)
        data += path.read_bytes() if path.exists() else b""
    for secret in (b"hunter2hunter2", b"hunter3hunter3", b"hf_" + b"x" * 20, b"q" * 20, b"pw123456"):
        assert secret not in data


def test_lineage_cycles_are_cut_and_reported(tree: Tree) -> None:
    tree.rl("a", str(tree.runs / "b/weights/step_1"))
    tree.rl("b", str(tree.runs / "a/weights/step_1"))
    tree.checkpoint("a", 1)
    tree.checkpoint("b", 1)
    tree.update()
    assert rows(tree, "SELECT count(*) FROM issues WHERE code = 'lineage_cycle'") == [(1,)]
    assert rows(tree, "SELECT count(*) FROM lineage_edges") == [(1,)]


@pytest.mark.parametrize(
    "name", ["it's", "<script>alert(1)<script>", "100%_x", "a\nb", "\u202eevil", "🦆", "n" * 255, 'q"uote', "{{7*7}}"]
)
def test_odd_run_names_are_only_names(tree: Tree, name: str) -> None:
    tree.train(
        "odd",
        f"output_dir = {json.dumps(str(tree.runs / name), ensure_ascii=False)}\n[data]\ntype = 'sft'\nname = 'd'\n",
    )
    tree.checkpoint(name, 3)
    tree.update()
    with reading(tree.database) as connection:
        found = lists.list_runs(connection, {"q": name.split()[0], "sort": "name", "limit": 10})
    assert [item["name"] for item in found["items"]] == [name]


def test_status_counts(family: Tree) -> None:
    family.update()
    answer, error = summary.status(family.database, warn=lambda _line: None)
    assert error is None
    assert {
        name: answer[name]
        for name in (
            "rl_checkpoints",
            "sft_checkpoints",
            "rl_outputs",
            "sft_outputs",
            "training_stages",
            "evaluations",
            "benchmark_outcomes",
            "missing",
        )
    } == {
        "rl_checkpoints": 4,
        "sft_checkpoints": 1,
        "rl_outputs": 2,
        "sft_outputs": 1,
        "training_stages": 3,
        "evaluations": 3,
        "benchmark_outcomes": 4,
        "missing": 0,
    }
    assert list(answer)[:5] == ["database", "exists", "size_bytes", "integrity", "schema_version"]


def test_paging_by_any_field_meets_every_row_once(family: Tree) -> None:
    for index in range(7):
        family.evaluation(f"more{index}", str(family.runs / "math-rl/weights/step_5"))
        if index % 2:
            family.averages(f"more{index}", a=index / 10)
    family.update()
    for sort in ("overall", "status", "model", "step", "finished_at", "benchmark:a", "benchmark:nothing"):
        for order in ("asc", "desc"):
            met: list[str] = []
            cursor = None
            with reading(family.database) as connection:
                while True:
                    page = lists.list_evaluations(
                        connection, {"sort": sort, "order": order, "limit": 2, "cursor": cursor}
                    )
                    met += [item["key"] for item in page["items"]]
                    cursor = page["next_cursor"]
                    if cursor is None:
                        break
            assert len(met) == len(set(met)) == page["total"] == 10, (sort, order)


def test_files_of_the_future_are_read_again_and_do_no_harm(family: Tree) -> None:
    path = family.sft("future")
    ahead = time.time() + 86_400
    os.utime(path, (ahead, ahead))
    family.update()
    assert family.update()["files_unchanged"] > 0
    assert rows(family, "SELECT count(*) FROM runs WHERE name = 'future'") == [(1,)]
