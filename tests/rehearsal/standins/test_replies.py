"""The bandit learns from rewards among candidate replies, and everything about it is seeded."""

from __future__ import annotations

import pytest
import safetensors

from primebeaker.errors import UserError
from primebeaker.rehearsal.candidates import (
    KINDS,
    CandidateBook,
    PromptText,
    candidate_texts,
    chosen_kind,
    prompt_key,
)
from primebeaker.rehearsal.policy import BanditPolicy, Sample, load_script
from primebeaker.rehearsal.safetensors import decode

MESSAGES = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "Is it so?"}]


def train(reward_of, steps: int = 12, rollouts: int = 4) -> list[float]:
    """Mean reward a step of a bandit on four prompts."""
    policy, means = BanditPolicy(), []
    for step in range(steps):
        keys = [f"prompt {(2 * step + number // 2) % 4}" for number in range(rollouts)]
        samples = []
        for number, key in enumerate(keys):
            kind = policy.choose(key, f"{step}:{number}")
            samples.append(Sample(key, kind, reward_of(kind)))
        means.append(sum(sample.reward for sample in samples) / rollouts)
        policy = policy.reinforce(samples, learning_rate=1.0)
    return means


def test_a_reward_that_tells_good_from_bad_is_learnt_within_twelve_steps():
    means = train(lambda kind: {0: 2.0, 1: 1.0}.get(kind, 0.0))
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3


def test_the_file_is_read_by_the_safetensors_library():
    content = BanditPolicy().reinforce([Sample("p", 0, 1.0)], learning_rate=1.0).to_bytes()
    ((name, tensor),) = safetensors.deserialize(content)
    assert (name, tensor["dtype"], tensor["shape"]) == ("policy.logits", "F32", [2, len(KINDS)])


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 64, BanditPolicy().to_bytes()[:-1]])
def test_a_damaged_policy_is_refused(content):
    with pytest.raises(ValueError, match="not a safetensors file"):
        decode("policy.logits", content)


def test_a_prompt_keeps_its_key_whatever_form_its_content_has_and_whatever_follows():
    parts = [dict(message, content=[{"type": "text", "text": message["content"]}]) for message in MESSAGES]
    answered = [*MESSAGES, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "More?"}]
    assert prompt_key(MESSAGES) == prompt_key(parts) == prompt_key(answered)
    assert prompt_key(MESSAGES) != prompt_key(MESSAGES[1:])


def test_candidates_differ_by_kind_and_are_recognised():
    texts = candidate_texts("pass", "fail")
    assert len(texts) == len(KINDS) + 1 <= 9
    assert [chosen_kind(texts, {"content": text}) for text in texts[: len(KINDS) - 1]] == list(range(len(KINDS) - 1))
    assert chosen_kind(texts, {"content": None, "tool_calls": [{}]}) == len(KINDS) - 1
    assert chosen_kind(texts, {"content": "something else"}) is None


def test_the_book_takes_the_wrong_answer_from_other_rows_and_is_seen_by_readers(tmp_path):
    writer, reader = CandidateBook.open(tmp_path), CandidateBook.open(tmp_path)
    other = [{"role": "user", "content": "And this?"}]
    writer.add([PromptText(MESSAGES, "pass"), PromptText(other, "fail")])
    assert "<label>fail</label>" in reader.find(prompt_key(MESSAGES))[1]
    assert "<label>pass</label>" in reader.find(prompt_key(other))[1]
    assert reader.find("unknown") is None


@pytest.mark.parametrize("text", ["", "{", '[{"reply": "x"}]', '[{"match": "a", "reply": "x", "tool_calls": []}]'])
def test_a_malformed_script_is_a_mistake_that_names_the_file(tmp_path, text):
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"script\.json"):
        load_script(path)


def test_where_code_is_run_the_tools_reply_is_code_and_the_verdict_follows():
    texts = candidate_texts("pass", "fail", runs_code=True)
    assert "<code>" in texts[len(KINDS) - 1] and "<label>pass</label>" in texts[-1]
    assert chosen_kind(texts, {"content": texts[len(KINDS) - 1]}) == len(KINDS) - 1
