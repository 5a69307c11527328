"""Which GPUs a launch takes, and what is refused before any is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.errors import Mistakes
from primebeaker.launch.keys import Keys
from primebeaker.launch.topology import plan_topology


def topology_of(kind, values, generation="0.7"):
    mistakes = Mistakes()
    keys = Keys("f.toml", values, lambda path: None, mistakes)
    return plan_topology(kind, keys, generation), [str(error) for error in mistakes.errors]


def multi_node_rl(gpus=8, trainer=4, infer_nodes=2, tp=2, dp=6, servers=None):
    return {
        "deployment": {
            "type": "multi_node", "gpus_per_node": gpus, "num_train_nodes": 1, "num_infer_nodes": infer_nodes,
        },
        "trainer": {"model": {"cp": trainer}},
        "inference": {"parallel": {"tp": tp, "dp": dp}, "api_server_count": dp if servers is None else servers},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trainer", "infer_nodes", "tp", "replicas", "mixed", "ranks"),
    [(4, 2, 2, 2, 4, 6), (4, 2, 1, 2, 4, 12), (8, 1, 1, 2, 0, 8), (8, 3, 1, 4, 0, 24), (4, 1, 4, 1, 4, 1)],
)
def test_multi_node_rl(trainer, infer_nodes, tp, replicas, mixed, ranks) -> None:
    topology, errors = topology_of("rl", multi_node_rl(8, trainer, infer_nodes, tp, ranks))
    assert errors == []
    assert topology.nodes == replicas
    assert topology.as_dict() == {
        "type": "multi_node", "nodes": replicas, "gpus_per_node": 8, "total_gpus": 8 * replicas,
        "trainer_gpus": trainer, "mixed_infer_gpus": mixed, "inference_ranks": ranks,
    }  # fmt: skip


@given(
    gpus=st.sampled_from([1, 2, 4, 8]), cp=st.integers(1, 8), replicate=st.integers(1, 8), infer_nodes=st.integers(1, 5),
    tp=st.integers(1, 8),
)  # fmt: skip
def test_the_message_names_the_counts_that_make_it_work(gpus, cp, replicate, infer_nodes, tp) -> None:
    """Writing the rank count a refusal names gives a topology whose GPUs all have exactly one use."""
    values = multi_node_rl(gpus, cp, infer_nodes, tp, dp=0 + 10_000)
    values["trainer"]["model"]["dp_replicate"] = replicate
    _, errors = topology_of("rl", values)
    assert errors
    if not all("inference ranks" in error for error in errors):
        return
    ranks = int(errors[0].rsplit("set it to ", 1)[1])
    values["inference"] = {"parallel": {"tp": tp, "dp": ranks}, "api_server_count": ranks}
    topology, errors = topology_of("rl", values)
    assert errors == []
    assert topology.trainer_gpus + topology.inference_ranks * tp == topology.total_gpus
    assert topology.mixed_infer_gpus % tp == 0


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("deployment.num_train_nodes", None, "num_train_nodes: multi-node RL on Beaker needs exactly 1 trainer node; set it to 1"),
        ("deployment.num_train_nodes", 2, "num_train_nodes = 2: multi-node RL on Beaker supports exactly 1 trainer node; set it to 1"),
        ("deployment.num_train_nodes", True, "num_train_nodes = true: multi-node RL on Beaker supports exactly 1 trainer node"),
        ("deployment.num_infer_replicas", 2, "num_infer_replicas = 2: multi-node RL on Beaker supports exactly 1 inference replica"),
        ("deployment.num_infer_nodes", None, "num_infer_nodes: multi-node RL needs the number of inference nodes"),
        ("deployment.num_infer_nodes", 0, "num_infer_nodes = 0: expected a whole number of at least 1"),
        ("trainer.model.cp", 16, "more than the 8 GPUs of one node; lower the product to 8 or less"),
        ("inference.parallel.tp", 3, "expected a divisor of the 8 GPUs of a node and of the 4 inference GPUs beside the trainer; set it to one of 1, 2, 4"),
        ("inference.parallel.tp", 8, "set it to one of 1, 2, 4"),
        ("inference.parallel.tp", "2", 'inference.parallel.tp = "2": expected a whole number of at least 1'),
        ("inference.parallel.dp", 8, "12 inference GPUs in groups of tp = 2 make 6 inference ranks; set it to 6"),
        ("inference.parallel.dp", None, "inference.parallel.dp: 12 inference GPUs in groups of tp = 2 make 6 inference ranks, and an absent key counts as 1; set it to 6"),
        ("inference.api_server_count", 1, "inference.api_server_count = 1: 12 inference GPUs"),
        ("inference.enable_expert_parallel", True, "multi-node RL serves dense models only"),
        ("inference.deployment", {"type": "disaggregated"}, "disaggregated inference is not supported"),
        ("inference.router", "None", "multi-node RL needs the router"),
        ("inference.server", {"port": 44536}, "set it to 44535 or less"),
        ("weight_broadcast", {"type": "nixl"}, "nixl weight broadcast with host 'localhost'"),
        ("weight_broadcast", {"type": "nixl", "host": "localhost"}, "nixl weight broadcast with host 'localhost'"),
        ("deployment.type", "multi-node", "deployment.type = \"multi-node\": expected 'single_node' or 'multi_node'"),
    ],
)  # fmt: skip
def test_multi_node_rl_refuses(path, value, expected) -> None:
    values = multi_node_rl()
    *tables, name = path.split(".")
    place = values
    for table in tables:
        place = place.setdefault(table, {})
    place.pop(name, None)
    if value is not None:
        place[name] = value
    topology, errors = topology_of("rl", values)
    assert topology is None
    assert any(expected in error for error in errors), errors


def test_rank_counts_count_as_one_when_absent() -> None:
    values = multi_node_rl(8, 4, 1, 4, 1)
    del values["inference"]["api_server_count"], values["inference"]["parallel"]["dp"]
    assert topology_of("rl", values)[1] == []


def test_the_order_of_mistakes_is_that_of_the_rules() -> None:
    values = multi_node_rl(dp=1)
    values["deployment"] |= {"num_train_nodes": 2, "num_infer_replicas": 3}
    values["inference"]["enable_expert_parallel"] = True
    errors = topology_of("rl", values)[1]
    found = [error.split(":")[1].split("=")[0].strip() for error in errors]
    assert found == ["deployment.num_train_nodes", "deployment.num_infer_replicas", "inference.enable_expert_parallel"]


@pytest.mark.parametrize(
    ("kind", "deployment", "gpus"),
    [
        ("sft", None, 1), ("sft", {"num_gpus": 4}, 4), ("sft", {"num_gpus": 16, "gpus_per_node": 16}, 16),
        ("rl", None, 2), ("rl", {"num_train_gpus": 4, "num_infer_gpus": 4}, 8),
        ("rl", {"type": "single_node", "num_train_gpus": 1, "num_infer_gpus": 3, "gpus_per_node": 4}, 4),
    ],
)  # fmt: skip
def test_single_node(kind, deployment, gpus) -> None:
    topology, errors = topology_of(kind, {} if deployment is None else {"deployment": deployment})
    assert errors == []
    assert topology.as_dict() == {"type": "single_node", "gpus": gpus}


@pytest.mark.parametrize(
    ("kind", "deployment", "expected"),
    [
        ("sft", {"num_gpus": 2, "gpus_per_node": 8}, "deployment.num_gpus is 2, so the task has 2 GPUs; set gpus_per_node = 2"),
        ("sft", {"num_gpus": 9}, "a node has 8 GPUs when deployment.gpus_per_node is absent"),
        ("sft", {"num_gpus": "4"}, 'deployment.num_gpus = "4": expected a whole number of at least 1'),
        ("sft", {"num_gpus": True}, "deployment.num_gpus = true: expected a whole number of at least 1"),
        ("rl", {"num_train_gpus": 2, "num_infer_gpus": 1, "gpus_per_node": 8}, "deployment.num_train_gpus + deployment.num_infer_gpus is 3, so the task has 3 GPUs; set gpus_per_node = 3"),
        ("rl", {"num_train_gpus": 8, "num_infer_gpus": 1}, "is 9, but a node has 8 GPUs"),
        ("rl", {"num_train_gpus": 0}, "deployment.num_train_gpus = 0: expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_single_node_refuses(kind, deployment, expected) -> None:
    topology, errors = topology_of(kind, {"deployment": deployment})
    assert topology is None
    assert expected in errors[0]


def test_sft_of_the_new_generation_counts_inference_gpus() -> None:
    deployment = {"num_train_gpus": 3, "num_infer_gpus": 1}
    assert topology_of("sft", {"deployment": deployment}, "0.8")[0].total_gpus == 3
    assert topology_of("sft", {"deployment": deployment, "inference": {}}, "0.8")[0].total_gpus == 4


@pytest.mark.parametrize(
    ("deployment", "nodes", "gpus"),
    [({}, 2, 8), ({"num_nodes": 4, "gpus_per_node": 4, "nodes_per_fsdp_group": 2}, 4, 4)],
)
def test_multi_node_sft(deployment, nodes, gpus) -> None:
    topology, errors = topology_of("sft", {"deployment": {"type": "multi_node", **deployment}})
    assert errors == []
    assert topology.as_dict() == {
        "type": "multi_node", "nodes": nodes, "gpus_per_node": gpus, "total_gpus": nodes * gpus,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ({"num_nodes": 1}, "multi-node SFT needs at least 2 nodes"),
        ({"num_nodes": 4, "nodes_per_fsdp_group": 3}, "nodes_per_fsdp_group = 3: expected a divisor of the 4 nodes"),
        ({"gpus_per_node": 0}, "gpus_per_node = 0: expected a whole number of at least 1"),
    ],
)
def test_multi_node_sft_refuses(deployment, expected) -> None:
    errors = topology_of("sft", {"deployment": {"type": "multi_node", **deployment}})[1]
    assert expected in errors[0]
