"""Every process of every rank, every way to end: the documented codes, one cause named everywhere, nothing left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
from role_harness import Topology, wait_until

Launch = Callable[..., Topology]

RL = [
    (0, "trainer"),
    (0, "orchestrator"),
    (0, "router"),
    (0, "gateway"),
    (0, "engine0"),
    (1, "engine0"),
    (1, "engine1"),
]


def down_with(topology: Topology, rank: int, process: str, code: int, how: str) -> None:
    """The topology ended because of one process."""
    other = 1 - rank
    assert topology.codes() == {rank: code, other: 90}, topology.output()
    topology.nothing_left()
    expected = f"{process} on rank {rank} {how}"
    for member in (0, 1):
        status = topology.status(member)
        assert status["message"].startswith(expected), status
        assert status["process"] == process
        newest = [replica for replica in topology.replicas if replica.rank == member][-1]
        assert expected in newest.text.splitlines()[-1]


@pytest.mark.parametrize(("rank", "process"), RL)
def test_a_process_that_fails_takes_the_topology_down_with_its_code(launch: Launch, rank: int, process: str) -> None:
    topology = launch()
    topology.start()
    topology.up()
    topology.order(rank, process, "exit 7")
    down_with(topology, rank, process, 7, "ended with 7; last lines of")
    text = next(replica.text for replica in topology.replicas if replica.rank == rank)
    assert f"  {process} of rank {rank} ends as told: exit 7" in text


@pytest.mark.parametrize(("rank", "process"), [case for case in RL if case[1] not in ("trainer", "orchestrator")])
def test_a_server_that_ends_well_too_early_takes_the_topology_down(launch: Launch, rank: int, process: str) -> None:
    topology = launch()
    topology.start()
    topology.up()
    topology.order(rank, process, "exit 0")
    down_with(topology, rank, process, 91, "ended unexpectedly with 0")


@pytest.mark.parametrize(("rank", "process"), [(0, "trainer"), (0, "router"), (1, "engine1")])
def test_a_killed_process_gives_128_plus_its_signal(launch: Launch, rank: int, process: str) -> None:
    topology = launch()
    topology.start()
    topology.up()
    os.kill(topology.record(rank, process)["pid"], signal.SIGKILL)
    down_with(topology, rank, process, 137, "ended with 137")


def test_the_run_is_complete_when_trainer_and_orchestrator_have_ended(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    topology.order(0, "orchestrator", "exit 0")
    wait_until(lambda: "waiting for trainer" in topology.replicas[0].text, "the first clean end is told")
    topology.order(0, "trainer", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()
    topology.nothing_left()
    assert topology.status(0)["code"] == topology.status(1)["code"] == 0
    summary = json.loads((topology.output_dir / "primebeaker_run_summary.json").read_text())
    assert (summary["launch_id"], summary["code"]) == ("launch1", 0)


def test_an_engine_that_dies_after_the_first_clean_end_is_not_waited_for(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    topology.order(0, "orchestrator", "exit 0")
    wait_until(lambda: "waiting for trainer" in topology.replicas[0].text, "the first clean end is told")
    topology.order(1, "engine0", "exit 5")
    down_with(topology, 1, "engine0", 5, "ended with 5")


def test_the_second_clean_end_must_follow_within_the_drain_time(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_DRAIN_TIMEOUT_SECONDS": "0.3"})
    topology.start()
    topology.up()
    topology.order(0, "trainer", "exit 0")
    down_with(topology, 0, "orchestrator", 91, "did not end within 0.3 s of trainer")


def test_a_replica_that_ends_well_before_the_run_is_complete_takes_it_down(launch: Launch) -> None:
    """Only a status of 0 is seen, as when a replica's image replaced its role by something that just ends."""
    topology = launch()
    topology.start()
    topology.up()
    epoch = json.loads((topology.rendezvous / "epoch.json").read_text())["epoch"]
    status = topology.rendezvous / "epochs" / epoch / "status"
    (status / "new").write_text(json.dumps({"rank": 1, "code": 0, "message": "complete"}))
    (status / "new").rename(status / "1.json")
    assert topology.codes() == {0: 91, 1: 90}, topology.output()
    for replica in topology.replicas:
        assert "rank 1 ended with 0 before the run was complete" in replica.text.splitlines()[-1]
    topology.nothing_left()


def test_an_operator_can_stop_the_run_orderly(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    (topology.rendezvous / "shutdown.requested").write_text("")
    assert topology.codes() == {0: 92, 1: 92}, topology.output()
    topology.nothing_left()
    # A request that is still there does not stop the next start.
    topology.forget_records()
    topology.start()
    topology.up()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_role_that_is_killed_leaves_nothing_and_its_peers_notice(launch: Launch, rank: int) -> None:
    topology = launch(env={"PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS": "12"})
    first, second = topology.start()
    topology.up()
    killed, other = (first, second) if rank == 0 else (second, first)
    killed.process.kill()
    wait_until(
        lambda: not [line for line in topology.alive() if f"/{rank}." in line or f"rank{rank}" in line],
        "its children end",
    )
    assert topology.code(other, 40) == 95, topology.output()
    assert f"rank {rank} (node{rank}) gave no sign of life for 12 s" in other.text
    topology.nothing_left()


def test_a_stopped_peer_role_is_noticed(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_HEARTBEAT_TIMEOUT_SECONDS": "12"})
    leader, follower = topology.start()
    topology.up()
    os.kill(follower.process.pid, signal.SIGSTOP)
    assert topology.code(leader, 40) == 95, topology.output()
    os.kill(follower.process.pid, signal.SIGCONT)
    assert topology.code(follower) == 90, topology.output()
    topology.nothing_left()


def test_a_worker_in_a_session_of_its_own_that_ignores_term_is_gone_after_the_grace_time(launch: Launch) -> None:
    topology = launch()
    marker = topology.root / "worker-up"
    topology.order(0, "trainer", str(marker), ".worker")
    topology.start()
    topology.up()
    wait_until(marker.exists, "the worker runs")
    began = time.monotonic()
    topology.order(0, "orchestrator", "exit 3")
    assert topology.codes() == {0: 3, 1: 90}
    topology.nothing_left(0.5)
    assert time.monotonic() - began < 0.5 + 3 + 3


def test_two_terms_skip_the_grace_time(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_GRACE_SECONDS": "60"})
    topology.order(0, "trainer", "yes", ".ignore-term")
    leader, follower = topology.start()
    topology.up()
    leader.process.terminate()
    wait_until(lambda: "shutting down with exit code 143" in leader.text, "the first is taken")
    leader.process.terminate()
    assert topology.code(leader) == 143, topology.output()
    assert topology.code(follower) == 90
    topology.nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_running_replica_with_its_status_written(
    launch: Launch, number: signal.Signals, code: int
) -> None:
    topology = launch()
    _, follower = topology.start()
    topology.up()
    follower.process.send_signal(number)
    assert topology.codes() == {0: 90, 1: code}, topology.output()
    assert topology.status(1)["code"] == code
    topology.nothing_left()


@pytest.mark.parametrize("rank", [0, 1])
def test_sft_replicas_end_together(launch: Launch, rank: int) -> None:
    topology = launch(kind="sft")
    topology.start()
    topology.up()
    topology.order(1 - rank, "trainer", "exit 0")
    wait_until(lambda: "run: done" in topology.replicas[1 - rank].text, "one rank is done and waits")
    topology.order(rank, "trainer", "exit 9")
    assert topology.codes() == {rank: 9, 1 - rank: 90}, topology.output()
    topology.nothing_left()


def test_sft_is_complete_when_every_torchrun_ended_well(launch: Launch) -> None:
    topology = launch(kind="sft")
    topology.start()
    topology.up()
    topology.order(0, "trainer", "exit 0")
    topology.order(1, "trainer", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()
    topology.nothing_left()
