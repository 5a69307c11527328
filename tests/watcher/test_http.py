"""The JSON interface and the pages: contracts, refusals, escaping, and a fuzz from its own description."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primebeaker.watcher import assets
from primebeaker.watcher.app import create_app

from .conftest import Tree, write

Ask = Callable[..., "Reply"]


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


def asker(application: Any) -> Ask:
    def ask(target: str, *, method: str = "GET", **headers: str) -> Reply:
        path, _, query = target.partition("?")
        given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": re.sub("%([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(application(scope, receive, send))
        found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))

    return ask


@pytest.fixture
def ask(family: Tree) -> Ask:
    family.update()
    return asker(create_app(database=family.database))


def test_every_route_answers(ask: Ask) -> None:
    runs = ask("/api/runs").json
    assert [row["name"] for row in runs["items"]] == ["chat-sft", "math-rl", "math-rl2"]
    assert (runs["count"], runs["total"], runs["next_cursor"]) == (3, 3, None)
    key = runs["items"][1]["key"]
    detail = ask(f"/api/runs/{key}").json
    assert [row["step"] for row in detail["checkpoints"]] == [5, 10, 15]
    assert detail["hyperparameters"]["learning_rate"] == 1e-5
    assert "hf_" not in json.dumps(detail)
    assert ask(f"/api/runs/{key}/config").body.decode().startswith("output_dir")
    assert ask(f"/api/runs/{key}/config?format=flat").json["max_steps"] == 20
    checkpoint = detail["checkpoints"][2]
    assert ask(f"/api/checkpoints/{checkpoint['key']}").json["children"][0]["name"] == "math-rl2"
    evaluation = checkpoint["evaluations"][0]
    assert ask(f"/api/evaluations/{evaluation['key']}").json["overall"] == pytest.approx(0.6)
    others = [row["key"] for row in runs["items"]]
    compared = ask(f"/api/compare?ref={others[0]}&ref={others[1]}").json
    assert compared["benchmarks"][0]["cells"][1]["delta"] == pytest.approx(0.1)
    assert ask(f"/api/diff?left={others[1]}&right={others[2]}").json["identity"]
    assert ask(f"/api/lineage/{key}?direction=up").json["truncated"] is False
    for path in ("/api/overview", "/api/issues", "/api/scans", "/api/openapi.json", "/health"):
        assert ask(path).status == 200, path
    for path in (
        "/",
        "/runs",
        f"/runs/{key}",
        f"/checkpoints/{checkpoint['key']}",
        "/evaluations",
        f"/evaluations/{evaluation['key']}",
        f"/compare?ref={others[0]}&ref={others[1]}",
        f"/lineage/{key}",
        "/issues",
    ):
        reply = ask(path)
        assert reply.status == 200, path
        assert reply.body.count(b"<h1") == 1
        assert not re.search(rb"\sstyle=|\son[a-z]+=|<script>", reply.body)


def test_the_older_routes_keep_their_fields(ask: Ask) -> None:
    listed = ask("/api/models").json
    assert list(listed) == ["models", "count", "query", "total"]
    assert list(listed["models"][0]) == [
        "id",
        "model_path",
        "output_dir",
        "checkpoint_step",
        "indexed_at",
        "checkpoint_count",
        "evaluation_count",
        "stage",
        "wandb_count",
        "dataset_count",
        "name",
        "has_evaluations",
        "key",
    ]
    entry = next(item for item in listed["models"] if item["name"] == "math-rl2")
    assert entry["evaluation_count"] == 1
    found = ask(f"/api/models/{entry['id']}").json
    assert list(found) == ["model", "checkpoints", "training_runs", "datasets", "evaluations"]
    assert [run["stage"] for run in found["training_runs"]] == ["rl", "rl", "sft"]
    assert ask("/api/models/999999").status == 404
    assert ask(f"/api/models/{entry['id']}/metrics").json["charts"] == []


def test_an_unchanged_answer_is_304_and_a_changed_index_is_not(ask: Ask, family: Tree) -> None:
    for path in ("/api/runs", "/runs", "/api/overview"):
        tag = ask(path).headers["etag"]
        again = ask(path, if_none_match=tag)
        assert (again.status, again.body) == (304, b"")
    family.sft("another")
    family.update()
    assert ask("/api/runs", if_none_match=tag).status == 200
    assert ask("/api/overview").json["counts"]["training_stages"] == 4


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("/api/runs?limit=0", 422, "limit = 0: expected a whole number from 1 to 1000"),
        ("/api/runs?limt=5", 422, "did you mean 'limit'"),
        ("/api/runs?sort=nme", 422, "did you mean 'name'"),
        ("/api/runs?cursor=zzz", 422, "next_cursor"),
        ("/api/runs?q=" + "a" * 301, 422, "at most 300"),
        ("/api/runs/000000000000", 404, "no run"),
        ("/api/runs/..%2f..%2fetc%2fpasswd", 404, ""),
        ("/assets/..%2fwatcher.py", 404, ""),
        ("/assets/%2fetc%2fpasswd", 404, ""),
        ("/api/compare?ref=000000000000", 422, "expected 2 to 10"),
        ("/api/nothing", 404, ""),
        ("/api/runs?x=" + "a" * 9000, 400, "8 KiB"),
    ],
)
def test_a_wrong_request_is_one_sentence(ask: Ask, target: str, status: int, words: str) -> None:
    reply = ask(target)
    assert reply.status == status
    assert words in reply.json["detail"]


def test_who_may_ask(family: Tree) -> None:
    family.update()
    open_to_all = asker(create_app(database=family.database, hosts=frozenset({"watch.lab"})))
    assert open_to_all("/api/runs", host="evil.example").status == 403
    assert open_to_all("/api/runs", host="watch.lab:8790").status == 200
    assert open_to_all("/api/runs", host="127.0.0.1:1").status == 200
    assert open_to_all("/api/runs", sec_fetch_site="cross-site").status == 403
    assert open_to_all("/api/runs", method="DELETE").status == 405
    assert open_to_all("/api/scan", method="POST", origin="http://localhost").status == 404
    assert open_to_all("/api/scan", method="POST", origin="http://evil").status == 403
    guarded = asker(create_app(database=family.database, token="s3cret-token"))
    assert guarded("/api/runs").status == 401
    assert guarded("/health").status == 200
    assert guarded("/api/runs", authorization="Bearer s3cret-token").status == 200
    assert guarded("/api/runs", authorization="Bearer wrong").status == 401
    login = guarded("/runs?q=a&token=s3cret-token")
    assert (login.status, login.headers["location"]) == (303, "/runs?q=a")
    assert "HttpOnly" in login.headers["set-cookie"]
    assert guarded("/runs", cookie=login.headers["set-cookie"].partition(";")[0]).status == 200


def test_every_answer_has_the_security_headers(ask: Ask) -> None:
    for path in ("/", "/api/runs", "/nowhere", "/api/runs?limit=0"):
        headers = ask(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "name", ["<script>alert(1)<script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "\u202eevil", "a&b"]
)
def test_names_are_escaped_on_every_page(tree: Tree, name: str) -> None:
    tree.train(
        "odd", f"output_dir = {json.dumps(str(tree.runs / name))}\n[data]\ntype = 'sft'\nname = {json.dumps(name)}\n"
    )
    checkpoint = tree.checkpoint(name, 3)
    path = write(
        tree.repo / "examples/configs/eval/odd.yaml",
        json.dumps({"evaluation": {"model": str(checkpoint), "run_dir": str(tree.results / "r")}}),
    )
    assert path.exists()
    write(
        tree.results / "r/averages.jsonl",
        json.dumps(
            {
                "dataset": name,
                "runs": 1,
                "mean_accuracy": 0.5,
                "stdev_accuracy": 0,
                "min_accuracy": 0.5,
                "max_accuracy": 0.5,
            }
        ),
    )
    tree.update()
    ask = asker(create_app(database=tree.database))
    run = ask("/api/runs").json["items"][0]
    assert run["name"] == name
    assert run["scores"] == {name: 0.5}
    evaluation = ask("/api/evaluations").json["items"][0]["key"]
    for page in (
        "/",
        "/runs",
        f"/runs/{run['key']}",
        "/evaluations",
        f"/evaluations/{evaluation}",
        f"/lineage/{run['key']}",
    ):
        body = ask(page).body.decode()
        assert "<script>alert" not in body, page
        assert "<img" not in body, page
        assert "49" not in re.findall(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL), page


def test_a_fuzz_from_the_description_never_finds_a_fault(ask: Ask) -> None:
    description = ask("/api/openapi.json").json
    runs = ask("/api/runs").json["items"]
    generator = random.Random(5)
    odd = [
        "",
        "0",
        "-1",
        "1e309",
        "nan",
        "true",
        "%00",
        "%27%22%3B--",
        "%F0%9F%A6%86",
        "x" * 400,
        "asc",
        "benchmark:",
        "name",
        "..%2F",
        "%ff",
    ]
    keys = [row["key"] for row in runs] + ["zz", "000000000000", "1", "99999999999999999999"]
    for path, methods in description["paths"].items():
        if "get" not in methods or path == "/api/events":
            continue
        for _ in range(60):
            target = re.sub(r"{\w+}", lambda _match: generator.choice(keys), path)
            pairs = []
            for parameter in methods["get"]["parameters"]:
                if parameter["in"] == "query" and generator.random() < 0.5:
                    choices = parameter["schema"].get("enum", []) + odd + keys
                    pairs.append(f"{parameter['name']}={generator.choice(choices)}")
            reply = ask(target + ("?" + "&".join(pairs) if pairs else ""))
            assert reply.status in (200, 304, 400, 404, 422), (target, pairs, reply.body)
            if reply.headers["content-type"] == "application/json":
                assert reply.json is not None


def test_no_database_says_what_to_run_and_makes_none(tmp_path: Path) -> None:
    ask = asker(create_app(database=tmp_path / "none.sqlite3"))
    page = ask("/")
    assert page.status == 503
    assert b"primebeaker watcher update" in page.body
    assert ask("/api/runs").status == 503
    assert ask("/health").json["ok"] is False
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_index_is_503_until_it_is_good_again(ask: Ask, family: Tree) -> None:
    good = family.database.read_bytes()
    for suffix in ("-wal", "-shm"):
        family.database.with_name(family.database.name + suffix).unlink(missing_ok=True)
    family.database.write_bytes(b"garbage" * 100)
    assert ask("/api/runs").status == 503
    assert ask("/runs").status == 503
    family.database.write_bytes(good)
    assert ask("/api/runs").status == 200


def test_under_a_base_path_every_link_stays_below_it(family: Tree) -> None:
    family.update()
    ask = asker(create_app(database=family.database, base_path="/watch/"))
    body = ask("/watch/runs").body.decode()
    links = re.findall(r'(?:href|src|action)="([^"#]*)"', body)
    assert links
    assert all(link.startswith("/watch/") for link in links)
    assert ask("/watch/api/runs").status == 200
    assert ask("/api/runs").status == 404


def test_shipped_scripts_are_the_recorded_ones_and_small() -> None:
    folder = Path(assets.__file__).parent / "assets"
    for name, record in json.loads((folder / "VERSIONS.json").read_text()).items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == record["sha256"]
        assert (folder / f"{name.partition('.')[0]}.LICENSE").exists()
    served = assets.assets()
    assert sum(len(asset.content) for asset in served.values()) < 250 * 1024
    assert all(
        b"http://" not in asset.content or asset.name in ("favicon.svg", "htmx.js", "uplot.js")
        for asset in served.values()
    )
    ask = asker(create_app(database="/nowhere"))
    for name in served:
        reply = ask(f"/assets/{name}")
        assert (reply.status, "immutable" in reply.headers["cache-control"]) == (200, True)


def test_metrics_of_a_run(family: Tree) -> None:
    rows = [{"step": step, "loss/mean": 1 / step} for step in range(1, 11)]
    rows += [{"step": step, "loss/mean": 2 / step} for step in range(6, 13)]
    rows += [{"step": 13, "loss/mean": float("nan")}, {"step": 14, "loss/mean": True}]
    write(
        family.runs / "chat-sft/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 15, "loss'
    )
    family.update()
    ask = asker(create_app(database=family.database))
    key = next(row["key"] for row in ask("/api/runs").json["items"] if row["name"] == "chat-sft")
    answer = ask(f"/api/runs/{key}/metrics").json
    main, tail = answer["series"]
    assert [point[0] for point in main["points"]] == list(range(1, 13))
    assert main["points"][5][1] == pytest.approx(2 / 6)
    assert (main["non_finite"], main["superseded"]) == (1, False)
    assert ([point[0] for point in tail["points"]], tail["superseded"]) == ([6, 7, 8, 9, 10], True)
    mean = ask(f"/api/runs/{key}/metrics?merge=mean&metric=loss/mean&min_step=6&max_step=6").json["series"]
    assert mean[0]["points"] == [[6, pytest.approx(0.25), pytest.approx(1 / 6), pytest.approx(2 / 6), 2]]
    assert len(ask(f"/api/runs/{key}/metrics?merge=none").json["series"]) == 2
