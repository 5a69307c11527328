"""A finished multi-node RL run on disk, and Beaker's record of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from primebeaker.cli import main

TOML = """max_steps = 40
output_dir = "runs/rl"  # kept
clean_output_dir = true
[deployment]
type = "multi_node"
gpus_per_node = 8
num_train_nodes = 1
num_infer_nodes = 2
[wandb]
project = "p"
name = "tiny rl"
[orchestrator]
batch_size = 4
[trainer.model]
dp_replicate = 4
[inference]
api_server_count = 6
[inference.parallel]
tp = 2
dp = 6
[ckpt]
interval = 5
"""
OLD = time.time() - 3600


def write_step(output: Path, step: int, *, ranks: int = 4, progress: bytes = b"p", shard: bytes = b"x") -> None:
    """A step that both sides finished, unless told otherwise."""
    trainer = output / "checkpoints" / f"step_{step}" / "trainer"
    orchestrator = output / "run_default" / "checkpoints" / f"step_{step}" / "orchestrator"
    for folder in (trainer, orchestrator):
        folder.mkdir(parents=True)
    for rank in range(ranks):
        (trainer / f"__{rank}_0.distcp").write_bytes(shard)
    (trainer / ".metadata").write_bytes(b"m")
    (orchestrator / "progress.pt").write_bytes(progress)


def age(root: Path) -> None:
    """Let everything look an hour old."""
    for path in [root, *root.rglob("*")]:
        os.utime(path, (OLD, OLD))


class Run:
    """The source run: its files below ``mount``, and what Beaker tells about it."""

    def __init__(self, mount: Path, beaker: Any) -> None:
        self.mount = mount
        self.beaker = beaker
        self.output = mount / "runs" / "rl"
        self.toml = mount / "run.toml"
        self.toml.write_text(TOML)
        for step in (10, 20):
            write_step(self.output, step)
            (self.output / "weights" / f"step_{step}").mkdir(parents=True)
        broadcasts = self.output / "run_default" / "broadcasts"
        for step in (10, 20, 22):
            (broadcasts / f"step_{step}").mkdir(parents=True)
            (broadcasts / f"step_{step}" / "STABLE").touch()
        age(self.output)
        self.spec: dict[str, Any] = {
            "name": "prime-rl-multinode",
            "image": {"beaker": "01KZVDND2PYP538F5JSGJ469EC"},
            "command": ["python3", "-m", "primebeaker.multinode", "role", "rl"],
            "envVars": [],
            "datasets": [{"mountPath": str(mount), "source": {"weka": "bucket"}}],
            "resources": {"gpuCount": 8, "sharedMemory": "64GiB"},
            "context": {"priority": "urgent", "minRuntime": "90m"},
            "constraints": {"cluster": ["ai2/x", "ai2/y"]},
        }
        self.values = {
            "CONFIG_PATH": str(self.toml), "OUTPUT_DIR": str(self.output), "WORKING_DIR": str(mount), "SCRATCH": str(mount),
            "HOME": str(mount), "REGISTRY": "redis://u:pass-word@h:1", "WANDB_SHARED_RUN_ID": "wandb1", "GATEWAY_PORT": "1300",
            "REQUIRED_LITEREGISTRY_SERVICES": '{"terminal":2}', "MINE": "a = b\nc", "PRIMEBEAKER_GRACE_SECONDS": "5",
            "PRIMEBEAKER_VERSION": "0.1", "WANDB_ENTITY": "team", "TOTAL_NODES": "2",
        }  # fmt: skip
        self.secrets = {"WANDB_API_KEY": "my-wandb", "BEAKER_TOKEN": "t", "OTHER": "o"}
        self.status: list[dict[str, Any]] = [{"started": "2026-01-01T00:00:01Z", "finalized": "2026-01-01T00:00:02Z"}]
        beaker.answer("secret list", [{"name": "my-wandb"}, {"name": "o"}])
        self.tell()

    def tell(self, **more: Any) -> None:
        """Let Beaker answer with the present state."""
        spec = {
            **self.spec,
            "envVars": [{"name": name, "value": value} for name, value in self.values.items()]
            + [{"name": name, "secret": value} for name, value in self.secrets.items()],
        }
        jobs = [
            {
                "id": f"01J{index}",
                "execution": {"replicaRank": index, "spec": spec},
                "status": {"created": f"2026-01-01T00:00:0{index}Z", **status},
            }
            for index, status in enumerate(self.status)
        ]
        experiment = {
            "id": "01SOURCE",
            "name": "me/parent",
            "workspaceRef": {"fullName": "ai2/oe-agents"},
            "jobs": jobs,
            **more,
        }
        self.beaker.answer("experiment get 01SOURCE", [experiment])
        self.beaker.answer("job get", jobs)

    def write_step(self, step: int, **parts: Any) -> None:
        write_step(self.output, step, **parts)

    def age(self) -> None:
        age(self.output)

    def files(self) -> dict[str, bytes]:
        """Every file below the output directory that is not the resume's own."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in self.output.rglob("*")
            if path.is_file() and "primebeaker_resume" not in path.parts
        }

    def manifest(self, attempt: str = "a1") -> dict[str, Any]:
        return json.loads((self.output / "primebeaker_resume" / "attempts" / f"{attempt}.json").read_text())


@pytest.fixture
def source(tmp_path: Path, beaker: Any) -> Run:
    mount = tmp_path / "weka"
    mount.mkdir()
    return Run(mount, beaker)


@pytest.fixture
def resume(source: Run, capsys: pytest.CaptureFixture[str]):
    """Run ``rl resume``: exit code, document or None, stderr."""

    def run(*words: str, attempt: str | None = "a1"):
        ids = [f"--attempt-id={attempt}"] if attempt else []
        code = main(["rl", "resume", "--from-experiment=01SOURCE", *ids, *words])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else None, captured.err

    return run
