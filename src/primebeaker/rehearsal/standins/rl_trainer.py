"""Stand-in for ``prime_rl.trainer.rl.train``: one trainer rank.

Step N: wait for batch N, meet all ranks, one REINFORCE step on the bandit's table, send the new policy to inference,
checkpoint at the interval and once more at the end.  With the in-memory transport the policy before the first step is
sent too, and the last two steps' policies are not, as nobody would use them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from primebeaker.errors import ExternalError, UserError
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.layout import Layout
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.policy import BanditPolicy, Sample
from primebeaker.rehearsal.settings import RehearsalSettings, load_settings
from primebeaker.rehearsal.standins import disk
from primebeaker.rehearsal.standins.channel import Channel, listen
from primebeaker.rehearsal.standins.checkpoint import Retention, commit, remove_old, write_shard, write_weights
from primebeaker.rehearsal.standins.metrics import append_metrics
from primebeaker.rehearsal.standins.orders import die_midsave
from primebeaker.rehearsal.standins.program import load_config, log, parse, run, visible_gpus
from primebeaker.rehearsal.standins.ranks import Ranks, world_of
from primebeaker.rehearsal.standins.weights import TrainerSide, WeightGroup

PROGRAM = "prime_rl.trainer.rl.train"
FLAGS = ("--rollout_transport.host",)
_POLL_SECONDS = 0.05
_POLICY_FILE = "policy.safetensors"


class RLTrainer:
    """One rank. Rank 0 talks to the orchestrator and to inference; all ranks write their shard."""

    def __init__(self, config: Table, ranks: Ranks, settings: RehearsalSettings) -> None:
        self.config = config
        self.ranks = ranks
        self.settings = settings
        output = lookup(config, "output_dir")
        if not isinstance(output, str):
            raise UserError("output_dir is missing from the trainer's config")
        elsewhere = lookup(config, "ckpt.output_dir")
        self.layout = GEN_0_7.layout(Path(output), ckpt_output_dir=Path(elsewhere) if elsewhere else None)
        self.max_steps: int | None = lookup(config, "max_steps")
        self.interval: int | None = lookup(config, "ckpt.interval")
        self.broadcast = str(lookup(config, "weight_broadcast.type", "nccl"))
        self.policy = BanditPolicy()
        self.master = ranks.world.rank == 0

    def train(self) -> None:
        """Run to the last step.

        Raises:
            UserError: The checkpoint to resume from is not there.
            ExternalError: Orchestrator or inference did not come, or went away.
        """
        step = self._resume() + 1
        group = self._weight_group()
        batches = Batches(self.config, self.layout) if self.master else None
        # Every rank goes through this, since it is a meeting of all; only rank 0 has a group to send to.
        if self.broadcast == "nccl":
            self._send_policy(group, step - 1)
        last = step - 1
        while self.max_steps is None or step <= self.max_steps:
            started = time.monotonic()
            message = self.ranks.share(batches.wait(step) if batches else None)
            waited = time.monotonic() - started
            samples = [Sample(*values) for values in message["samples"]]
            before = self.policy
            self.policy = before.reinforce(samples, learning_rate=self.settings.learning_rate)
            self.policy.version = step
            last = step
            if not self._is_unused(step):
                self._send_policy(group, step)
            is_last = step == self.max_steps
            if self.interval and step % self.interval == 0 and not is_last:
                self._save(step)
            self._log_step(step, samples, waited, time.monotonic() - started)
            step += 1
        if self.config.get("ckpt") is not None and last > 0:
            self._save(last)
        self.ranks.gather("done")

    def _resume(self) -> int:
        """The step to continue after: 0, or the checkpoint's."""
        step = lookup(self.config, "ckpt.resume_step")
        if step is None:
            return 0
        if step == -1:
            names = self.layout.trainer_checkpoints.glob("step_*")
            step = max((int(name.name.rpartition("_")[2]) for name in names), default=0)
            if step == 0:
                return 0
        if not self.layout.trainer_metadata(step).is_file():
            raise UserError(f"checkpoint not found at {self.layout.trainer_checkpoint(step)}")
        try:
            self.policy = BanditPolicy.from_bytes((self.layout.trainer_checkpoint(step) / _POLICY_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"checkpoint step {step} cannot be loaded: {error}") from error
        log(f"Resuming training from checkpoint step {step}")
        return int(step)

    def _weight_group(self) -> TrainerSide | None:
        if self.broadcast != "nccl":
            return None
        trainer_side = None
        if self.master:
            values = self.config["weight_broadcast"]
            group = WeightGroup(
                str(values.get("host", "localhost")),
                int(values.get("port", GEN_0_7.ports.nccl)),
                int(values.get("inference_world_size", 1)),
                float(values.get("timeout", 1200)),
            )
            trainer_side = TrainerSide(group)
            log(f"Waiting for {group.inference_ranks} inference ranks at port {group.port}")
            trainer_side.wait_for_all()
        self.ranks.gather("weight group")
        return trainer_side

    def _is_unused(self, step: int) -> bool:
        """Whether inference would never use this step's policy; files carry every policy, for a later resume."""
        return self.broadcast == "nccl" and self.max_steps is not None and step >= self.max_steps - 1

    def _send_policy(self, group: TrainerSide | None, step: int) -> None:
        directory = self.layout.broadcast(step)
        if self.master and self.broadcast == "filesystem":
            directory.mkdir(parents=True, exist_ok=True)
            disk.replace(directory / "model.safetensors", self.policy.to_bytes())
            (directory / "STABLE").touch()
        elif self.master:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "STABLE").touch()
            wait_for(directory / "NCCL_READY", "inference to be ready for the policy")
            assert group is not None, "rank 0 opened the weight group"
            group.send(self.policy.to_bytes())
        self.ranks.gather("policy")

    def _save(self, step: int) -> None:
        world = self.ranks.world
        sizes = self.ranks.gather(write_shard(self.layout, step, world.rank, seed=self.settings.seed))
        if self.master:
            die_midsave(step, self.max_steps)
            disk.replace(self.layout.trainer_checkpoint(step) / _POLICY_FILE, self.policy.to_bytes())
            commit(self.layout, step, sizes)
            model = str(lookup(self.config, "model.name", GEN_0_7.default_model))
            write_weights(self.layout.weight_snapshot(step), self.policy.to_bytes(), model=model)
            retention = Retention(lookup(self.config, "ckpt.keep_last"), lookup(self.config, "ckpt.keep_interval"))
            for root in (self.layout.trainer_checkpoints, self.layout.weights):
                remove_old(root, retention, newest=step)
            log(f"Saved checkpoint at step {step}")
        self.ranks.gather("saved")

    def _log_step(self, step: int, samples: Sequence[Sample], waited: float, seconds: float) -> None:
        if not self.master:
            return
        mean = sum(sample.reward for sample in samples) / len(samples) if samples else 0.0
        entropy = self.policy.entropy({sample.key for sample in samples})
        log(f"Step {step} | {seconds:.2f}s | Reward {mean:.4f} | Entropy {entropy:.4f}")
        append_metrics(
            self.layout.metrics,
            step,
            {
                "entropy/all/mean": entropy,
                "optim/lr": lookup(self.config, "optim.lr", 0.0),
                "time/step": seconds,
                "time/wait_for_batch": waited,
            },
        )


class Batches:
    """Where batches come from: two ports (the second serves the real program's other ranks), or files.

    Raises:
        UserError: A port cannot be used.
    """

    def __init__(self, config: Table, layout: Layout) -> None:
        self._layout = layout
        self._server = None
        self._channel: Channel | None = None
        if lookup(config, "rollout_transport.type", "zmq") == "zmq":
            port = int(lookup(config, "rollout_transport.port", GEN_0_7.ports.zmq))
            host = str(lookup(config, "rollout_transport.host", "localhost"))
            host = "127.0.0.1" if host == "localhost" else host
            self._server = listen(host, port)
            self._fan_out = listen(host, port + 1)

    def wait(self, step: int) -> dict[str, Any]:
        """Batch ``step``, once the orchestrator has shipped it."""
        if self._server is None:
            path = self._layout.orchestrator_dir / "rollouts" / f"step_{step}" / "train_rollouts.bin"
            wait_for(path, f"batch {step}")
            return dict(json.loads(path.read_text("utf-8")))
        if self._channel is None:
            self._channel = Channel(self._server.accept()[0])
        message = self._channel.receive()
        if message.get("step") != step:
            raise ExternalError(f"expected batch {step}, the orchestrator sent {message.get('step')}")
        return dict(message)


def wait_for(path: Path, what: str) -> None:
    """Wait until a file exists, saying so once after a while."""
    started, told = time.monotonic(), False
    while not path.exists():
        if not told and time.monotonic() - started > 10:
            log(f"Waiting for {what}: {path}")
            told = True
        time.sleep(_POLL_SECONDS)


def main(words: list[str]) -> int:
    """Run one rank."""
    arguments = parse(words, dict.fromkeys(FLAGS, "value"))
    config = load_config(arguments, FLAGS)
    world = world_of()
    gpus = visible_gpus()
    if world.local_rank >= len(gpus):
        raise UserError(f"LOCAL_RANK = {world.local_rank}: this trainer has the GPUs {','.join(gpus)} only")
    RLTrainer(config, Ranks(world), load_settings()).train()
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
