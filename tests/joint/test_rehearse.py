"""A joint run on this machine: LiteRegistry's own gateway and Python service, the training's stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.ports import free_block

from primebeaker.joint.rehearse import rehearse_run
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.options import RehearsalOptions

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
    config = run_file(rl=f"required_services: {{python: 3, judge: 1}}\ngateway_port: {port}")
    before = config.read_bytes()
    options = RehearsalOptions(steps=1, model=f"scripted:{tmp_path / 'script.json'}")
    report = rehearse_run(config, options, engine=engine)
    assert report["ok"], report["failure"]
    assert report["services"]["stopped_by_training"] is True
    assert report["services"]["native"][:2] == ["gateway", "python"]
    waited = {barrier["name"] for barrier in report["barriers"] if barrier["rank"] == 0}
    assert {"registry", "services", "gateway"} <= waited
    told = [problem["message"] for problem in report["problems"] if problem["where"] == "rl.required_services"]
    assert told == ["not rehearsed: judge not waited for here"]
    (step,) = report["steps"]
    # One for the code, one for the verdict that only a real result brings; the label may be right or wrong.
    assert step["reward_mean"] >= 2
    assert step["errors"] == 0
    assert {experiment.state for experiment in engine.list()} == {"succeeded", "canceled"}
    assert config.read_bytes() == before
    assert sorted(path.name for path in mount.iterdir()) == ["run.yaml", "single.toml", "train.toml"]


def test_a_mistake_starts_nothing(primebeaker, run_file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_HOME", str(tmp_path / "engine"))
    outcome = primebeaker("run", "rehearse", f"--config={run_file(service='python_replicas: 999', rl='bugdet: x')}")
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 2
    assert not (tmp_path / "engine").exists()


def test_rehearsal_flags_are_known(primebeaker) -> None:
    outcome = primebeaker("run", "rehearse", "--help")
    assert outcome.code == 0
    assert "--steps" in outcome.out
    assert primebeaker("run", "rehearse", "--stepz=1").errors == [
        "unknown flag --stepz; did you mean '--steps' or '--seed' or '--keep'?"
    ]
