"""A spec that Beaker would refuse is refused here, with every mistake and the nearest right key."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from primebeaker.beaker.legality import check_spec, parse_duration
from primebeaker.errors import UserError

GOOD: dict[str, Any] = {
    "version": "v2",
    "description": "d",
    "budget": "ai2/x",
    "tasks": [
        {
            "name": "main",
            "image": {"beaker": "ai2/image"},
            "command": ["bash", "-lc", "true"],
            "arguments": ["x"],
            "replicas": 2,
            "leaderSelection": True,
            "synchronizedStartTimeout": "4h",
            "hostNetworking": True,
            "propagateFailure": True,
            "propagatePreemption": False,
            "envVars": [{"name": "A", "value": "1"}, {"name": "B", "secret": "b"}],
            "datasets": [{"mountPath": "/weka", "source": {"weka": "bucket"}}],
            "result": {"path": "/tmp/beaker-result"},
            "resources": {"gpuCount": 8, "cpuCount": 1.5, "memory": "64GiB", "sharedMemory": "10 GiB"},
            "context": {"priority": "high", "minRuntime": "0h", "autoResume": False},
            "constraints": {"cluster": ["ai2/x"]},
            "timeout": "1h30m",
        }
    ],
}


def test_a_whole_spec_is_accepted():
    assert check_spec(GOOD) is GOOD


def test_null_counts_as_absent():
    spec = copy.deepcopy(GOOD)
    spec["budget"] = None
    spec["tasks"][0]["envVars"] = None
    assert check_spec(spec) is spec


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["taks"], [], "s.json: taks: Beaker knows no such key; did you mean 'tasks'?"),
        (["version"], "v3", "s.json: version: = 'v3': expected one of v2, v2-alpha"),
        (["tasks"], [], "s.json: tasks: expected at least 1 of them"),
        (["tasks", 0, "replica"], 2, "tasks[0].replica: Beaker knows no such key; did you mean 'replicas'?"),
        (["tasks", 0, "replicas"], 0, "tasks[0].replicas: expected a whole number from 1 to 1024, found 0"),
        (["tasks", 0, "replicas"], True, "tasks[0].replicas: expected a whole number from 1 to 1024, found True"),
        (["tasks", 0, "hostNetworking"], "yes", "tasks[0].hostNetworking: expected true or false, found 'yes'"),
        (["tasks", 0, "command"], "true", "tasks[0].command: expected a list, found 'true'"),
        (["tasks", 0, "command", 1], 3, "tasks[0].command[1]: expected text, found 3"),
        (["tasks", 0, "timeout"], "soon", "tasks[0].timeout: expected a duration like '4h' or '30m', found 'soon'"),
        (
            ["tasks", 0, "synchronizedStartTimeout"],
            "49h",
            "tasks[0].synchronizedStartTimeout: expected a duration like '4h' or '30m' above 0 and up to 48h, found '49h'",
        ),
        (["tasks", 0, "context", "priority"], "hihg", "expected one of low, normal, high, urgent, immediate; did you"),
        (["tasks", 0, "context", "preemptible"], True, "Beaker refuses it next to minRuntime or autoResume"),
        (["tasks", 0, "envVars", 0, "value"], 1, "tasks[0].envVars[0].value: expected text, found 1"),
        (["tasks", 0, "envVars", 0, "secret"], "s", "tasks[0].envVars[0] (A): expected exactly one of value, secret"),
        (["tasks", 0, "envVars", 0, "name"], "A B", "expected the name of a variable, found 'A B'"),
        (["tasks", 0, "image", "docker"], "x", "tasks[0].image: expected exactly one of beaker, docker"),
        (["tasks", 0, "datasets", 0, "source"], {}, "expected exactly one of beaker, hostPath, weka, result"),
        (["tasks", 0, "resources", "gpus"], 1, "tasks[0].resources.gpus: Beaker knows no such key"),
        (["tasks", 0, "resources", "memory"], "lots", "expected a size like '64GiB', found 'lots'"),
    ],
)
def test_one_mistake(path: list[Any], value: Any, message: str):
    spec = copy.deepcopy(GOOD)
    place: Any = spec
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(UserError) as caught:
        check_spec(spec, file="s.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("s.json: ")


def test_all_mistakes_are_told_together():
    spec = {"version": "v2", "tasks": [{"tiemout": "1h"}, {"name": "y", "replicas": "2"}, {"name": "y"}]}
    with pytest.raises(UserError) as caught:
        check_spec(spec)
    assert str(caught.value).splitlines() == [
        "tasks[0].tiemout: Beaker knows no such key; did you mean 'timeout'?",
        "tasks[1].replicas: expected a whole number from 1 to 1024, found '2'",
        "tasks: two tasks are called 'y'",
    ]


@pytest.mark.parametrize("value", [[], "text", None, 3])
def test_a_spec_is_a_mapping(value: Any):
    with pytest.raises(UserError, match="expected a mapping"):
        check_spec(value)


@pytest.mark.parametrize(("text", "seconds"), [("4h", 14400), ("1h30m", 5400), ("300ms", 0.3), ("0", 0), ("1.5s", 1.5)])
def test_durations(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "4", "h", "4 h", "-1h", "1d"])
def test_no_durations(text: str):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)
