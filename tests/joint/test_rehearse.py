"""A joint run on this machine: LiteRegistry's own gateway and Python service, the training's stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.ports import free_block

from primebeaker.joint.rehearse import STAND_IN_TOKEN, rehearse_run
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.report_text import report_text

from .processes import watched

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> int:
    return free_block(1)


#: The model runs Python first, and only answers when the service's own result comes back.
SCRIPT = [
    {"match": "Criterion:", "reply": "<code>\n```python\nprint('made-of-' + str(6 * 7))\n```\n</code>"},
    {"match": "made-of-42", "reply": "<feedback>It ran.</feedback>\n<label>pass</label>"},
]


def test_the_training_waits_for_real_services_uses_them_and_stops_them(
    run_file, mount: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    engine = LocalEngine(tmp_path / "engine")
    toml = mount / "train.toml"
    url = f'code_server_url = "http://127.0.0.1:{port}/python"'
    text = toml.read_text().replace("jtc_label_env", "jtc_code_tool_label_env")
    toml.write_text(text.replace('split = "train"', f'split = "train"\n{url}'))
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    config = run_file(rl=f"required_services: {{python: 3, judge: 1, unheard-of: 1}}\ngateway_port: {port}")
    before = config.read_bytes()
    options = RehearsalOptions(steps=1, model=f"scripted:{tmp_path / 'script.json'}")
    with watched(STAND_IN_TOKEN) as holders:
        report = rehearse_run(config, options, engine=engine)
    assert report["ok"], report["failure"]
    assert report["services"]["stopped_by_training"] is True
    assert report_text(report).endswith(f"primebeaker run launch --config {config}")
    # Both replicas are given the token, as on Beaker; no process they start has it, the leader's stop call excepted.
    # Rehearsals of other tests may run beside this one.
    stop_call = f"stop {report['services']['experiment_id']}"
    ours = (report["experiment_id"], report["services"]["experiment_id"])
    own = [holder for holder in holders.values() if holder.experiment in ours and stop_call not in holder.command]
    assert len(own) >= 2
    assert all("primebeaker.multinode" in holder.command for holder in own), own
    assert {holder.experiment for holder in own} == {report["experiment_id"]}
    assert report["services"]["native"][:2] == ["gateway", "python"]
    assert "judge" in {one["name"] for one in report["services"]["stand_ins"]}
    waited = {barrier["name"] for barrier in report["barriers"] if barrier["rank"] == 0}
    assert {"registry", "services", "gateway"} <= waited
    told = [problem["message"] for problem in report["problems"] if problem["where"] == "rl.required_services"]
    assert told == ["not rehearsed: unheard-of not waited for here"]
    (step,) = report["steps"]
    # One for the code, one for the verdict that only a real result brings; the label may be right or wrong.
    assert step["reward_mean"] >= 2
    assert step["errors"] == 0
    assert {experiment.state for experiment in engine.list()} == {"succeeded", "canceled"}
    assert config.read_bytes() == before
    assert sorted(path.name for path in mount.iterdir()) == ["run.yaml", "single.toml", "train.toml"]


EXAMPLE = ROOT / "examples" / "search-agent-webterminal"
#: The example's topology is four nodes of eight GPUs; two of two show the same and fit here.
SMALLER = {
    "gpus_per_node = 8": "gpus_per_node = 2",
    "num_infer_nodes = 3": "num_infer_nodes = 1",
    "dp_replicate = 8": "dp_replicate = 2",
    "dp = 24": "dp = 2",
    "api_server_count = 24": "api_server_count = 2",
}
#: Searches, reads the page that was found through the terminal, and answers with what it read there.
SEARCHER = [
    {"match": "heron 7", "reply": "The bird is heron 7, see https://corpus.test/heron."},
    {
        "match": "corpus.test/heron",
        "tool_calls": [{"name": "webterminal", "arguments": {"command": "browse https://corpus.test/heron | grep 7"}}],
    },
    {"match": "Which bird", "tool_calls": [{"name": "search", "arguments": {"query": "grey bird", "num_results": 3}}]},
]


@pytest.fixture
def search_run(tmp_path: Path) -> Callable[..., Path]:
    """The search agent's example with a corpus and questions of its own in the place of YOUR_TEAM."""

    def write(changes: Mapping[str, str]) -> Path:
        team, copy = tmp_path / "team", tmp_path / "example"
        (team / "search").mkdir(parents=True)
        copy.mkdir()
        for name in ("run.yaml", "multinode-rl.toml"):
            text = (EXAMPLE / name).read_text().replace("/weka/YOUR_TEAM", str(team))
            for old, new in changes.items():
                text = text.replace(old, new)
            (copy / name).write_text(text)
        # A hit shows the start of a page; what it says further down must be read.
        page = "A grey bird stands there.\n" * 20 + "It is heron 7.\n"
        documents = [
            {"docid": "a", "url": "https://corpus.test/heron", "title": "A grey bird", "contents": page},
            {"docid": "b", "url": "https://corpus.test/carp", "title": "A fish", "contents": "It is carp 3."},
        ]
        (team / "search" / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
        rows = [{"question": f"Which bird is it? ({number})", "answer": "heron 7"} for number in range(4)]
        for split in ("train", "validation"):
            (team / "search" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return copy / "run.yaml"

    return write


def test_the_search_agent_example_searches_reads_and_is_judged(
    search_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "script.json").write_text(json.dumps(SEARCHER))
    options = RehearsalOptions(steps=1, model=f"scripted:{tmp_path / 'script.json'}")
    engine = LocalEngine(tmp_path / "engine")
    report = rehearse_run(search_run(SMALLER), options, engine=engine)
    assert report["ok"], report["failure"]
    (step,) = report["steps"]
    # The judge's stand-in passes what holds the answer, and only the page does.
    assert (step["errors"], step["reward_mean"]) == (0, 1.0)
    assert step["tool_calls"] == 2 * step["rollouts"]
    asked = {one["name"]: one["requests"] for one in report["services"]["stand_ins"]}
    # One search and one page a rollout, one judgment; the barriers ask the search too.
    assert asked["localsearch:example"] > 2 * step["rollouts"]
    assert asked["judge"] >= step["rollouts"]
    if "terminal" not in report["services"]["native"]:
        assert asked["terminal"] >= step["rollouts"]
    told = "\n".join(f"{problem['where']}: {problem['message']}" for problem in report["problems"])
    assert "service judge: a stand-in answers for the judge service: what it says means nothing" in told
    assert "not waited for" not in told
    assert report["services"]["stopped_by_training"] is True


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGTERM, "rehearsal: started services"), (signal.SIGINT, "rehearsal: assemble done")]
)
def test_a_signal_leaves_neither_services_nor_training(
    number: signal.Signals, moment: str, run_file, tmp_path: Path
) -> None:
    config = run_file(toml="single.toml" if number == signal.SIGTERM else "train.toml")
    environment = {**os.environ, "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "engine"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "primebeaker", "run", "rehearse", f"--config={config}"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it runs in the background with Ctrl-C ignored, which a program goes on ignoring.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        told = ""
        while moment not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        process.send_signal(number)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (128 + number, ""), err
    engine = LocalEngine(tmp_path / "engine")
    assert len(engine.list()) >= 1
    assert {experiment.state for experiment in engine.list()} <= {"canceled"}
    assert list(tmp_path.glob("primebeaker-rehearsal-*")) == []


def test_a_mistake_starts_nothing(primebeaker, run_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_HOME", str(tmp_path / "engine"))
    outcome = primebeaker("run", "rehearse", f"--config={run_file(service='python_replicas: 999', rl='bugdet: x')}")
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 2
    assert not (tmp_path / "engine").exists()


def test_rows_that_are_not_here_are_told_before_anything_starts(
    primebeaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_HOME", str(tmp_path / "engine"))
    outcome = primebeaker("run", "rehearse", f"--config={EXAMPLE / 'run.yaml'}")
    assert (outcome.code, outcome.out) == (2, "")
    assert [line.rpartition(": ")[2] for line in outcome.errors] == ["--no-rollouts"] * 2
    assert outcome.errors[0].startswith(f"{EXAMPLE / 'multinode-rl.toml'}:39: orchestrator.train.source[0].legacy.args")
    assert "/weka/YOUR_TEAM/search/train.jsonl is not on this machine" in outcome.errors[0]
    assert not (tmp_path / "engine").exists()


def test_rehearsal_flags_are_known(primebeaker) -> None:
    outcome = primebeaker("run", "rehearse", "--help")
    assert outcome.code == 0
    assert "--steps" in outcome.out
    assert primebeaker("run", "rehearse", "--stepz=1").errors == [
        "unknown flag --stepz; did you mean '--steps' or '--seed' or '--keep'?"
    ]
