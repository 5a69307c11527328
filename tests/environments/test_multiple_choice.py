"""`multiple-choice-accuracy`: which option a text names."""

import pytest
import verifiers as vf

from primebeaker.environments._shared.options import option_of

MODULE = "primebeaker.environments.jtc_multiple_choice_accuracy_env"


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("The answer is C.", "C"),
        ("The answer is C. I am sure.", "C"),
        ("C, I'm sure", "C"),
        ("C, I’m sure", "C"),
        ("C or D", "D"),
        (r"\boxed{B}", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B is wrong, so A is correct.", "A"),
        ("I", "I"),
        ("Answer: A", "A"),
        ("I think", "I"),
        ("A. Or I is right", "I"),
        ("(c)", None),
        ("AC", None),
        ("A_b", None),
        ("A1", None),
        ("", None),
    ],
)
def test_options(text, option):
    assert option_of(text) == option


def test_accuracy_is_a_metric_and_the_reward_stays_zero(rows_file, play):
    env = vf.load_environment(MODULE, dataset=rows_file({"question": "q", "answer": "(C)", "split": "validation"}))
    played = play(env, ["<think>A</think>I say C."])
    assert (played.reward, played.metrics["accuracy"]) == (0.0, 1.0)
    assert play(env, ["I say D."]).metrics["accuracy"] == 0.0


def test_an_answer_without_an_option_fails_the_load(rows_file):
    path = rows_file({"question": "q", "answer": "C"}, {"question": "q", "answer": "none of them"})
    with pytest.raises(RuntimeError, match=r"rows\.jsonl:2: answer: 'none of them' names no option"):
        vf.load_environment(MODULE, dataset=path)
