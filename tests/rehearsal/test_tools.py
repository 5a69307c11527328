"""Environments with tools are rehearsed against LiteRegistry's own servers, through its own gateway."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from primebeaker.config import TomlDocument
from primebeaker.launch.settings import LaunchSettings
from primebeaker.local import LocalEngine
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.report_text import report_text
from primebeaker.rehearsal.run import rehearse
from primebeaker.rehearsal.standins.tool_service import Window
from primebeaker.rehearsal.tools import gateway_routes, plan_tools, with_routes, with_short_handshakes

from .conftest import ROOT

SINGLE, MULTINODE = ROOT / "examples/rl/config.toml", ROOT / "examples/rl/multinode.toml"
VERDICT = "<feedback>It ran.</feedback>\n<label>pass</label>"


def toml_with(environment: str, source: Path, tmp_path: Path) -> Path:
    path = tmp_path / "rl.toml"
    path.write_text(source.read_text().replace("jtc_label_env", environment))
    return path


def script(tmp_path: Path, *rules: dict) -> str:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(rules))
    return f"scripted:{path}"


def call(match: str, command: str) -> dict:
    return {"match": match, "tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}


def test_code_runs_in_the_real_python_server_through_an_outage(home: Path, tmp_path: Path) -> None:
    """The verdict follows only on the service's own result; a service that is away for a while costs no rollout."""
    toml = toml_with("jtc_code_tool_label_env", SINGLE, tmp_path)
    # The environment's own two seconds are for machines that do nothing else.
    patient = 'split = "train"\nmax_runtime = 40\ntimeout = 100'
    toml.write_text(toml.read_text().replace('split = "train"', patient))
    code = "<code>\n```python\nprint('made-of-' + str(6 * 7))\n```\n</code>"
    model = script(tmp_path, {"match": "Criterion:", "reply": code}, {"match": "made-of-42", "reply": VERDICT})
    fault = "tool-outage:name=python,seconds=2"
    options = RehearsalOptions(steps=2, model=model, faults=(fault,), timeout=300)
    report = rehearse("rl", LaunchSettings(toml=toml), options)
    assert report["ok"], (report["faults"], report["failure"])
    assert [(row["tool_calls"], row["errors"]) for row in report["steps"]] == [(4, 0), (4, 0)]
    # Two for the form and one more where the label is right: without the service's answer there is neither.
    assert all(row["reward_mean"] >= 2 for row in report["steps"])
    assert report["tools"]["services"] == ["python"] and report["tools"]["calls"] == 8
    told = "\n".join(f"{row['where']}: {row['message']}" for row in report["problems"])
    assert "code_server_url is http://127.0.0.1:1212/python, but this launch starts no gateway" in told
    assert "the environments call python, and the launch does not wait for it" in told
    assert "8 calls" in report_text(report)
    assert {experiment.state for experiment in LocalEngine().list()} == {"succeeded", "canceled"}


def test_rollouts_in_containers_do_not_outlast_a_rehearsal() -> None:
    """Where no Podman service is, the environment itself would wait for a container for ten minutes."""
    source = TomlDocument.from_path(ROOT / "examples/podman-terminal/rl.toml")
    places = [f"orchestrator.{split}.source[0].legacy.args" for split in ("train", "eval")]
    with socket.socket() as service:
        # Bound, so that nobody else comes to listen there.
        service.bind(("127.0.0.1", 0))
        port = service.getsockname()[1]
        for place in places:
            source = source.with_value(f"{place}.podman_gateway_url", f"http://127.0.0.1:{port}", create=True)

        def told(gateway_port: int, *, gateway: bool) -> list[str]:
            plan = plan_tools(source.values, LaunchSettings(toml=source.path), gateway_port, gateway=gateway)
            return [problem.where for problem in plan.problems if "no Podman service is at" in problem.message]

        urls = [f"{place}.podman_gateway_url" for place in places]
        copy = with_short_handshakes(source)
        assert [copy.get(f"{place}.handshake_timeout") for place in places] == [2, 2]
        assert told(1212, gateway=False) == urls
        service.listen()
        assert with_short_handshakes(source).text == source.text
        assert told(1212, gateway=True) == []
        # The rehearsal's own gateway takes the place of what listens there.
        assert told(port, gateway=True) == urls
    label = TomlDocument.from_path(SINGLE)
    assert with_short_handshakes(label).text == label.text


@pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("rg", "jq", "pandoc")), reason="rg, jq or pandoc is missing"
)
def test_commands_run_in_the_real_terminal_server(home: Path, tmp_path: Path) -> None:
    """Two replicas, the gateway on the first; a program that is not installed is the service's failure, not the model's."""
    toml = toml_with("jtc_tool_label_env", MULTINODE, tmp_path)
    verdict = {"match": '"stdout"', "reply": '{"feedback": "f", "label": "pass"}'}
    model = script(
        tmp_path,
        verdict,
        call("Lisbon is", "pandoc -t plain | rg -c Lisbon"),
        call("Quite a lot", "no-such-tool count"),
        call("Criterion:", "wc -w"),
    )
    options = RehearsalOptions(steps=1, model=model, timeout=300)
    report = rehearse("rl", LaunchSettings(toml=toml, required_services=(("terminal", 4),)), options)
    assert report["ok"], report["failure"]
    (step,) = report["steps"]
    assert step["tool_calls"] >= 4 and step["rollouts"] == 4
    assert {row["name"] for row in report["barriers"] if row["rank"] == 0} >= {"registry", "services", "gateway"}
    assert not any(row["where"] == "--required-service" for row in report["problems"])


@pytest.mark.soak
def test_stand_ins_answer_for_services_that_cannot_run_here(home: Path, tmp_path: Path) -> None:
    """Search and judge of an agent that also uses the real terminal: tools are called, the judge scores."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "What is the capital of Portugal?", "answer": "Lisbon"}) + "\n")
    document = TomlDocument.from_path(SINGLE)
    for split in ("train", "eval"):
        place = f"orchestrator.{split}.source[0].legacy"
        document = document.with_value(f"{place}.id", "primebeaker.environments.jtc_search_agent_webterminal_judge_env")
        for name, value in {"dataset": str(rows), "judge_model_path": "/models/judge"}.items():
            document = document.with_value(f"{place}.args.{name}", value, create=True)
    toml = tmp_path / "rl.toml"
    toml.write_text(document.text)
    search = {"name": "search", "arguments": {"query": "capital of Portugal"}}
    model = script(tmp_path, {"match": "Portugal?", "tool_calls": [search]}, {"match": "", "reply": "Lisbon"})
    report = rehearse("rl", LaunchSettings(toml=toml), RehearsalOptions(steps=1, model=model, timeout=300))
    assert report["ok"], report["failure"]
    assert report["tools"]["services"] == ["terminal"] and report["tools"]["stand_ins"] == ["search", "judge"], report[
        "tools"
    ]
    (step,) = report["steps"]
    assert (step["errors"], step["tool_failures"]) == (0, 0) and step["tool_calls"] >= 4


def test_routes_are_those_of_the_gateway_and_written_down_where_they_are_defaults():
    source = TomlDocument.from_path(MULTINODE)
    text = source.text.replace("jtc_label_env", "tool-label", 1).replace("jtc_label_env", "code-tool-label")
    document = TomlDocument.from_text(text).with_value(
        "orchestrator.eval.source[0].legacy.args.code_server_url", "http://localhost:1212/python", create=True
    )
    routes = list(gateway_routes(document.values, 1212))
    assert [(route.service, route.given) for route in routes] == [("terminal", False), ("python", True)]
    assert list(gateway_routes(document.values, 1300)) == []
    written = with_routes(document, routes).values["orchestrator"]["train"]["source"][0]["legacy"]["args"]
    assert written["terminal_server_url"] == "http://127.0.0.1:1212/terminal"


def test_what_the_real_launch_would_lack_is_told():
    settings = LaunchSettings(toml=SINGLE, required_services=(("python", 2),))
    values = {"orchestrator": {"train": {"source": [
        {"legacy": {"id": "code-tool-label"}}, {"legacy": {"id": "reward-model", "args": {"reward_model_path": "org/classifier"}}}, {"legacy": {"id": "someone-elses"}},
    ]}}}  # fmt: skip
    plan = plan_tools(values, settings, 1212, gateway=True)
    assert plan.called == plan.names == ("python", "org/classifier") and plan.native == ("python",)
    assert [problem.message for problem in plan.problems] == [
        "the environments call org/classifier, and the launch does not wait for it",
        "a stand-in (model) answers here: what it says means nothing",
    ]


@pytest.mark.parametrize(
    ("environment", "arguments", "tools"),
    [
        ("tool-label", {}, [("terminal", None)]),
        ("search-agent-visit", {}, [("localsearch:bc-v2-72k", "local-search")]),
        ("search-agent-visit", {"local_search_model_path": None}, [("search", "web-search")]),
        (
            "search-agent-webterminal-judge",
            {},
            [("search", "web-search"), ("terminal", None), ("judge", "judge")],
        ),
        ("rubrichub-judge", {"judge_service_model_path": "other-judge"}, [("other-judge", "judge")]),
        ("label", {}, []),
    ],
)
def test_what_answers_for_each_environment(environment, arguments, tools):
    source = {"legacy": {"id": environment, "args": arguments}}
    values = {"orchestrator": {"train": {"source": [source, source]}}}
    assert list(plan_tools(values, LaunchSettings(toml=SINGLE), 1212, gateway=True).here) == tools


def test_an_outage_starts_when_it_is_struck_and_ends(tmp_path: Path):
    window = Window(tmp_path / "struck-0", 1000)
    assert not window.is_now
    window.struck.touch()
    assert window.is_now and not Window(window.struck, -1).is_now
