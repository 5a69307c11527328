"""What a run that ended well still tells: a reward that teaches nothing, failing tools, checkpoints nobody can use."""

from __future__ import annotations

import pytest

from primebeaker.rehearsal.doubts import earned_by_kind, find_doubts

BOTH = {"verdict, right": [2, 4.0], "verdict, wrong": [2, 2.0], "JSON, right": [1, 0.0], "JSON, wrong": [3, 0.0]}
BLIND = {"verdict, right": [2, 2.0], "verdict, wrong": [4, 4.0], "JSON, right": [1, 0.0], "JSON, wrong": [3, 0.0]}


def step(mean: float, least: float = 0.0, most: float = 2.0, **more: object) -> dict:
    ends = {"train/agg/all/reward/min": least, "train/agg/all/reward/max": most}
    return {"train/agg/all/reward/mean": mean, **ends, **more}


def told(records, *, values=None, checkpoints=(), learns=True, kind="rl") -> list[str]:
    return [found.message for found in find_doubts(kind, values or {}, records, checkpoints, learns=learns)]


def test_a_good_run_leaves_no_doubt():
    records = [step(0.1 * number, **{"rehearsal/kinds": BOTH}) for number in range(12)]
    assert told(records, checkpoints=[{"step": 1, "complete": True}]) == []
    assert told([]) == []


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([step(0.0, 0.0, 0.0)] * 3, "every rollout earned 0: this reward cannot teach anything"),
        ([step(1.0, **{"rehearsal/kinds": BLIND})] * 2, "right answers earn no more than wrong ones"),
        ([step(1.0)] * 8, "the policy did not learn: mean reward 1.000 at first, 1.000 at last"),
        ([step(2.0), *[step(1.5)] * 7], "the policy did not learn: mean reward 1.750 at first, 1.500 at last"),
        ([step(1.0, **{"rehearsal/errors": 2})], "2 rollouts ended in an error"),
        (
            [step(1.0, **{"rehearsal/tool_failures": 2, "rehearsal/tool_calls": 5})],
            "a service failed 2 of 5 tool calls",
        ),
    ],
)
def test_each_doubt(records, words):
    (message,) = told(records)
    assert words in message


def test_too_few_replies_prove_nothing():
    assert told([step(1.0, **{"rehearsal/kinds": {"verdict, right": [1, 1.0], "verdict, wrong": [1, 1.0]}})]) == []
    assert told([step(1.0)] * 8, learns=False) == []


def test_one_kept_checkpoint_and_none_that_is_complete():
    kept = {"ckpt": {"keep_last": 1}}
    assert "may leave no step that both finished" in told([], values=kept)[0]
    assert told([], values={"ckpt": {"keep_last": 1, "keep_interval": 5}}) == []
    assert told([], values=kept, kind="sft") == []
    assert told([], checkpoints=[{"step": 1, "complete": False}]) == [
        "no step is complete, so this run could not be resumed"
    ]


def test_what_replies_earned_is_added_up_best_first():
    rows = earned_by_kind([{"rehearsal/kinds": BOTH}, {"rehearsal/kinds": {"verdict, wrong": [2, 0.0]}}, {}])
    assert rows[:2] == [
        {"reply": "verdict, right", "rollouts": 2, "reward_mean": 2.0},
        {"reply": "verdict, wrong", "rollouts": 4, "reward_mean": 0.5},
    ]
