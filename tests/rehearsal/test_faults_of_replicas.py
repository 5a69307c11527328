"""Faults of two replicas, struck for real: how the topology ends, and that the fixture finds nothing left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from primebeaker.launch.settings import LaunchSettings
from primebeaker.rehearsal.options import RehearsalOptions
from primebeaker.rehearsal.run import rehearse

from .conftest import ROOT

MULTINODE = ROOT / "examples/rl/multinode.toml"


def struck(*faults: str, timeout: float = 240.0) -> dict:
    """The report of a rehearsal of two steps on two replicas."""
    options = RehearsalOptions(steps=2, no_rollouts=True, timeout=timeout, faults=faults)
    return rehearse("rl", LaunchSettings(toml=MULTINODE), options)


def codes(report: dict) -> list[int]:
    return [row["exit_code"] for row in report["replicas"]]


def test_a_killed_engine_of_the_second_replica_takes_all_down(home: Path) -> None:
    report = struck("kill:rank=1,process=engine0")
    assert report["ok"], report["faults"]
    assert codes(report)[1] == 137


def test_a_replica_that_never_comes_is_named_by_the_leader(home: Path) -> None:
    report = struck("late:rank=1,seconds=60", timeout=20)
    assert report["ok"], report["faults"]
    assert codes(report)[0] == 93
    assert "rank 1 of 2" in report["failure"]["cause"]


def test_slow_files_wrong_clocks_and_busy_ports_change_nothing(home: Path) -> None:
    faults = ("slow-disk:ms=30", "clock:rank=1,skew=7200", "clock:skew=-86400", "port-busy:port=8000")
    report = struck(*faults)
    assert report["ok"], report["faults"]
    assert codes(report) == [0, 0]
    assert any("port" in notice and "is busy" in notice for notice in report["notices"])


def test_a_busy_gateway_port_ends_the_launch_with_its_name(home: Path) -> None:
    report = struck("port-busy:port=1212")
    assert report["ok"], report["faults"]
    assert codes(report)[0] == 2


def test_supervised_fine_tuning_on_two_replicas_is_preempted_and_finishes(home: Path, tmp_path: Path) -> None:
    """All ranks of both replicas meet, twice; a damaged last checkpoint is told at the end."""
    toml = tmp_path / "sft.toml"
    text = (ROOT / "examples/sft/config.toml").read_text()
    toml.write_text(text.replace('type = "single_node"\nnum_gpus = 2', 'type = "multi_node"\nnum_nodes = 2'))
    faults = ("preempt:rank=1,restart=true", "corrupt:file=metadata,how=garbage")
    report = rehearse("sft", LaunchSettings(toml=toml), RehearsalOptions(steps=2, timeout=240, faults=faults))
    assert report["ok"], report["faults"]
    assert codes(report) == [0, 0]
    assert "truncated .metadata" in report["faults"][1]["observed"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        "late:rank=1,seconds=5",
        "late:rank=0,seconds=60",
        "no-service:name=terminal",
        "kill:rank=1,process=role",
        "kill:process=gateway",
        "kill:process=worker1",
        "exit:process=router,code=9",
        "hang:process=orchestrator",
        "hang:rank=1,process=role",
        "preempt:rank=1",
        "preempt:rank=1,restart=true",
        "restart-alone:rank=1",
    ],
)
def test_each_fault_leads_to_what_must_follow(home: Path, fault: str) -> None:
    report = struck(fault, timeout=60)
    assert report["ok"], report["faults"]
