"""Whatever stands in a TOML, a plan is made or mistakes are told in lines; nothing else ever comes out."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primebeaker.errors import UserError

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(allow_nan=False), st.sampled_from(["", "None", "x", "../y", "/z", "a b\n"]),
    st.just([]), st.just({}), st.lists(st.integers(0, 3), max_size=2), st.just([{}]), st.just({"type": "multi_node"}),
)  # fmt: skip
PATHS = [
    "max_steps", "output_dir", "deployment", "deployment.type", "deployment.gpus_per_node", "deployment.num_train_nodes",
    "deployment.num_infer_nodes", "deployment.num_nodes", "wandb", "wandb.name", "wandb.offline", "wandb.entity", "data", "data.name",
    "data.type", "val", "val.data", "val.interval", "ckpt", "ckpt.interval", "ckpt.output_dir", "ckpt.resume_step", "orchestrator",
    "orchestrator.train", "orchestrator.train.source", "orchestrator.eval", "trainer", "trainer.model", "trainer.model.cp",
    "trainer.env_vars", "inference", "inference.parallel", "inference.parallel.tp", "inference.server", "inference.deployment",
    "inference.router", "weight_broadcast", "slurm", "dry_run", "clean_output_dir", "env_vars", "run", "run.name", "monitors", "resume",
]  # fmt: skip


@pytest.mark.parametrize("base", ["sft", "rl", "sft-nodes", "rl-nodes"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(PATHS), ODD, min_size=1, max_size=3),
    check=st.sampled_from(["off", "warn", "strict"]),
)
def test_odd_values(plan, base, changes, check) -> None:
    # A table that was replaced by a value cannot get keys as well.
    changes = {
        path: copy.deepcopy(value)
        for path, value in changes.items()
        if not any(path.startswith(f"{other}.") and not isinstance(changes[other], dict) for other in changes)
    }
    try:
        made = plan(base, changes, toml_check=check)
    except UserError as error:
        assert all(line and not line.startswith("Traceback") for line in str(error).split("\n"))
    else:
        assert made.spec["tasks"][0]["envVars"]
