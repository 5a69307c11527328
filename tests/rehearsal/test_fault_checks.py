"""A fault that a launch has no place for is told before anything starts, with what the launch does have."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.launch.topology import Topology
from primebeaker.rehearsal.busy_ports import busy_ports, named_ports
from primebeaker.rehearsal.fault_checks import Stage, check_faults, processes_of
from primebeaker.rehearsal.faults import parse_fault, parse_faults

ROOT = Path(__file__).parents[2]
MIXED = Topology("rl", "multi_node", 2, 8, trainer_gpus=4, mixed_infer_gpus=4, inference_ranks=6)
ONE = Topology("rl", "single_node", 1, 2)


def values(name: str) -> dict:
    return tomllib.loads((ROOT / "examples" / name).read_text())


STAGES = {
    "mixed": Stage(topology=MIXED, values=values("rl/multinode.toml"), steps=4, gateway=True),
    "one": Stage(topology=ONE, values=values("rl/config.toml"), steps=4, services=("python",)),
    "sft": Stage(topology=Topology("sft", "multi_node", 3, 2), values=values("sft/config.toml"), steps=4),
    "apart": Stage(
        topology=Topology("rl", "multi_node", 2, 8, trainer_gpus=8, inference_ranks=4),
        values=values("rl/multinode.toml"),
        steps=4,
    ),
}


@pytest.mark.parametrize(
    ("stage", "rank", "names"),
    [
        ("mixed", 0, "role gateway router engine0 engine1 orchestrator trainer worker0 worker1 worker2 worker3"),
        ("mixed", 1, "role engine0 engine1 engine2 engine3"),
        ("one", 0, "role router engine0 orchestrator trainer worker0"),
        ("sft", 2, "role trainer worker0 worker1"),
        ("apart", 0, "role router orchestrator trainer " + " ".join(f"worker{number}" for number in range(8))),
    ],
)
def test_the_processes_of_a_replica(stage, rank, names):
    assert " ".join(processes_of(STAGES[stage], rank)) == names


@pytest.mark.parametrize(
    ("stage", "text", "words"),
    [
        ("mixed", "preempt:rank=2", "rank = 2: this launch has 2 replicas, ranks 0 to 1"),
        ("one", "preempt:rank=1", "rank = 1: this launch has 1 replica, rank 0"),
        ("one", "no-service:name=x", "no-service needs a multi-node launch"),
        ("sft", "no-service:name=x", "no-service needs an RL launch"),
        ("sft", "model-bad", "model-bad needs an RL launch"),
        ("one", "kill:process=gateway", "no process 'gateway'; it has role, router, engine0, orchestrator"),
        ("one", "hang:process=engine1", "did you mean 'engine0'"),
        ("mixed", "exit:rank=1,process=orchestrator", "replica 0 has it: rank=0"),
        ("mixed", "kill:process=engine2", "replica 1 has it: rank=1"),
        ("mixed", "kill:rank=1,process=engine7", "it has role, engine0 to engine3"),
        ("sft", "kill:process=orchestrator", "it has role, trainer, worker0, worker1"),
        ("apart", "kill:process=engine0", "replica 1 has it"),
        ("mixed", "exit:process=gateway", "gateway is the real program and takes no orders; kill:process=gateway"),
        ("mixed", "kill:process=role@step=5", "step 5 never comes: this rehearsal makes 4"),
        ("mixed", "midsave:step=5", "step = 5: this rehearsal makes 4"),
        ("mixed", "corrupt:step=3@step=2", "step = 3: it is not written yet at step 2"),
        ("mixed", "corrupt:file=policy", "sends its policies without files"),
        ("sft", "corrupt:file=progress", "fine-tuning writes none; shard or metadata"),
        ("one", "tool-outage:name=pyton,seconds=3", "tool services of this rehearsal: python; did you mean 'python'?"),
        ("mixed", "tool-outage:name=python,seconds=3", "tool services of this rehearsal: none"),
    ],
)
def test_a_fault_the_launch_has_no_place_for_is_a_mistake(stage, text, words):
    with pytest.raises(UserError) as caught:
        check_faults([parse_fault(text)], STAGES[stage])
    assert words in str(caught.value) and text in str(caught.value)


def test_faults_that_have_a_place_pass():
    texts = ["kill:rank=1,process=engine3@step=4", "corrupt:step=2@step=2", "corrupt", "midsave:step=4", "late:rank=1,"
             "seconds=2", "hang:process=role", "exit:process=worker3", "model-bad@step=2"]  # fmt: skip
    check_faults(parse_faults(texts), STAGES["mixed"])


def test_a_launch_without_checkpoints_has_none_to_damage():
    bare = {key: value for key, value in values("rl/config.toml").items() if key != "ckpt"}
    with pytest.raises(UserError, match="writes no checkpoints"):
        check_faults([parse_fault("corrupt")], Stage(topology=ONE, values=bare, steps=2))


def test_ports_are_known_by_what_they_are_for():
    written = named_ports(values("rl/multinode.toml"), MIXED, 1212)
    assert written["gateway"] == 1212 and written["router"] == 8000 and written["first engine"] == 8100
    assert written["weight broadcast"] == 29501 and written["rollouts of other ranks"] == 5556
    here = {use: number for number, use in enumerate(written)}
    faults = parse_faults(["port-busy:port=1212", "port-busy:port=29000"])
    assert list(busy_ports(faults, written, here).values()) == [here["gateway"], here["router metrics"]]
    assert named_ports(values("sft/config.toml"), Topology("sft", "multi_node", 2, 8), None) == {
        "torchrun rendezvous": 29500
    }
    stage = Stage(topology=MIXED, values={}, steps=1, ports={1212: "gateway", 8000: "router"})
    with pytest.raises(UserError, match=r"ports of this launch: 1212 \(gateway\), 8000 \(router\)"):
        check_faults([parse_fault("port-busy:port=8001")], stage)
