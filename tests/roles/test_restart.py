"""Starts that follow other starts: the same launch again, one replica alone, an old leader that wakes up."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from role_harness import Topology, wait_until

Launch = Callable[..., Topology]


def runs(topology: Topology) -> None:
    topology.start()
    topology.up()


def test_the_same_launch_starts_again_after_a_failure(launch: Launch) -> None:
    topology = launch()
    runs(topology)
    topology.order(0, "trainer", "exit 7")
    assert topology.codes() == {0: 7, 1: 90}
    first = json.loads((topology.rendezvous / "epoch.json").read_text())
    topology.forget_records()
    runs(topology)
    second = json.loads((topology.rendezvous / "epoch.json").read_text())
    assert second["number"] == first["number"] + 1
    assert set(second["members"].values()).isdisjoint(first["members"].values())
    topology.order(0, "trainer", "exit 0")
    topology.order(0, "orchestrator", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()
    record = json.loads((topology.output_dir / "primebeaker_launch.json").read_text())
    assert [epoch["job_ids"] for epoch in record["epochs"]] == [["job1", "job2"], ["job3", "job4"]]


def test_the_same_launch_starts_again_after_a_completion(launch: Launch) -> None:
    topology = launch()
    runs(topology)
    topology.order(0, "trainer", "exit 0")
    topology.order(0, "orchestrator", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}
    topology.forget_records()
    runs(topology)
    topology.order(1, "engine0", "exit 3")
    assert topology.codes() == {0: 90, 1: 3}, topology.output()
    topology.nothing_left()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_that_is_restarted_alone_ends_the_others(launch: Launch, rank: int) -> None:
    topology = launch()
    first, second = topology.start()
    topology.up()
    killed, other = (first, second) if rank == 0 else (second, first)
    killed.process.kill()
    killed.process.wait()
    # Alone it waits at the barrier and starts nothing.
    (again,) = topology.start(rank)
    assert topology.code(other) == 95, topology.output()
    assert "restarted without the others" in other.text
    # The other one comes back too, and the topology is whole again.
    topology.forget_records()
    topology.start(1 - rank)
    topology.up()
    assert again.process.poll() is None
    topology.order(0, "trainer", "exit 0")
    topology.order(0, "orchestrator", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()
    topology.nothing_left()


def contents(*directories: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for root in directories for path in root.rglob("*") if path.is_file()}


def test_an_old_leader_that_wakes_up_changes_nothing(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS": "0"})
    old_leader, old_follower = topology.start()
    topology.up()
    os.kill(old_leader.process.pid, signal.SIGSTOP)
    old_follower.process.kill()
    topology.forget_records()
    # Its children still hold the ports of the stopped start.
    topology.gateway += 500
    topology.start()
    topology.up()
    # A write that was under way when it was stopped is not a decision; heartbeats of the new start are no change of it.
    before = contents(topology.output_dir / "configs", topology.rendezvous / "epochs")
    os.kill(old_leader.process.pid, signal.SIGCONT)
    assert topology.code(old_leader) == 96, topology.output()
    assert "superseded by a newer start" in old_leader.text
    assert contents(topology.output_dir / "configs", topology.rendezvous / "epochs") == before
    member = json.loads((topology.rendezvous / "members" / "0.json").read_text())
    assert member["instance"] in (topology.rendezvous / "epoch.json").read_text()
    events = [
        json.loads(line)
        for line in (topology.output_dir / "logs" / "primebeaker" / "rank_0.jsonl").read_text().splitlines()
    ]
    assert not [event for event in events if event["event"] == "shutdown"]
    topology.order(0, "trainer", "exit 0")
    topology.order(0, "orchestrator", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()


def test_a_slow_and_stale_disk_changes_no_result(launch: Launch) -> None:
    """Every file operation of a role takes up to half a second, and listings are up to five seconds old."""
    topology = launch(env={"PRIMEBEAKER_REHEARSAL_SLOW_DISK_MS": "500"})
    runs(topology)
    time.sleep(3)
    assert all(replica.process.poll() is None for replica in topology.replicas), topology.output()
    topology.order(0, "trainer", "exit 0")
    topology.order(0, "orchestrator", "exit 0")
    assert topology.codes(60) == {0: 0, 1: 0}, topology.output()
    topology.nothing_left()


def test_slow_disk_is_inert_outside_a_rehearsal() -> None:
    from primebeaker.roles.files import DiskFaults

    asked = {"PRIMEBEAKER_REHEARSAL_SLOW_DISK_MS": "500"}
    assert DiskFaults.from_env(asked) is None
    assert DiskFaults.from_env(asked | {"PRIMEBEAKER_REHEARSAL": "1"}) is None
    assert DiskFaults.from_env(asked | {"PRIMEBEAKER_LOCAL_ENGINE": "1"}) is None
    assert DiskFaults.from_env(asked | {"PRIMEBEAKER_REHEARSAL": "1", "PRIMEBEAKER_LOCAL_ENGINE": "1"}) is not None


def test_a_late_replica_is_waited_for_and_named_when_it_does_not_come(launch: Launch) -> None:
    topology = launch(env={"RENDEZVOUS_TIMEOUT_SECONDS": "1.5"})
    (leader,) = topology.start(0)
    assert topology.code(leader) == 93, topology.output()
    assert "assembly: rank 1 of 2 have not arrived" in leader.text
    topology.nothing_left()


def test_a_leader_that_never_decides_is_not_waited_for_for_ever(launch: Launch) -> None:
    topology = launch(env=PHASES["prepare"] | {"RENDEZVOUS_TIMEOUT_SECONDS": "8"})
    topology.start()
    assert topology.codes(60) == {0: 90, 1: 93}, topology.output()
    for replica in topology.replicas:
        assert "prepare: runtime.json did not appear within 8 s" in replica.text.splitlines()[-1]
    topology.nothing_left()


def test_an_address_that_peers_cannot_reach_is_named_at_once(launch: Launch) -> None:
    topology = launch()
    topology.start(0)
    topology.start(1, env={"PRIMEBEAKER_NODE_IP": "127.0.0.2"})
    topology.up()
    topology.order(0, "trainer", "exit 4")
    topology.codes()
    topology.forget_records()
    # An address of nobody: the connection is refused or never answered.
    topology.start(0)
    topology.start(1, env={"PRIMEBEAKER_NODE_IP": "192.0.2.77"})
    codes = topology.codes(40)
    assert codes == {0: 93, 1: 90}, topology.output()
    assert "rank 0 on node0 cannot reach rank 1 on node1 at 192.0.2.77:" in topology.output()
    topology.nothing_left()


PHASES = {
    "setup": {"PRIMEBEAKER_SETUP_COMMAND": "touch $STUB_DIR/in-setup; sleep 60"},
    "assemble": {},
    "prepare": {"STUB_HANGS": "primebeaker.multinode prepare-rl"},
    "start": {"STUB_HANGS": "primebeaker.coordination wait-redis"},
    "run": {},
}


@pytest.mark.parametrize("phase", PHASES)
def test_term_ends_a_role_in_every_phase(launch: Launch, phase: str) -> None:
    topology = launch(env=PHASES[phase])
    (leader,) = topology.start(0)
    if phase in ("prepare", "start", "run"):
        topology.start(1)
    if phase == "run":
        topology.up()
    wait_until(lambda: f"{phase}: started" in leader.text, f"phase {phase}")
    if phase == "setup":
        wait_until((topology.root / "in-setup").exists, "the setup command runs")
    if phase in ("prepare", "start"):
        wait_until((topology.root / "hangs").exists, "what the phase waits for runs")
    began = time.monotonic()
    leader.process.terminate()
    assert topology.code(leader) == 143, topology.output()
    assert time.monotonic() - began < 0.5 + 3
    assert f"SIGTERM received in {phase}" in leader.text
    member = json.loads((topology.rendezvous / "members" / "0.json").read_text())
    assert (member["phase"], "SIGTERM" in member["message"]) == ("ended", True)
    if phase in ("prepare", "start", "run"):
        assert topology.status(0)["code"] == 143
        assert topology.codes() == {0: 143, 1: 90}
    topology.nothing_left()


def test_a_peer_that_ends_before_the_start_ends_the_others(launch: Launch) -> None:
    topology = launch()
    (follower,) = topology.start(1, env={"PRIMEBEAKER_SETUP_COMMAND": "sleep 1; exit 9"})
    (leader,) = topology.start(0)
    assert topology.code(follower) == 9
    assert topology.code(leader) == 90, topology.output()
    assert "rank 1 on node1 ended before the start: the setup command failed with code 9" in leader.text
    topology.nothing_left()


def test_engines_that_are_not_ready_in_time_are_named(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_INFERENCE_READY_TIMEOUT_SECONDS": "2"})
    topology.order(1, "engine0", "m/x", ".serve")
    topology.order(1, "engine1", "another-model", ".serve")
    topology.order(0, "engine0", "m/x", ".serve")
    topology.start()
    topology.up()
    assert topology.codes() == {0: 90, 1: 94}, topology.output()
    assert "engine1 of rank 1" in topology.replicas[1].text
    assert "/v1/models lists another-model, not m/x" in topology.replicas[1].text
    assert "engines ready 2/3" in topology.replicas[0].text
    topology.nothing_left()


def test_a_stuck_run_is_ended_by_the_stall_watch(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_STALL_SECONDS": "1"})
    topology.start()
    topology.up()
    assert topology.codes() == {0: 97, 1: 90}, topology.output()
    assert "no log output and no new step for 1 s" in topology.output()
    topology.nothing_left()


def test_a_file_system_that_hangs_does_not_hold_up_the_end(launch: Launch) -> None:
    """Opening a pipe that nobody writes blocks for ever, like a file on a dead file server."""
    topology = launch()
    _, follower = topology.start()
    topology.up()
    for name in ("epoch.json", "members/0.json", "members/1.json"):
        os.mkfifo(topology.rendezvous / f"{name}.pipe")
        (topology.rendezvous / f"{name}.pipe").rename(topology.rendezvous / name)
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(topology.record(1, "engine0")["pid"], signal.SIGKILL)
    assert topology.code(follower, 40) == 137, topology.output()
    assert time.monotonic() - began < 25
    assert "engine0 on rank 1 ended with 137" in follower.text.splitlines()[-1]
