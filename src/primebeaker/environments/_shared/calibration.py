"""Mean and spread of the scores of known reward models, for a common scale."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

__all__ = ["Calibration", "calibration_of"]


class Calibration(NamedTuple):
    """Mean and standard deviation of a reward model's logit scores."""

    mean: float
    std: float


def calibration_of(model_path: str) -> Calibration | None:
    """The calibration of a model, by its exact path without a trailing ``/``; None when it is not known."""
    return _table().get(model_path.strip().rstrip("/"))


@cache
def _table() -> dict[str, Calibration]:
    file = resources.files("primebeaker.resources").joinpath("environments", "reward_model_calibration.json")
    entries = json.loads(file.read_text(encoding="utf-8"))
    return {path: Calibration(entry["mean"], entry["std"]) for path, entry in entries.items()}
