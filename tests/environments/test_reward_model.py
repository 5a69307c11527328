"""`reward-model`: request, score, calibration, failures, accuracy metrics."""

import pytest
import verifiers as vf

MODULE = "primebeaker.environments.jtc_reward_model_env"
SKYWORK = "Skywork/Skywork-Reward-V2-Qwen3-4B"


@pytest.fixture
def load(rows_file, gateway):
    path = rows_file({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "answer": "B"})
    gateway.answers["classify"] = lambda body: {"data": [{"probs": [0.25, 0.75]}]}

    def make(**arguments):
        given = {"dataset": path, "reward_model_path": "m", "reward_server_url": f"{gateway.url}/classify"}
        return vf.load_environment(MODULE, **{**given, **arguments})

    return make


@pytest.mark.parametrize(
    ("probability", "arguments", "score", "within"),
    [
        (0.25, {}, 0.25, 0),
        (0.25, {"score_transform": "logit"}, -1.0986122886681098, 1e-12),
        (0.25, {"standardization_std": 0.5}, 0.5, 0),
        (0.75, {"score_transform": "logit", "reward_model_path": SKYWORK}, 0.36939186775149035, 1e-12),
        (0.75, {"score_transform": "logit", "reward_model_path": f"{SKYWORK}/"}, 0.36939186775149035, 1e-12),
        (
            0.75,
            {"score_transform": "logit", "reward_model_path": SKYWORK, "center_rewards": True},
            -3.8134736038254617,
            1e-12,
        ),
        (0.0, {"score_transform": "logit"}, -16.118095550958316, 1e-6),
        (0.5, {"standardization_mean": 0.25, "center_rewards": True}, 0.25, 0),
        (0.5, {"standardization_mean": 0.25}, 0.5, 0),
    ],
)
def test_scores(load, play, gateway, probability, arguments, score, within):
    gateway.answers["classify"] = lambda body: {"data": [{"probs": [probability, 1 - probability]}]}
    played = play(load(**arguments), ["the answer"])
    assert played.reward == pytest.approx(score, abs=within)
    assert played.metrics["reward_model_score"] == played.reward
    assert played.metrics["reward_model_error"] == 0.0


def test_the_request_and_the_record(load, play, gateway):
    played = play(load(chat_template_kwargs={"x": 1}), ["the answer"])
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "the answer"},
        ],
        "add_generation_prompt": False,
        "chat_template_kwargs": {"x": 1},
    }
    assert gateway.bodies("classify")[0] == body
    assert played.output["info"]["reward_model"] == {
        "request": body,
        "response": {"data": [{"probs": [0.25, 0.75]}]},
        "positive_class_index": 0,
        "probability": 0.25,
        "score_transform": "identity",
        "raw_score": 0.25,
        "standardization": {"mean": 0.0, "std": 1.0, "centered": False},
        "score": 0.25,
    }


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"data": [{"probs": [0.25, 0.75]}]}, "positive_class_index 3 is outside the 2 returned classes"),
        ({"data": []}, "data is not a list of exactly one object"),
        ({"data": [{"probs": []}]}, "probs is not a list of probabilities"),
        ({"data": [{"probs": [0, 0, 0, 1.5]}]}, "which is no number from 0 to 1"),
        ({"data": [{"probs": [0, 0, 0, True]}]}, "which is no number from 0 to 1"),
        ((500, {"detail": "x"}), "service unavailable"),
    ],
)
def test_a_failure_is_an_infrastructure_error_and_never_a_middling_score(load, play, gateway, no_waiting, reply, says):
    gateway.answers["classify"] = lambda body: reply
    played = play(load(positive_class_index=3, score_transform="logit"), ["x"])
    assert played.output["error"]["error"] == "InfraError"
    assert says in str(played.output["error"])
    assert (played.reward, played.metrics["reward_model_error"]) == (0.0, 1.0)
    assert list(played.output["info"]["reward_model"]) == ["request", "error"]


def test_a_broken_reply_is_asked_for_again(load, play, gateway, no_waiting):
    answers = iter([{"data": []}, {"data": [{"probs": [0.5]}]}] * 3)
    gateway.answers["classify"] = lambda body: next(answers)
    env = load()
    assert play(env, ["x"]).reward == 0.5


def test_accuracy_metrics(load, play, rows_file):
    rows = rows_file({"prompt": "q", "answer": r"so \boxed{\frac{1}{2}} A"})
    played = play(load(dataset=rows, log_math_accuracy=True), [r"<think>\boxed{3}</think> \boxed{0.5}"])
    assert (played.metrics["accuracy"], "math_accuracy" in played.metrics) == (1.0, False)
    env = load(dataset=rows, log_math_accuracy=True, log_science_accuracy=True)
    played = play(env, [r"\boxed{2} so A"])
    assert (played.metrics["math_accuracy"], played.metrics["science_accuracy"]) == (0.0, 1.0)
    assert "accuracy" not in played.metrics


def test_centring_without_a_mean_is_warned_about(load, caplog):
    load(center_rewards=True)
    assert [record for record in caplog.records if "nothing is centred" in record.message]
