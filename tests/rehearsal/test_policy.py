"""The bandit: seeded, it shifts towards what pays, and its weights survive the file format."""

from __future__ import annotations

import pytest

from primebeaker.errors import UserError
from primebeaker.rehearsal.candidates import KINDS, candidate_texts, chosen_kind
from primebeaker.rehearsal.policy import BanditPolicy, Sample, first_match, load_script
from primebeaker.rehearsal.report_text import sparkline


def test_a_new_policy_favours_nothing() -> None:
    assert BanditPolicy().probabilities("any") == pytest.approx([1 / len(KINDS)] * len(KINDS))


def test_the_same_seed_draws_the_same() -> None:
    policy = BanditPolicy()
    assert [policy.choose("k", str(n)) for n in range(20)] == [policy.choose("k", str(n)) for n in range(20)]
    assert len({policy.choose("k", str(n)) for n in range(50)}) > 1


def test_what_pays_becomes_likelier() -> None:
    policy = BanditPolicy()
    for _ in range(20):
        policy = policy.reinforce([Sample("k", 0, 2.0), Sample("k", 1, 0.0)], learning_rate=1.0)
    chances = policy.probabilities("k")
    assert chances[0] == max(chances) and chances[0] > 0.5
    assert chances[1] == min(chances)
    # Another prompt has learnt from it too, and less.
    assert 1 / len(KINDS) < policy.probabilities("other")[0] < chances[0]


def test_equal_rewards_teach_nothing() -> None:
    policy = BanditPolicy().reinforce([Sample("k", kind, 1.0) for kind in range(len(KINDS))], learning_rate=1.0)
    assert policy.probabilities("k") == pytest.approx([1 / len(KINDS)] * len(KINDS))


def test_weights_survive_the_file(tmp_path) -> None:
    policy = BanditPolicy().reinforce([Sample("k", 2, 1.0), Sample("j", 3, 0.0)], learning_rate=0.5)
    again = BanditPolicy.from_bytes(policy.to_bytes())
    assert (again.version, again.seen) == (1, 2)
    assert again.probabilities("k") == pytest.approx(policy.probabilities("k"), abs=1e-6)


@pytest.mark.parametrize("content", [b"", b"\x00" * 8, b"\xff" * 40, BanditPolicy().to_bytes()[:-3]])
def test_damaged_weights_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a"):
        BanditPolicy.from_bytes(content)


def test_a_reply_is_recognised_as_its_candidate() -> None:
    texts = candidate_texts("pass", "fail")
    assert len(texts) == len(KINDS) + 1
    assert "<label>pass</label>" in texts[0] and "<label>fail</label>" in texts[1]
    assert [chosen_kind(texts, {"content": text}) for text in texts[: len(KINDS) - 1]] == list(range(len(KINDS) - 1))
    assert chosen_kind(texts, {"content": "something else"}) is None
    assert chosen_kind(texts, {"content": None, "tool_calls": [{"id": "1"}]}) == len(KINDS) - 1


def test_scripts(tmp_path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('[{"match": "capital", "reply": "Paris"}]')
    rules = load_script(path)
    assert first_match(rules, [{"role": "user", "content": "the capital?"}]).reply == "Paris"
    assert first_match(rules, [{"role": "user", "content": "echo me"}]).reply == "echo me"
    path.write_text('[{"match": "x", "reply": "a", "reply": "b"}]')
    with pytest.raises(UserError, match="the key 'reply' is given twice in one object"):
        load_script(path)
    path.write_text('[{"match": "x"}]')
    with pytest.raises(UserError, match="rule 1: expected match and one of reply, tool_calls"):
        load_script(path)


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([1.0], "▁"), ([0.0, 0.0], "▁▁"), ([0.0, 0.5, 1.0], "▁▅█"), ([1.0, 0.0], "█▁")]
)
def test_the_small_curve(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn
