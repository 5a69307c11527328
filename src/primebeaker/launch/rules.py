"""What a TOML must hold to be worth launching: rules of Prime-RL, of Beaker's restarts, and of validation policy.

Every rule adds one mistake (or returns one warning) that says what to write instead.
"""

from __future__ import annotations

from primebeaker.launch.facts import TrainingFacts
from primebeaker.launch.keys import Keys

__all__ = ["check_generation", "check_tables", "check_training", "topology_type"]


def check_generation(facts: TrainingFacts, keys: Keys, *, multi_node: bool, image_given: bool) -> None:
    """Refuse what this generation cannot do here: the catalogued images hold Prime-RL 0.7."""
    if facts.generation != "0.8":
        return
    if not image_given:
        keys.missing(
            "generation 0.8",
            "the TOML is for Prime-RL 0.8, and the catalogued images hold Prime-RL 0.7",
            "pass --image with a Prime-RL 0.8 image",
        )
    if not multi_node:
        return
    if facts.kind == "rl":
        keys.refuse(
            "deployment.type",
            "multi-node RL is supported for Prime-RL 0.7 TOMLs only",
            "set deployment.type = 'single_node', or use a Prime-RL 0.7 TOML",
        )
    else:
        for table in ("eval", "inference"):
            if keys.present(table):
                keys.refuse(table, "multi-node SFT with online evals is not supported", f"leave out [{table}]")


def check_tables(facts: TrainingFacts, keys: Keys, *, multi_node: bool) -> None:
    """The tables and keys that must be there for this kind of launch."""
    keys.need_table(facts.wandb_table)
    if facts.kind == "rl":
        if multi_node and facts.generation == "0.7":
            for table in ("trainer.model", "inference", "inference.parallel"):
                keys.need_table(table)
        return
    for table, rest in (("data", ()), ("val", ("val.data",))):
        if keys.need_table(table):
            for inner in rest:
                keys.need_table(inner)
    for table in ("data", "val.data"):
        if (
            keys.present(table)
            and keys.value(f"{table}.type") != "fake"
            and keys.need(f"{table}.name", "set it to a path or a dataset id")
        ):
            keys.text(f"{table}.name")
    if keys.present("val"):
        keys.need("val.interval", "set it to 1 or more")
    if not multi_node:
        if keys.need_table("ckpt"):
            keys.need("ckpt.interval", "set it to 1 or more")
        keys.need("max_steps", "set it to 1 or more")
    _check_validation_policy(keys)


def _check_validation_policy(keys: Keys) -> None:
    max_steps = keys.integer("max_steps", least=1)
    every = keys.integer("val.interval", least=1)
    saves = keys.integer("ckpt.interval", least=1)
    if keys.present("val") and not keys.boolean("val.eval_on_start"):
        path = "val.eval_on_start"
        message = "validation must run before the first step, so that every run has a starting point to compare with"
        if keys.present(path):
            keys.refuse(path, message, "set it to true")
        else:
            keys.missing(path, f"{message}, and Prime-RL's default is false", "set it to true")
    if every is not None and max_steps is not None and every > max_steps:
        keys.refuse(
            "val.interval",
            f"validation would never run within max_steps = {max_steps}",
            f"set it to {max_steps} or less",
        )
    if every is not None and saves is not None and every > saves:
        keys.refuse(
            "val.interval",
            f"checkpoints are saved every {saves} steps (ckpt.interval) and some would have no validation",
            f"set it to {saves} or less",
        )


def check_training(facts: TrainingFacts, keys: Keys, topology_type: str) -> list[str]:
    """The rules that every launch obeys.

    Returns:
        Warnings.
    """
    single = topology_type == "single_node"
    warnings: list[str] = []
    offline = f"{facts.wandb_table}.offline"
    if facts.kind == "rl" and facts.offline:
        keys.refuse(
            offline,
            "Prime-RL's rl refuses it at the top level",
            f"set trainer.{offline} = true and orchestrator.{offline} = true instead",
        )
    if keys.boolean("dry_run"):
        keys.refuse("dry_run", "the job would end at once", "remove it")
    if single and keys.present("slurm"):
        keys.refuse("slurm", "Prime-RL would call sbatch inside the container", "remove [slurm]")
    if facts.clean:
        if single:
            keys.refuse(
                facts.clean_key,
                "the task restarts automatically, and every restart would delete the run's checkpoints",
                "set it to false",
            )
        else:
            warnings.append(
                keys.warning(facts.clean_key, "what the output directory holds is moved aside when the run starts")
            )
    if single and not facts.resumes and keys.present("ckpt.interval"):
        mend = "add [resume]" if facts.generation == "0.8" else "set ckpt.resume_step = -1"
        warnings.append(
            keys.warning(
                "ckpt.interval",
                "a restarted task will stop, because Prime-RL refuses a directory that already holds checkpoints",
                mend,
            )
        )
    if facts.kind == "rl" and single and not keys.present("inference"):
        warnings.append(f"{keys.file}: [inference] is absent: no inference server is started")
    return warnings


def topology_type(keys: Keys) -> str:
    """``single_node`` or ``multi_node`` as the TOML declares it; Prime-RL's default is a single node."""
    return "multi_node" if keys.value("deployment.type") == "multi_node" else "single_node"
