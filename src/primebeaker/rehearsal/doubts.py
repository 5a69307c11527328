"""What is wrong with a rehearsed run that ended well: its reward, its environments, its checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from primebeaker.launch.topology import Kind
from primebeaker.prime_rl.tables import lookup
from primebeaker.rehearsal.problems import Problem

__all__ = ["earned_by_kind", "find_doubts"]

_FLAT = 1e-9
#: Pairs of replies that differ in nothing but the answer.
_RIGHT_AND_WRONG = (("verdict, right", "verdict, wrong"), ("JSON, right", "JSON, wrong"))
#: From so many steps on, a policy that learns must earn more at the end than at the start.
_ENOUGH_STEPS = 8
_TRY = "look at the rubric and the answers of the data with 'primebeaker env try'"


def earned_by_kind(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each kind of reply earned over all steps: ``reply``, ``rollouts``, ``reward_mean``.

    Args:
        records: The orchestrator's metrics.
    """
    counts: dict[str, int] = {}
    sums: dict[str, float] = {}
    for record in records:
        for kind, (count, total) in dict(record.get("rehearsal/kinds", {})).items():
            counts[kind] = counts.get(kind, 0) + int(count)
            sums[kind] = sums.get(kind, 0.0) + float(total)
    rows = [
        {"reply": kind, "rollouts": counts[kind], "reward_mean": round(sums[kind] / counts[kind], 4)} for kind in counts
    ]
    return sorted(rows, key=lambda row: (-float(str(row["reward_mean"])), str(row["reply"])))


def find_doubts(
    kind: Kind,
    values: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[Mapping[str, Any]],
    *,
    learns: bool,
) -> list[Problem]:
    """Everything that speaks against paying for this run.

    Args:
        kind: ``sft`` or ``rl``.
        values: The training TOML that ran.
        records: The orchestrator's metrics, one a step; empty for SFT or invented rollouts.
        checkpoints: The report's checkpoint rows.
        learns: Whether what answered learns from the rewards.
    """
    found = list(_reward(records, learns=learns))
    errors = sum(int(record.get("rehearsal/errors", 0)) for record in records)
    if errors:
        found.append(Problem("environment", f"{errors} rollouts ended in an error", "see the orchestrator's log"))
    failures = sum(int(record.get("rehearsal/tool_failures", 0)) for record in records)
    if failures:
        calls = sum(int(record.get("rehearsal/tool_calls", 0)) for record in records)
        found.append(Problem("tools", f"a service failed {failures} of {calls} tool calls"))
    if checkpoints and not any(row["complete"] for row in checkpoints):
        found.append(Problem("checkpoints", "no step is complete, so this run could not be resumed"))
    if kind == "rl" and lookup(values, "ckpt.keep_last") == 1 and lookup(values, "ckpt.keep_interval") is None:
        found.append(
            Problem(
                "ckpt.keep_last",
                "1 keeps one step of each side, and the orchestrator saves ahead of the trainer: "
                "a crash in between may leave no step that both finished",
                "set it to 2 or more",
            )
        )
    return found


def _reward(records: Sequence[Mapping[str, Any]], *, learns: bool) -> Iterator[Problem]:
    ends = [record.get(f"train/agg/all/reward/{which}") for record in records for which in ("min", "max")]
    rewards = [float(value) for value in ends if value is not None]
    if len(rewards) > 1 and max(rewards) - min(rewards) < _FLAT:
        yield Problem("reward", f"every rollout earned {rewards[0]:g}: this reward cannot teach anything", _TRY)
        return
    means = {row["reply"]: float(row["reward_mean"]) for row in earned_by_kind(records)}
    pairs = [(means.get(right), means.get(wrong)) for right, wrong in _RIGHT_AND_WRONG]
    known = [(right, wrong) for right, wrong in pairs if right is not None and wrong is not None]
    if len(known) == len(pairs) and all(right - wrong < _FLAT for right, wrong in known):
        yield Problem("reward", "right answers earn no more than wrong ones: this reward cannot tell them apart", _TRY)
        return
    steps = [float(record.get("train/agg/all/reward/mean", 0.0)) for record in records]
    if learns and len(steps) >= _ENOUGH_STEPS:
        quarter = len(steps) // 4
        first, last = statistics.fmean(steps[:quarter]), statistics.fmean(steps[-quarter:])
        if last <= first:
            yield Problem(
                "reward", f"the policy did not learn: mean reward {first:.3f} at first, {last:.3f} at last", _TRY
            )
