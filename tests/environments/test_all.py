"""Every bundled environment loads through Verifiers by its module path, and rolls out to its best reward."""

import json

import pytest
import verifiers as vf

from primebeaker.bundled import CANONICAL, ENVIRONMENT_NAMESPACE, MODULES
from primebeaker.environments.registry import bundled_specs, canonical_name

from ..podman_service.answers import obedient
from ..podman_service.service import AnsweringBackend, PodmanService

VERDICT = json.dumps({"feedback": "f", "label": "pass"})
TAGGED = "<feedback>f</feedback><label>pass</label>"
ANSWER = f"```json\n{json.dumps({'answer': 'pass'})}\n```"
DONE = "echo TERMINAL_COMPLETE"


def call(name, **arguments):
    return {"content": "", "tool_calls": [{"id": "c", "name": name, "arguments": json.dumps(arguments)}]}


#: The replies of a model that does everything right, by environment, and what that is worth.
BEST = {
    "articulated-harness": ([call("submit", rubric_id="a", feedback="f", label="pass")], 2.0),
    "code-tool-label": ([TAGGED], 3.0),
    "label": ([TAGGED], 2.0),
    "multiple-choice-accuracy": ([r"\boxed{B}"], 0.0),
    "podman-terminal": ([call("bash", command=DONE)], 1.1),
    "reward-model": (["pass"], 0.25),
    "rubrichub-judge": (["pass"], 1.0),
    "search-agent-dataset": ([ANSWER], 2.0),
    "search-agent-visit": ([ANSWER], 2.0),
    "search-agent-visit-judge": ([ANSWER], 1.0),
    "search-agent-webterminal": ([ANSWER], 2.0),
    "search-agent-webterminal-judge": ([ANSWER], 1.0),
    "search-visit-agent-dataset": ([ANSWER], 2.0),
    "search-visit-agent-judge": ([ANSWER], 1.0),
    "terminal-tool-label": ([VERDICT], 4.0),
    "tool-label": ([VERDICT], 4.0),
}
ROW = {
    "prompt": "p",
    "question": "q",
    "answer": "pass",
    "output": "o",
    "rubric_ids": ["a"],
    "gold_submissions": [{"rubric_id": "a", "label": "pass"}],
    "rubrics": [{"text": "t", "weight": 1}],
    "image": "ubuntu:24.04",
}


def test_all_sixteen_are_here():
    assert [spec.name for spec in bundled_specs()] == sorted(CANONICAL) == sorted(BEST)
    assert len(CANONICAL) == 16


@pytest.mark.parametrize("module", sorted(MODULES))
def test_it_loads_by_module_path_and_rolls_out(module, rows_file, gateway, play):
    name = canonical_name(module)
    gateway.answers["classify"] = lambda body: {"data": [{"probs": [0.25, 0.75]}]}
    gateway.answers["judge"] = lambda body: {"judgments": [{"rubric_index": 0, "label": "pass", "feedback": "f"}]}
    arguments = {
        "reward-model": {"reward_model_path": "m", "reward_server_url": f"{gateway.url}/classify"},
        "rubrichub-judge": {"judge_model_path": "j", "judge_server_url": f"{gateway.url}/judge"},
    }.get(name, {})
    if name.startswith("search-") and name.endswith("-judge"):
        arguments = {"judge_model_path": "j", "judge_server_url": f"{gateway.url}/judge"}
    replies, best = BEST[name]
    row = {**ROW, "answer": "B"} if name == "multiple-choice-accuracy" else ROW
    with PodmanService(AnsweringBackend(obedient("1"))) as podman:
        if name == "podman-terminal":
            arguments = {"podman_gateway_url": podman.url}
        env = vf.load_environment(f"{ENVIRONMENT_NAMESPACE}.{module}", dataset=rows_file(row), **arguments)
        played = play(env, replies)
        assert podman.containers == []
    assert played.output["error"] is None
    assert played.reward == pytest.approx(best), played.metrics
    assert played.metrics.get("accuracy", 1.0) == 1.0
