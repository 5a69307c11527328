"""Curves fetched with the real W&B client from a web service on this machine; the cache that keeps them."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primebeaker.watcher.app import create_app
from primebeaker.watcher.database import reading
from primebeaker.watcher.metric_cache import MetricStore
from primebeaker.watcher.metrics import Curves, run_metrics
from primebeaker.watcher.references import resolve_reference
from primebeaker.watcher.wandb_fetch import NO_KEY, Fetcher, Wanted, online_key

from .conftest import Tree, age, write
from .test_http import asker
from .wandb_server import KEY, WandbServer, history

NAMES = ("good", "slow", "broken", "absent", "hang", "live")


def logged(tree: Tree, run: str, wandb: str, *, more: str = "") -> None:
    """A run whose launch spec names its W&B run; no metric file."""
    config = tree.rl(run, "Qwen/Qwen3-0.6B", more=more)
    tree.checkpoint(run, 5)
    values = {"OUTPUT_DIR": tree.runs / run, "CONFIG_PATH": config, "WANDB_RUN_ID": wandb}
    values |= {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e"}
    spec = {"tasks": [{"envVars": [{"name": name, "value": str(value)} for name, value in values.items()]}]}
    write(tree.repo / f"specs/{run}.json", json.dumps(spec))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    rows = history(4, **{"optim/grad_norm": 0.5, "entropy/all/mean": 0.25, "rare": 2.0})
    rows.append({"_step": 20, "other/metric": 7.0})
    rows.append({"_step": 21, "step": 5, "entropy/all/mean": "NaN"})
    rows.append({"_step": 22, "_timestamp": 1_700_000_000, "inference/queue": 3.0})
    made = WandbServer(
        {
            "good": {"state": "finished", "history": rows},
            "slow": {"state": "finished", "history": rows, "fault": "429 once"},
            "live": {"state": "running", "history": rows},
            "broken": {"fault": "500"},
            "hang": {"fault": "hang"},
        }
    )
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", made.address)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield made
    made.close()


def sync(tree: Tree, *words: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    command = [sys.executable, "-m", "primebeaker.watcher", "sync", f"--database={tree.database}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (json.loads(done.stdout) if done.stdout else {}), done


def test_a_sync_keeps_what_w_and_b_answers_and_one_bad_run_hides_no_other(
    tree: Tree, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        logged(tree, f"run-{name}", name)
    tree.update()
    # The bounds of the page are a minute; a test has not so long.
    monkeypatch.setattr("primebeaker.watcher.wandb_fetch.REQUEST_SECONDS", 20.0)
    store = MetricStore(tree.database)
    answers: dict[str, Any] = {}
    wanted = [Wanted(f"e/p/{name}", (), ("optim/*", "entropy/*", "inference/*")) for name in NAMES]
    Fetcher(store, rate=600).fetch(wanted, None, lambda answer: answers.update({answer["path"]: dict(answer)}))
    errors = {name: answers[f"e/p/{name}"]["error"] for name in NAMES}
    assert [name for name in NAMES if errors[name] is None] == ["good", "slow", "live"]
    assert "try later" in errors["broken"] or "500" in errors["broken"]
    assert all(errors[name] and len(errors[name]) <= 240 for name in ("broken", "absent", "hang"))
    assert KEY not in json.dumps(errors)
    # At most four tries; the one refused for a moment came a second time.
    assert 1 <= server.count("broken", "run") <= 4
    assert server.count("slow", "run") == 2
    # One query a metric: asked together, only rows holding both would be answered.
    kinds = sorted(kind for run, kind in server.queries if run == "good")
    assert kinds == ["_timestamp,inference/queue", "run", "step,entropy/all/mean", "step,optim/grad_norm"]
    known = store.online("e/p/good")
    assert known is not None
    assert known.state == "finished"
    assert "rare" in known.available
    assert [tuple(point) for point in known.series["optim/grad_norm"].points] == [(1, 0.5), (2, 1), (3, 1.5), (4, 2)]
    assert known.series["entropy/all/mean"].non_finite == 1
    assert [tuple(point) for point in known.series["inference/queue"].points] == [(1_700_000_000, 3)]
    with reading(tree.database) as connection:
        entity = resolve_reference(connection, "run-good")
        answer = run_metrics(connection, entity, Curves.beside(tree.database))
    assert [(row["metric"], row["source"]) for row in answer["series"]] == [
        ("optim/grad_norm", "wandb"),
        ("entropy/all/mean", "wandb"),
    ]
    assert answer["fetched_at"] is not None
    due = Fetcher(store).due([Wanted(f"e/p/{name}", ("optim/grad_norm",)) for name in NAMES])
    assert due == []
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    due = Fetcher(store).due([Wanted(f"e/p/{name}", ("optim/grad_norm",)) for name in NAMES])
    # Finished runs are never asked again, running and failed ones after a minute.
    assert {item.path for item in due} == {f"e/p/{name}" for name in ("broken", "absent", "hang", "live")}
    assert Fetcher(store).due([Wanted("e/p/good", ("other/metric",))]) == [Wanted("e/p/good", ("other/metric",))]


def test_the_commands_sync_and_the_page_share_one_cache(tree: Tree, server: WandbServer) -> None:
    logged(tree, "online", "good")
    logged(tree, "both", "live")
    write(tree.runs / "both/metrics.jsonl", '{"step": 1, "optim/grad_norm": 9}\n{"step": 2, "optim/grad_norm": 8}\n')
    age(tree.root, time.time() - 7200)
    tree.update()
    ask = asker(create_app(database=tree.database))
    keys = {row["name"]: row["key"] for row in ask("/api/runs").json["items"]}
    # Its own file holds the curve, so W&B is not asked.
    local = ask(f"/api/runs/{keys['both']}/metrics").json
    assert [row["source"] for row in local["series"]] == ["file"]
    assert server.queries == []
    fetched = ask(f"/api/runs/{keys['online']}/metrics?metric=other/metric").json
    assert [(row["metric"], row["points"]) for row in fetched["series"]] == [("other/metric", [[20, 7, 7, 7, 1]])]
    assert [(row["source"], row["state"], row["error"]) for row in fetched["sources"]] == [("wandb", "finished", None)]
    asked = len(server.queries)
    assert ask(f"/api/runs/{keys['online']}/metrics?metric=other/metric").json["series"] == fetched["series"]
    assert len(server.queries) == asked
    answer, done = sync(tree, "--runs=online,both", "--metrics=rare,optim/*", "--max_requests_per_minute=600")
    assert (done.returncode, done.stderr) == (0, "")
    assert (answer["runs"], answer["files"], answer["wandb_runs"], answer["failures"]) == (2, 1, 1, [])
    assert stat.S_IMODE(os.stat(answer["cache"]).st_mode) == 0o600
    series = ask(f"/api/runs/{keys['online']}/metrics?metric=rare").json["series"]
    assert [point[1] for point in series[0]["points"]] == [2, 4, 6, 8]
    # The index itself holds none of it.
    assert b"other/metric" not in tree.database.read_bytes()
    assert (tree.root / "wandb").exists() is False


def test_a_refused_key_is_said_once_a_run_and_exits_1(
    tree: Tree, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(tree, "online", "good")
    tree.update()
    monkeypatch.setenv("WANDB_API_KEY", KEY[::-1])
    answer, done = sync(tree, "--source=wandb")
    assert done.returncode == 1
    assert [item["path"] for item in answer["failures"]] == ["e/p/good"]
    assert "Traceback" not in done.stderr
    assert KEY[::-1] not in done.stdout + done.stderr


def test_without_a_key_the_page_says_how_to_give_one(
    tree: Tree, server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    logged(tree, "online", "good")
    tree.update()
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    ask = asker(create_app(database=tree.database))
    key = ask("/api/runs").json["items"][0]["key"]
    answer = ask(f"/api/runs/{key}/metrics").json
    assert answer["series"] == []
    assert answer["sources"][0]["error"].startswith(NO_KEY)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('echo "$@" > {folder}/asked; echo " {key} "', None),
        ("echo {key} >&2; exit 3", "beaker secret read my-key ended with 3"),
        ("exit 0", "ended with 0"),
    ],
)
def test_the_key_may_be_a_named_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str | None
) -> None:
    program = write(tmp_path / "bin/beaker", "#!/bin/sh\n" + script.format(folder=tmp_path, key=KEY) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    if words is None:
        assert online_key("my-key", {}) == KEY
        assert (tmp_path / "asked").read_text() == "secret read my-key\n"
        assert online_key("my-key", {"WANDB_API_KEY": "own"}) == "own"
        assert online_key(None, {}) is None
    else:
        with pytest.raises(OSError, match=words) as caught:
            online_key("my-key", {})
        assert KEY not in str(caught.value)


def test_the_cache_keeps_within_its_bound_and_may_be_damaged_or_deleted(tmp_path: Path) -> None:
    store = MetricStore(tmp_path / "index.sqlite3", limit=60_000)
    for index in range(20):
        points = [[step, (step * 7919 + index) % 1000 / 7] for step in range(2000)]
        series = {"m": {"points": points, "non_finite": 0}}
        store.put_online(f"e/p/{index}", {"state": "finished", "available": ["m"], "series": series})
    kept = [index for index in range(20) if (known := store.online(f"e/p/{index}")) and known.series]
    assert 0 < len(kept) < 20
    assert kept[-1] == 19
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT sum(length(points)) FROM series").fetchone()[0] <= 60_000
    connection.close()
    store.path.write_bytes(b"no database" * 100)
    assert store.online("e/p/19") is None
    store.put_file("/a", "1", {"x": 1})
    assert store.file("/a", "1") == {"x": 1}
    assert store.file("/a", "2") is None
    store.path.unlink()
    assert store.file("/a", "1") is None
    assert MetricStore(Path("/nowhere/index.sqlite3")).online("e/p/1") is None
    MetricStore(Path("/nowhere/index.sqlite3")).put_file("/a", "1", {})
