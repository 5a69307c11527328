"""From a training TOML to the sub-configs the processes of a topology are started with.

Prime-RL's own classes validate and resolve when they are installed; else the built-in resolver fills the least that
is needed, with a notice.  What only this topology knows (a mixed node, moved ports) is then written over the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from primebeaker.bundled import ENVIRONMENT_NAMESPACE
from primebeaker.config.environments import bundled_module
from primebeaker.errors import Mistakes, UserError
from primebeaker.prime_rl import builtin, validated
from primebeaker.prime_rl.contract import DEFAULT, Component, Contract
from primebeaker.prime_rl.tables import Table, drop, lookup, put

__all__ = [
    "RLWiring",
    "ResolvedRL",
    "ResolvedSFT",
    "Validation",
    "pin_resume_step",
    "refuse_rl",
    "resolve_rl",
    "resolve_sft",
    "wire_rl",
    "with_environment_namespace",
]

#: ``required``: an installed Prime-RL must validate; ``auto``: fall back with a notice; ``never``: built-in only.
Validation = Literal["required", "auto", "never"]


@dataclass(frozen=True, kw_only=True)
class ResolvedRL:
    """An RL run's sub-configs, and the facts the roles read from them.

    Attributes:
        contract: The Prime-RL version.
        trainer: Content of the trainer's sub-config; likewise ``orchestrator`` and ``inference``.
        shared_env: The TOML's ``[env_vars]``.
        notices: Lines for the log.
    """

    contract: Contract
    trainer: Table
    orchestrator: Table
    inference: Table
    shared_env: Mapping[str, str]
    notices: tuple[str, ...] = ()

    @property
    def tp(self) -> int:
        """GPUs of one inference engine."""
        return int(lookup({"inference": self.inference}, self.contract.keys.tensor_parallel, 1))

    @property
    def context_parallel(self) -> int:
        """``trainer.model.cp``: ranks that share one sequence."""
        return int(lookup(self.trainer, "model.cp", 1))

    @property
    def broadcast(self) -> str:
        """``nccl``, ``nixl`` or ``filesystem``."""
        return str(lookup(self.trainer, "weight_broadcast.type", self.contract.default_broadcast))

    @property
    def transport(self) -> str:
        """``zmq`` or ``filesystem``."""
        return str(lookup(self.trainer, "rollout_transport.type", self.contract.default_transport))

    @property
    def ranks_filter(self) -> str:
        """Torchrun's ``--local-ranks-filter``."""
        return _ranks_filter(self.trainer, self.contract)

    @property
    def router_policy(self) -> str:
        """Policy word for the router program."""
        return str(lookup(self.inference, "router.policy", self.contract.router_policy))

    @property
    def router_port(self) -> int:
        """The client-facing port of inference."""
        return int(lookup(self.inference, "server.port", self.contract.ports.router))

    @property
    def nccl_port(self) -> int | None:
        """The port of the weight group, None when the transport needs none on rank 0."""
        return int(lookup(self.trainer, "weight_broadcast.port")) if self.broadcast == "nccl" else None

    @property
    def zmq_port(self) -> int | None:
        """The first of the two rollout ports, None when rollouts travel by files."""
        return int(lookup(self.trainer, "rollout_transport.port")) if self.transport == "zmq" else None

    @property
    def model_name(self) -> str:
        """The name ``/v1/models`` must list."""
        return str(
            lookup({"inference": self.inference}, self.contract.keys.inference_model, self.contract.default_model)
        )

    def env(self, component: Component) -> dict[str, str]:
        """Defaults, then ``[env_vars]``, then the component's own ``env_vars``; later wins."""
        table = {"trainer": self.trainer, "orchestrator": self.orchestrator, "inference": self.inference}[component]
        return self.contract.default_env(component) | dict(self.shared_env) | _env_vars(table)


@dataclass(frozen=True, kw_only=True)
class ResolvedSFT:
    """An SFT run's sub-config and the facts the roles read from it; fields as :class:`ResolvedRL`."""

    contract: Contract
    config: Table
    notices: tuple[str, ...] = ()

    @property
    def ranks_filter(self) -> str:
        """Torchrun's ``--local-ranks-filter``."""
        return _ranks_filter(self.config, self.contract)

    @property
    def env(self) -> dict[str, str]:
        """The trainer's environment: defaults, then ``[env_vars]``."""
        return self.contract.default_env("trainer") | _env_vars(self.config)


@dataclass(frozen=True, kw_only=True)
class RLWiring:
    """What only the topology knows.

    Attributes:
        infer_ranks: Engines of the whole topology.
        trainer_gpus: GPUs of the trainer.
        router_port: The router's port, possibly moved.
        nccl_port: The weight group's port, None without nccl.
        zmq_port: The first rollout port, None without zmq.
    """

    infer_ranks: int
    trainer_gpus: int
    router_port: int
    nccl_port: int | None
    zmq_port: int | None


def resolve_rl(
    values: Mapping[str, Any], *, contract: Contract = DEFAULT, validation: Validation = "auto"
) -> ResolvedRL:
    """Resolve an RL TOML (see the module's text).

    Raises:
        UserErrors: Prime-RL refuses the TOML, or shared and own keys disagree.
        ConfigPackageError: ``validation`` is ``required`` and Prime-RL does not import.
    """
    data = with_environment_namespace(values)
    data.setdefault(contract.multi_node_guard, {})
    if lookup(data, "inference.deployment.type") == "multi_node":
        put(data, f"inference.{contract.multi_node_guard}", {})
    notices, parts = _choose(validation, validated.resolve_rl, builtin.resolve_rl, data, contract)
    return ResolvedRL(
        contract=contract,
        trainer=parts.trainer,
        orchestrator=parts.orchestrator,
        inference=parts.inference,
        shared_env=_env_vars(data),
        notices=notices,
    )


def resolve_sft(
    values: Mapping[str, Any], *, contract: Contract = DEFAULT, validation: Validation = "auto"
) -> ResolvedSFT:
    """Resolve an SFT TOML; faults as :func:`resolve_rl`."""
    data = copy.deepcopy(dict(values))
    data.setdefault(contract.multi_node_guard, {})
    notices, config = _choose(validation, validated.resolve_sft, builtin.resolve_sft, data, contract)
    return ResolvedSFT(contract=contract, config=config, notices=notices)


class _Chosen[T](NamedTuple):
    notices: tuple[str, ...]
    config: T


def _choose[T](
    validation: Validation,
    real: Callable[[Table, Contract], T],
    own: Callable[[Table, Contract], T],
    data: Table,
    contract: Contract,
) -> _Chosen[T]:
    if validation == "never" or (validation == "auto" and not validated.available()):
        return _Chosen((builtin.NOTICE,), own(data, contract))
    try:
        return _Chosen((), real(data, contract))
    except validated.ConfigPackageError as error:
        if validation == "required":
            raise
        return _Chosen((f"config not validated by Prime-RL: {error}",), own(data, contract))


def wire_rl(resolved: ResolvedRL, wiring: RLWiring) -> ResolvedRL:
    """Write over the sub-configs what Prime-RL computes for whole nodes only.

    For two nodes of 8 GPUs whose trainer takes four, Prime-RL writes an inference world of 16 and 8 train workers; a
    world size that never fills hangs the weight group for its whole time-out.
    """
    trainer, orchestrator, inference = (
        copy.deepcopy(table) for table in (resolved.trainer, resolved.orchestrator, resolved.inference)
    )
    if resolved.broadcast in ("nccl", "nixl"):
        for table in (trainer, orchestrator):
            put(table, "weight_broadcast.inference_world_size", wiring.infer_ranks * resolved.tp)
    if resolved.broadcast == "nccl":
        put(trainer, "weight_broadcast.host", "0.0.0.0")  # noqa: S104  every engine connects to it
        for table in (trainer, orchestrator):
            put(table, "weight_broadcast.port", wiring.nccl_port)
    if resolved.transport == "zmq":
        for table in (trainer, orchestrator):
            put(table, "rollout_transport.port", wiring.zmq_port)
    put(orchestrator, "num_train_workers", wiring.trainer_gpus // resolved.context_parallel)
    put(inference, "server.port", wiring.router_port)
    # Each process is a bare engine; the one router is a process of its own.
    put(inference, "router", "None" if resolved.contract.generation == "0.7" else None)
    return replace(resolved, trainer=trainer, orchestrator=orchestrator, inference=inference)


def refuse_rl(values: Mapping[str, Any], contract: Contract = DEFAULT) -> None:
    """Refuse what the RL role cannot run, before anything is resolved.

    Raises:
        UserErrors: One line for every such key.
    """
    mistakes = Mistakes()
    inference = values.get("inference")
    if not isinstance(inference, dict):
        mistakes.add(UserError("[inference] is required: the engines and the router are started from it"))
        inference = {}
    router = inference.get("router", {})
    if not isinstance(router, dict):
        mistakes.add(
            UserError(f"inference.router = {router!r}: a multi-node run needs the router", hint="remove the key")
        )
    elif router.get("type", contract.router_type) != contract.router_type:
        mistakes.add(UserError(f"inference.router.type = {router['type']!r}: expected {contract.router_type!r}"))
    if lookup(inference, "enable_expert_parallel") is True or lookup(inference, "vllm.enable_expert_parallel") is True:
        mistakes.add(
            UserError(
                "inference.enable_expert_parallel = true: only dense inference is supported", hint="set it to false"
            )
        )
    if lookup(inference, "deployment.type") == "disaggregated":
        mistakes.add(
            UserError("inference.deployment.type = 'disaggregated': prefill and decode nodes are not supported")
        )
    if lookup(values, "weight_broadcast.type") == "nixl" and lookup(values, "weight_broadcast.host", "localhost") in (
        "localhost",
        "127.0.0.1",
        "::1",
    ):
        mistakes.add(
            UserError(
                "weight_broadcast.host = 'localhost' with type 'nixl': nobody starts that server here",
                hint="name the host of a running one",
            )
        )
    port = lookup(values, contract.keys.router_port, contract.ports.router)
    if isinstance(port, int) and port > contract.ports.highest_router:
        mistakes.add(
            UserError(
                f"{contract.keys.router_port} = {port}: expected at most {contract.ports.highest_router}, since the "
                f"router's metrics take that port + {contract.ports.router_metrics_offset}"
            )
        )
    mistakes.raise_if_any()


def with_environment_namespace(values: Mapping[str, Any]) -> Table:
    """A copy in which every bundled environment is named by the module path Verifiers can load.

    ``jtc_label_env`` and ``pkg.jtc_label_env:load_environment`` both become ``primebeaker.environments.jtc_label_env``;
    foreign ids stay.
    """
    data = copy.deepcopy(dict(values))
    for split in ("train", "eval"):
        for collection in ("source", "env"):
            entries = lookup(data, f"orchestrator.{split}.{collection}", [])
            for entry in entries if isinstance(entries, list) else []:
                identifier = lookup(entry, "legacy.id") if isinstance(entry, dict) else None
                if isinstance(identifier, str):
                    put(entry, "legacy.id", _loadable_id(identifier))
    return data


def _loadable_id(identifier: str) -> str:
    function = identifier.partition(":")[2]
    module = bundled_module(identifier)
    if module is None:
        return identifier
    if function not in ("", "load_environment"):
        raise UserError(
            f"legacy.id = {identifier!r}: a bundled environment is loaded by its module alone",
            hint=f"write {ENVIRONMENT_NAMESPACE}.{module}",
        )
    return f"{ENVIRONMENT_NAMESPACE}.{module}"


def pin_resume_step(values: Mapping[str, Any], step: int | None, contract: Contract = DEFAULT) -> Table:
    """A copy that resumes from exactly ``step``, or starts fresh (None), on every side.

    Trainer and orchestrator would each read −1 as the newest step of their own and may disagree.
    """
    data = copy.deepcopy(dict(values))
    if contract.generation == "0.8":
        drop(data, "resume")
        if step is not None:
            put(data, "resume.step", step)
        return data
    for key in ("ckpt.resume_step", "trainer.ckpt.resume_step", "orchestrator.ckpt.resume_step"):
        drop(data, key)
    if step is not None:
        put(data, contract.keys.resume_step, step)
    return data


def _ranks_filter(table: Mapping[str, Any], contract: Contract) -> str:
    ranks = lookup(table, "log.ranks_filter", list(contract.default_ranks_filter))
    return ",".join(str(rank) for rank in ranks)


def _env_vars(table: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in lookup(table, "env_vars", {}).items()}
