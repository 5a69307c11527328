"""Where an orchestrator's rollouts come from: the config's own environments, or nowhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.candidates import KINDS, CandidateBook
from primebeaker.rehearsal.policy import Sample
from primebeaker.rehearsal.settings import RehearsalSettings, rehearsal_directory
from primebeaker.rehearsal.standins.outcome import Rollout, Split

if TYPE_CHECKING:
    from primebeaker.rehearsal.standins.rollouts import Source

__all__ = ["Environments", "Invented"]

#: Rows of a source whose prompts and answers are read before the first rollout.
_KNOWN_ROWS = 64


class _Example(NamedTuple):
    source: Source
    row: int
    size: int


class Invented:
    """Rollouts that nobody ran, for TOMLs whose environments cannot run here: seeded rewards, no model asked."""

    def __init__(self, config: Table, settings: RehearsalSettings) -> None:
        self._count = int(lookup(config, "batch_size", 2))
        self._seed = settings.seed

    async def collect(self, split: Split, step: int) -> Sequence[Rollout]:
        """Seeded rewards for a training step, nothing for an evaluation."""
        if split == "eval":
            return []
        draw = random.Random(f"{self._seed}:{step}")  # noqa: S311  seeded filler
        kinds = [draw.randrange(len(KINDS)) for _ in range(self._count)]
        return [_invented(Sample("invented", kind, float(kind == 0))) for kind in kinds]


class Environments:
    """The config's own environments, run by Verifiers against inference."""

    def __init__(self, config: Table, settings: RehearsalSettings, base_url: str) -> None:
        # Verifiers takes seconds to import: after the config is known to be good, and never without rollouts.
        from primebeaker.rehearsal.standins.rollouts import RolloutRunner, load_sources

        book = CandidateBook.open(rehearsal_directory())
        self._sources = {
            "train": load_sources(lookup(config, "train.source", [])),
            "eval": load_sources(lookup(config, "eval.source", [])),
        }
        if not self._sources["train"]:
            raise UserError("train.source: no environment to train on", hint="rehearse with --no-rollouts")
        self._config = config
        model = str(lookup(config, "model.name", GEN_0_7.default_model))
        self._runner = RolloutRunner(base_url, model, book, seed=settings.seed)
        self._group_size = int(lookup(config, "group_size", 1))
        self._prepared: set[tuple[int, int]] = set()
        self._groups = max(int(lookup(config, "batch_size", 128)) // self._group_size, 1)

    async def collect(self, split: Split, step: int) -> Sequence[Rollout]:
        """The groups of a step, run side by side; examples are taken in turn from every source."""
        sampling = lookup(self._config, f"{split}.sampling", {})
        examples = self._train_examples(step) if split == "train" else self._eval_examples()
        await self._prepare(examples)
        jobs = [
            self._runner.group(
                example.source, example.source.rows[example.row], example.size, f"{split}:{step}:{number}", sampling
            )
            for number, example in enumerate(examples)
        ]
        groups = await asyncio.gather(*jobs)
        return [rollout for group in groups for rollout in group]

    def _train_examples(self, step: int) -> list[_Example]:
        examples = []
        for position in range((step - 1) * self._groups, step * self._groups):
            source = self._sources["train"][position % len(self._sources["train"])]
            row = position // len(self._sources["train"]) % len(source.rows)
            examples.append(_Example(source, row, source.group_size if source.group_size > 1 else self._group_size))
        return examples

    def _eval_examples(self) -> list[_Example]:
        return [
            _Example(source, row, source.group_size)
            for source in self._sources["eval"]
            for row in range(
                len(source.rows) if source.num_examples < 0 else min(source.num_examples, len(source.rows))
            )
        ]

    async def _prepare(self, examples: Sequence[_Example]) -> None:
        """Make inference know the prompts; the first rows of every source together, so that answers can differ."""
        if not self._prepared:
            for source in (*self._sources["train"], *self._sources["eval"]):
                known = range(min(len(source.rows), _KNOWN_ROWS))
                await self._runner.prepare(source, [source.rows[row] for row in known])
                self._prepared.update((id(source), row) for row in known)
        for example in examples:
            place = (id(example.source), example.row)
            if place not in self._prepared:
                await self._runner.prepare(example.source, [example.source.rows[example.row]])
                self._prepared.add(place)


def _invented(sample: Sample) -> Rollout:
    record = {"invented": True, "rewards": {"reward": sample.reward}, "errors": []}
    return Rollout("invented", sample.reward, sample, None, 0, 0, record)
