"""Figures that compare two judges of the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primebeaker.environments._shared.rubric_rows import Rubric, rubric_score

__all__ = ["SHADOW_NUMBERS", "compared"]

#: The figures of an observation, shown as metrics too.
SHADOW_NUMBERS = (
    "num_judgments",
    "label_agreement",
    "weighted_label_agreement",
    "primary_pass_rate",
    "shadow_pass_rate",
    "primary_pass_shadow_fail_rate",
    "primary_fail_shadow_pass_rate",
    "primary_rubric_score",
    "shadow_rubric_score",
    "shadow_minus_primary_score",
)


def compared(rubrics: Sequence[Rubric], primary: Sequence[str], shadow: Sequence[str]) -> dict[str, Any]:
    """The pairs of labels and the figures over them; weighted ones use absolute weights."""
    pairs = list(zip(rubrics, primary, shadow, strict=True))
    count = len(pairs)
    weights = sum(abs(rubric.weight) for rubric in rubrics)
    scores = rubric_score(rubrics, primary), rubric_score(rubrics, shadow)
    return {
        "pairs": [
            {"original_index": rubric.original_index, "weight": rubric.weight, "primary": first, "shadow": second}
            for rubric, first, second in pairs
        ],
        "num_judgments": count,
        "label_agreement": sum(first == second for _, first, second in pairs) / count,
        "weighted_label_agreement": sum(abs(rubric.weight) for rubric, first, second in pairs if first == second)
        / weights,
        "primary_pass_rate": sum(label == "pass" for label in primary) / count,
        "shadow_pass_rate": sum(label == "pass" for label in shadow) / count,
        "primary_pass_shadow_fail_rate": sum((first, second) == ("pass", "fail") for _, first, second in pairs) / count,
        "primary_fail_shadow_pass_rate": sum((first, second) == ("fail", "pass") for _, first, second in pairs) / count,
        "primary_rubric_score": scores[0],
        "shadow_rubric_score": scores[1],
        "shadow_minus_primary_score": scores[1] - scores[0],
    }
