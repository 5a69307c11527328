"""Which GPUs a launch needs and what runs on them: pure functions from a TOML's values to a :class:`Topology`.

Names follow Prime-RL.  A *replica* is one Beaker node.  In multi-node RL the trainer lives on replica 0 alone; when
it needs fewer GPUs than the node has, that node is *mixed* and inference takes the rest of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from primebeaker.launch.keys import Keys

__all__ = ["GREATEST_SERVER_PORT", "Generation", "Kind", "Topology", "plan_topology"]

Kind = Literal["sft", "rl"]
Generation = Literal["0.7", "0.8"]

#: Prime-RL's own default of ``deployment.gpus_per_node``.
DEFAULT_GPUS_PER_NODE = 8
#: The router's metrics port is the server port plus 21000 and must stay a port.
GREATEST_SERVER_PORT = 44535


@dataclass(frozen=True)
class Topology:
    """The GPUs of a launch.

    ``trainer_gpus``, ``mixed_infer_gpus`` and ``inference_ranks`` are meant for multi-node RL and 0 elsewhere.
    """

    kind: Kind
    type: Literal["single_node", "multi_node"]
    nodes: int
    gpus_per_node: int
    trainer_gpus: int = 0
    mixed_infer_gpus: int = 0
    inference_ranks: int = 0

    @property
    def multi_node(self) -> bool:
        """Whether the task has replicas that meet each other."""
        return self.type == "multi_node"

    @property
    def total_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.nodes * self.gpus_per_node

    def as_dict(self) -> dict[str, Any]:
        """The ``topology`` object of a preview."""
        if not self.multi_node:
            return {"type": self.type, "gpus": self.gpus_per_node}
        shape: dict[str, Any] = {
            "type": self.type,
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "total_gpus": self.total_gpus,
        }
        if self.kind == "rl":
            shape["trainer_gpus"] = self.trainer_gpus
            shape["mixed_infer_gpus"] = self.mixed_infer_gpus
            shape["inference_ranks"] = self.inference_ranks
        return shape


def plan_topology(kind: Kind, keys: Keys, generation: Generation = "0.7") -> Topology | None:
    """The topology a TOML asks for.

    Args:
        kind: ``sft`` or ``rl``.
        keys: The TOML; mistakes are added to ``keys.mistakes``.
        generation: The Prime-RL config generation, whose key names are read.

    Returns:
        The topology, or None when mistakes kept it from being known.
    """
    declared = keys.value("deployment.type")
    if declared not in (None, "single_node", "multi_node"):
        keys.refuse("deployment.type", "expected 'single_node' or 'multi_node'")
        return None
    before = len(keys.mistakes.errors)
    plan = {
        ("sft", False): _single_node_sft,
        ("rl", False): _single_node_rl,
        ("sft", True): _multi_node_sft,
        ("rl", True): _multi_node_rl,
    }[kind, declared == "multi_node"]
    topology = plan(keys, generation)
    return topology if len(keys.mistakes.errors) == before else None


def _single_node_sft(keys: Keys, generation: Generation) -> Topology | None:
    if generation == "0.8":
        names = ["deployment.num_train_gpus"]
        if keys.present("inference"):
            names.append("deployment.num_infer_gpus")
    else:
        names = ["deployment.num_gpus"]
    return _one_node("sft", keys, names)


def _single_node_rl(keys: Keys, generation: Generation) -> Topology | None:
    return _one_node("rl", keys, ["deployment.num_train_gpus", "deployment.num_infer_gpus"])


def _one_node(kind: Kind, keys: Keys, names: list[str]) -> Topology | None:
    counts = [keys.integer(name, 1, least=1) or 1 for name in names]
    total = sum(counts)
    gpus_per_node = keys.integer("deployment.gpus_per_node", least=1)
    what = " + ".join(names)
    if gpus_per_node is not None and gpus_per_node != total:
        keys.refuse(
            "deployment.gpus_per_node",
            f"{what} is {total}, so the task has {total} GPUs",
            f"set gpus_per_node = {total}",
        )
    if gpus_per_node is None and total > DEFAULT_GPUS_PER_NODE:
        keys.refuse(
            names[0],
            f"{what} is {total}, but a node has {DEFAULT_GPUS_PER_NODE} GPUs when deployment.gpus_per_node is absent",
            f"lower it to {DEFAULT_GPUS_PER_NODE}, or set deployment.gpus_per_node = {total}",
        )
    return Topology(kind, "single_node", 1, total)


def _multi_node_sft(keys: Keys, generation: Generation) -> Topology | None:
    name = "deployment.num_train_nodes" if generation == "0.8" else "deployment.num_nodes"
    nodes = keys.integer(name, 2) or 0
    if nodes < 2:
        keys.refuse(name, "multi-node SFT needs at least 2 nodes", "set it to 2, or deployment.type = 'single_node'")
    gpus_per_node = keys.integer("deployment.gpus_per_node", DEFAULT_GPUS_PER_NODE, least=1) or 0
    group = keys.integer("deployment.nodes_per_fsdp_group", least=1)
    if group is not None and nodes >= 2 and nodes % group:
        keys.refuse("deployment.nodes_per_fsdp_group", f"expected a divisor of the {nodes} nodes")
    return Topology("sft", "multi_node", nodes, gpus_per_node)


class _Sizes(NamedTuple):
    """``G``, ``T``, ``tp`` and ``N`` of the multi-node RL rules."""

    gpus_per_node: int
    trainer: int
    tp: int
    infer_nodes: int


def _multi_node_rl(keys: Keys, generation: Generation) -> Topology | None:
    mistakes_before = len(keys.mistakes.errors)
    _check_counts(keys)
    infer_nodes = keys.integer("deployment.num_infer_nodes", least=1)
    if not keys.present("deployment.num_infer_nodes"):
        keys.missing(
            "deployment.num_infer_nodes", "multi-node RL needs the number of inference nodes", "set it to 1 or more"
        )
    sizes = _Sizes(
        gpus_per_node=keys.integer("deployment.gpus_per_node", DEFAULT_GPUS_PER_NODE, least=1) or 0,
        trainer=(keys.integer("trainer.model.cp", 1, least=1) or 0)
        * (keys.integer("trainer.model.dp_replicate", 1, least=1) or 0),
        tp=keys.integer("inference.parallel.tp", 1, least=1) or 0,
        infer_nodes=infer_nodes or 0,
    )
    topology = _place(keys, sizes) if len(keys.mistakes.errors) == mistakes_before else None
    _refuse_unsupported_inference(keys)
    return topology


def _check_counts(keys: Keys) -> None:
    path = "deployment.num_train_nodes"
    if not keys.present(path):
        keys.missing(path, "multi-node RL on Beaker needs exactly 1 trainer node", "set it to 1")
    else:
        _exactly_one(keys, path, "multi-node RL on Beaker supports exactly 1 trainer node")
    if keys.present("deployment.num_infer_replicas"):
        _exactly_one(
            keys, "deployment.num_infer_replicas", "multi-node RL on Beaker supports exactly 1 inference replica"
        )


def _exactly_one(keys: Keys, path: str, message: str) -> None:
    value = keys.value(path)
    if isinstance(value, bool) or value != 1 or not isinstance(value, int):
        keys.refuse(path, message, "set it to 1")


def _place(keys: Keys, sizes: _Sizes) -> Topology | None:
    gpus, trainer, tp, infer_nodes = sizes
    if trainer > gpus:
        path = "trainer.model.dp_replicate" if keys.present("trainer.model.dp_replicate") else "trainer.model.cp"
        keys.refuse(
            path,
            f"trainer.model.cp x trainer.model.dp_replicate is {trainer}, more than the {gpus} GPUs of one node",
            f"lower the product to {gpus} or less",
        )
        return None
    mixed = gpus - trainer
    if gpus % tp or mixed % tp:
        rest = f" and of the {mixed} inference GPUs beside the trainer" if mixed else ""
        fitting = ", ".join(str(size) for size in range(1, gpus + 1) if gpus % size == 0 and mixed % size == 0)
        keys.refuse(
            "inference.parallel.tp",
            f"expected a divisor of the {gpus} GPUs of a node{rest}",
            f"set it to one of {fitting}",
        )
        return None
    inference_gpus = mixed + (infer_nodes - 1) * gpus if mixed else infer_nodes * gpus
    ranks = inference_gpus // tp
    for path in ("inference.parallel.dp", "inference.api_server_count"):
        count = keys.integer(path, 1, least=1)
        if count == ranks:
            continue
        message = f"{inference_gpus} inference GPUs in groups of tp = {tp} make {ranks} inference ranks"
        if keys.present(path):
            keys.refuse(path, message, f"set it to {ranks}")
        else:
            keys.missing(path, f"{message}, and an absent key counts as 1", f"set it to {ranks}")
    return Topology(
        "rl",
        "multi_node",
        nodes=infer_nodes if mixed else 1 + infer_nodes,
        gpus_per_node=gpus,
        trainer_gpus=trainer,
        mixed_infer_gpus=mixed,
        inference_ranks=ranks,
    )


def _refuse_unsupported_inference(keys: Keys) -> None:
    """What would only fail after GPUs were allocated: dense inference behind one router is all that is supported."""
    if keys.value("inference.enable_expert_parallel") is True:
        keys.refuse("inference.enable_expert_parallel", "multi-node RL serves dense models only", "set it to false")
    if keys.value("inference.deployment.type") == "disaggregated":
        keys.refuse("inference.deployment.type", "disaggregated inference is not supported on Beaker", "leave it out")
    # Not keys.value(): here the string "None" is the setting itself.
    inference = keys.values.get("inference")
    if isinstance(inference, dict) and inference.get("router") == "None":
        keys.refuse("inference.router", "multi-node RL needs the router", "leave it out")
    port = keys.integer("inference.server.port", least=1)
    if port is not None and port > GREATEST_SERVER_PORT:
        keys.refuse(
            "inference.server.port",
            "the router's metrics port (server port + 21000) would not fit",
            f"set it to {GREATEST_SERVER_PORT} or less",
        )
    if keys.value("weight_broadcast.type") == "nixl":
        host = keys.value("weight_broadcast.host")
        if host in (None, "localhost"):
            path = "weight_broadcast.host" if host else "weight_broadcast.type"
            keys.refuse(
                path,
                "nixl weight broadcast with host 'localhost' cannot reach other nodes",
                "set weight_broadcast.type = 'nccl'",
            )
