"""Faults: how they are written, that they strike and lead to what must follow, and that they exist in rehearsals only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.errors import UserError, UserErrors
from primebeaker.rehearsal.expectations import expected_code
from primebeaker.rehearsal.faults import FAULTS, parse_fault, parse_faults
from primebeaker.rehearsal.settings import RehearsalSettings
from primebeaker.rehearsal.standins.orders import active_faults, own_name

ROOT = Path(__file__).parents[2]


def test_a_fault_says_what_where_and_when():
    fault = parse_fault("kill:rank=1,process=engine0@step=3")
    assert (fault.what, fault.rank, fault.process, fault.values["signal"]) == ("kill", 1, "engine0", "KILL")
    assert (fault.when, fault.at, fault.holds_step) == ("step", "3", 3)


@pytest.mark.parametrize(
    ("text", "when", "at", "holds"),
    [
        ("hang:process=router", "step", "1", 1),
        ("preempt@phase=assemble", "phase", "assemble", None),
        ("preempt@after=1.5", "after", "1.5", None),
        ("midsave:step=2", "step", "1", None),
        ("corrupt", "step", "1", None),
        ("corrupt@step=2", "step", "2", 2),
        ("model-bad@step=1", "step", "1", 1),
    ],
)
def test_moments(text, when, at, holds):
    fault = parse_fault(text)
    assert (fault.when, fault.at, fault.holds_step) == (when, at, holds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil:process=router", "unknown fault 'kil'; did you mean 'kill'?"),
        ("kill:proces=router", "kill has no key 'proces'; did you mean 'process'?"),
        ("kill:process=ruter", "unknown process 'ruter'; did you mean 'router'?"),
        ("kill", "kill needs process=VALUE"),
        ("kill:process=router,signal=KIL", "unknown signal 'KIL'"),
        ("kill:process=router,rank=x", "rank = 'x': expected a whole number"),
        ("corrupt:how=burn", "how = 'burn': expected one of truncate, remove, garbage, empty"),
        ("slow-disk:ms=0", "ms = '0': expected a whole number above 0"),
        ("full-disk:bytes=1k", "bytes = '1k': expected a whole number"),
        ("clock:skew=soon", "skew = 'soon': expected seconds"),
        ("clock:skew=5@step=1", "clock has a moment of its own; leave out @step=1"),
        ("preempt@phase=asemble", "did you mean 'assemble'?"),
        ("preempt@step=0", "expected step=N, phase=NAME or after=SECONDS"),
        ("preempt@noon", "expected step=N, phase=NAME or after=SECONDS"),
    ],
)
def test_a_malformed_fault_is_one_line_that_names_the_nearest(text, words):
    with pytest.raises(UserError) as caught:
        parse_fault(text)
    assert words in str(caught.value) and text in str(caught.value)


def test_every_malformed_fault_is_told():
    with pytest.raises(UserErrors) as caught:
        parse_faults(["nope", "kill:process=router", "nix"])
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    ("text", "multi_node", "code"),
    [
        ("kill:process=engine0", True, 137),
        ("kill:process=engine0", False, 1),
        ("kill:process=worker0", True, 1),
        ("kill:process=gateway", False, 137),
        ("kill:process=role,signal=TERM", False, 143),
        ("exit:process=orchestrator,code=9", True, 9),
        ("hang:process=trainer", True, None),
    ],
)
def test_the_code_that_must_follow(text, multi_node, code):
    assert expected_code(parse_fault(text), multi_node=multi_node) == code


@pytest.mark.parametrize(
    ("program", "environment", "name"),
    [
        ("inference", {"VLLM_CACHE_ROOT": "/tmp/x/inference/node_1_rank3/vllm"}, "engine3"),
        ("inference", {}, "engine0"),
        ("prime_rl.trainer.rl.train", {"LOCAL_RANK": "2"}, "worker2"),
        ("torchrun", {}, "trainer"),
        ("vllm-router", {}, "router"),
        ("rl", {}, "role"),
        ("gateway", {}, "gateway"),
    ],
)
def test_what_faults_call_a_process(program, environment, name):
    assert own_name(program, environment) == name


def test_fault_hooks_are_inert_outside_a_rehearsal_on_the_embedded_engine(tmp_path):
    settings = RehearsalSettings(faults=("model-bad:kind=500", "exit:process=orchestrator"))
    settings.write(tmp_path)
    environment = {**settings.environment(tmp_path), "PRIMEBEAKER_LOCAL_ENGINE": "1"}
    assert len(active_faults(environment)) == 2
    for missing in ("PRIMEBEAKER_REHEARSAL", "PRIMEBEAKER_LOCAL_ENGINE"):
        assert active_faults({**environment, missing: "0"}) == ()
        assert active_faults({key: value for key, value in environment.items() if key != missing}) == ()


def rehearse(tmp_path, *words: str) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "primebeaker", "rehearse", "--format=json", *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PRIMEBEAKER_LOCAL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}


def test_the_list_of_faults_names_every_kind(tmp_path):
    code, rows = rehearse(tmp_path, "--list-faults")
    assert code == 0 and [row["fault"] for row in rows] == list(FAULTS)
    assert all(row["effect"] and row["expected"] for row in rows)


@pytest.mark.parametrize(
    ("faults", "state"),
    [
        (["kill:process=engine0"], "failed"),
        (["exit:process=orchestrator,code=9"], "failed"),
        (["midsave"], "failed"),
        (["corrupt:file=metadata", "corrupt:file=progress,how=empty"], "succeeded"),
        (["corrupt:file=shard@step=1", "slow-disk:ms=20"], "succeeded"),
        (["full-disk:bytes=2000"], "failed"),
        (["port-busy:port=8000"], "failed"),
        (["model-bad:kind=truncated@step=1"], "succeeded"),
    ],
)
def test_a_fault_strikes_and_what_must_follow_does(tmp_path, faults, state):
    # A quarter of it is the stall watch, which a busy machine must not wake.
    words = ["--timeout=240", *(f"--fault={fault}" for fault in faults)]
    if not any(fault.startswith("model-bad") for fault in faults):
        words.append("--no-rollouts")
    code, report = rehearse(tmp_path, "--toml=examples/rl/config.toml", f"--mount-path={ROOT}", *words)
    assert code == 0, [row["observed"] for row in report.get("faults", ())] or report
    assert report["ok"] and [row["spec"] for row in report["faults"]] == faults
    assert [row["state"] for row in report["replicas"]] == [state]


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        *(f"model-bad:kind={kind}" for kind in ("malformed", "slow", "500", "truncated")),
        *(f"corrupt:file=shard,how={how}" for how in ("truncate", "remove", "garbage", "empty")),
        *(f"port-busy:port={port}" for port in (8100, 29000, 29501, 5555)),
        "exit:process=trainer,code=3",
        "midsave:step=1",
    ],
)
def test_each_fault_of_one_node_leads_to_what_must_follow(tmp_path, fault):
    words = [] if fault.startswith("model-bad") else ["--no-rollouts"]
    words += ["--toml=examples/rl/config.toml", f"--mount-path={ROOT}", "--timeout=60", f"--fault={fault}"]
    code, report = rehearse(tmp_path, *words)
    assert code == 0, [row["observed"] for row in report.get("faults", ())] or report


def test_a_fault_that_never_strikes_is_not_as_expected(tmp_path):
    words = ["--toml=examples/rl/config.toml", f"--mount-path={ROOT}", "--no-rollouts"]
    code, report = rehearse(tmp_path, *words, "--fault=kill:process=role@after=900")
    assert code == 4
    assert report["verdict"] == "not as expected: kill:process=role@after=900"
    assert report["faults"][0]["observed"].startswith("it never struck")


def test_faults_without_a_place_are_told_together_before_anything_starts(tmp_path):
    words = ["--toml=examples/rl/config.toml", f"--mount-path={ROOT}"]
    code, report = rehearse(tmp_path, *words, "--fault=preempt:rank=3", "--fault=kill:process=engine7")
    assert code == 2 and "rank = 3: this launch has 1 replica, rank 0" in report["stderr"]
    assert "no process 'engine7'" in report["stderr"] and "did you mean 'engine0'?" in report["stderr"]
    assert not (tmp_path / "home").exists()
