"""Stand-in for ``prime_rl.trainer.sft.train``: one trainer rank that reads the real data set and pretends to learn.

The rows are really read and really checked, so a data set the trainer cannot use shows here; the loss is a curve from
2.0 downwards, no model is asked.  Every rank keeps its data position in the checkpoint; a rank without one, after a
change of the world size, takes rank 0's.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from primebeaker.environments._shared.sources import open_source
from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.policy import BanditPolicy
from primebeaker.rehearsal.settings import RehearsalSettings, load_settings
from primebeaker.rehearsal.standins import disk
from primebeaker.rehearsal.standins.checkpoint import Retention, commit, remove_old, write_shard, write_weights
from primebeaker.rehearsal.standins.metrics import append_metrics
from primebeaker.rehearsal.standins.orders import die_midsave, hold
from primebeaker.rehearsal.standins.program import load_config, log, parse, run, visible_gpus
from primebeaker.rehearsal.standins.ranks import Ranks, world_of

__all__ = ["SFTTrainer", "check_rows", "loss_at"]

PROGRAM = "prime_rl.trainer.sft.train"
_FIRST_LOSS = 2.0
_STEP_SECONDS = 0.05


class SFTTrainer:
    """One rank; all ranks read the data, take their share of each batch, and write their shard."""

    def __init__(self, config: Table, ranks: Ranks, settings: RehearsalSettings) -> None:
        output = lookup(config, "output_dir")
        if not isinstance(output, str):
            raise UserError("output_dir is missing from the trainer's config")
        elsewhere = lookup(config, "ckpt.output_dir")
        self.config = config
        self.ranks = ranks
        self.settings = settings
        self.layout = GEN_0_7.layout(Path(output), ckpt_output_dir=Path(elsewhere) if elsewhere else None)
        self.max_steps: int | None = lookup(config, "max_steps")
        self.interval: int | None = lookup(config, "ckpt.interval")
        self.val_interval: int | None = lookup(config, "val.interval")
        self.master = ranks.world.rank == 0
        self.rows = read_rows(config, "data")
        self.val_rows = read_rows(config, "val.data") if "val" in config else []
        self.position = 0

    def train(self) -> None:
        """Run to the last step.

        Raises:
            UserError: The checkpoint to resume from is not there.
            ExternalError: Another rank went away.
        """
        batch = int(lookup(self.config, "data.batch_size", 128))
        first = self._resume() + 1
        if self.val_interval and lookup(self.config, "val.eval_on_start") is True:
            self._validate(first - 1)
        step = first
        while self.max_steps is None or step <= self.max_steps:
            started = time.monotonic()
            time.sleep(_STEP_SECONDS)
            self.position = (self.position + batch) % max(len(self.rows), 1)
            losses = self.ranks.gather(loss_at(step, self.ranks.world.rank, self.settings.seed))
            if self.master:
                loss = sum(losses) / len(losses)
                seconds = time.monotonic() - started
                log(f"Step {step} | {seconds:.2f}s | Loss {loss:.4f} | Rows {batch}")
                rate = lookup(self.config, "optim.lr", 0.0)
                append_metrics(self.layout.metrics, step, {"loss/mean": loss, "optim/lr": rate, "time/step": seconds})
                hold(step)
            if self.val_interval and step % self.val_interval == 0:
                self._validate(step)
            if self.interval and step % self.interval == 0 and step != self.max_steps:
                self._save(step)
            step += 1
        if self.config.get("ckpt") is not None and step > 1:
            self._save(step - 1)
        self.ranks.gather("done")

    def _validate(self, step: int) -> None:
        if self.val_rows and self.master:
            loss = loss_at(step, -1, self.settings.seed)
            log(f"Validation | Step {step} | Loss {loss:.4f} | Rows {len(self.val_rows)}")
            append_metrics(self.layout.metrics, step, {"val/loss": loss})
        self.ranks.gather("validated")

    def _resume(self) -> int:
        step = lookup(self.config, "ckpt.resume_step")
        if step == -1:
            names = self.layout.trainer_checkpoints.glob("step_*")
            step = max((int(name.name.rpartition("_")[2]) for name in names), default=None)
        if step is None:
            return 0
        if not self.layout.trainer_metadata(step).is_file():
            raise UserError(f"checkpoint not found at {self.layout.trainer_checkpoint(step)}")
        path = self.layout.dataloader_state(step, self.ranks.world.rank)
        if not path.is_file():
            path = self.layout.dataloader_state(step, 0)
        try:
            self.position = int(json.loads(path.read_text("utf-8"))["position"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"data position cannot be loaded: {error}", file=path) from error
        log(f"Resuming training from checkpoint step {step}")
        return int(step)

    def _save(self, step: int) -> None:
        rank = self.ranks.world.rank
        size = write_shard(self.layout, step, rank, seed=self.settings.seed)
        state = self.layout.dataloader_state(step, rank)
        state.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(state, json.dumps({"position": self.position}))
        sizes = self.ranks.gather(size)
        if self.master:
            die_midsave(step, self.max_steps)
            commit(self.layout, step, sizes)
            model = str(lookup(self.config, "model.name", GEN_0_7.default_model))
            write_weights(self.layout.weight_snapshot(step), BanditPolicy(version=step).to_bytes(), model=model)
            retention = Retention(lookup(self.config, "ckpt.keep_last"), lookup(self.config, "ckpt.keep_interval"))
            for root in (self.layout.trainer_checkpoints, self.layout.weights):
                remove_old(root, retention, newest=step)
            log(f"Saved checkpoint at step {step}")
        self.ranks.gather("saved")


def read_rows(config: Mapping[str, Any], table: str) -> list[Any]:
    """The rows of ``data`` or ``val.data``, every one checked; none for ``type = "fake"``.

    Raises:
        UserError: The data set is not there, or a row has another form.
    """
    if lookup(config, f"{table}.type") == "fake":
        return []
    name = lookup(config, f"{table}.name")
    if not isinstance(name, str):
        raise UserError(f"{table}.name is missing")
    rows: list[Any] = []
    for split in lookup(config, f"{table}.splits", ["train"]):
        rows += check_rows([(row.place, row.value, row.problem) for row in open_source(name, split).rows])
    if not rows:
        raise UserError(f"{table}.name = {name!r}: no rows")
    return rows


def check_rows(rows: Sequence[tuple[str, Any, str | None]]) -> list[Any]:
    """Every row's value: an object with ``messages``, or with ``prompt`` and ``completion``.

    Args:
        rows: Where the row stands, its value, and why it could not be read (None when it could).

    Raises:
        UserError: A row has another form; the message names the first such row.
    """
    for place, value, problem in rows:
        if problem is not None:
            raise UserError(f"{place}: {problem}")
        if not isinstance(value, dict) or not ("messages" in value or {"prompt", "completion"} <= value.keys()):
            found = ", ".join(sorted(value)) if isinstance(value, dict) else type(value).__name__
            raise UserError(f"{place}: expected messages, or prompt and completion; found {found}")
    return [value for _, value, _ in rows]


def loss_at(step: int, rank: int, seed: int) -> float:
    """The invented loss of a rank after ``step``: from 2.0 downwards, with a little seeded noise."""
    noise = random.Random(f"{seed}:{step}:{rank}").uniform(-0.01, 0.01)  # noqa: S311  seeded filler
    return _FIRST_LOSS / (1.0 + 0.25 * step) + noise


def main(words: list[str]) -> int:
    """Run one rank."""
    config = load_config(parse(words, {}))
    world = world_of()
    # The role of a whole node leaves the choice of GPUs to torchrun.
    gpus = visible_gpus(all_when_unset=True)
    if world.local_rank >= len(gpus):
        raise UserError(f"LOCAL_RANK = {world.local_rank}: this trainer has the GPUs {','.join(gpus)} only")
    SFTTrainer(config, Ranks(world), load_settings()).train()
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
