"""``reward-model``: one turn, scored by a sequence classifier behind the gateway."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.arguments import Argument, choice, flag, integer, mapping, number, text, url
from primebeaker.environments._shared.behaviour import Reward, State
from primebeaker.environments._shared.build import build_environment, rows_of
from primebeaker.environments._shared.calibration import calibration_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments.jtc_multiple_choice_accuracy_env import option_accuracy, require_option

__all__ = ["SPEC", "load_environment"]

logger = logging.getLogger("primebeaker.environments")


def _record(state: State) -> Mapping[str, Any]:
    info = state.get("info")
    record = info.get("reward_model") if isinstance(info, Mapping) else None
    return record if isinstance(record, Mapping) else {}


def _score(env: Any, state: State) -> float:
    return float(_record(state)["score"])


def _error(env: Any, state: State) -> float:
    return float("error" in _record(state))


def _math_accuracy(env: Any, state: State) -> float:
    return float(state.get("primebeaker_math_accuracy", 0.0))


SCORE = Reward(
    "reward_model_score",
    _score,
    "(raw - mean) / std with raw = p of the positive class, or its log-odds with score_transform = logit",
)
ERROR = Reward("reward_model_error", _error, "1 if the reward model failed", weight=0.0, despite_error=True)

SPEC = EnvironmentSpec(
    name="reward-model",
    summary="Answer in one turn; a sequence classifier behind the gateway scores the answer.",
    arguments=(
        Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
        Argument("reward_model_path", text(), description="Model the classifier must use."),
        Argument("split", text(), "train", "Split to load."),
        Argument("reward_server_url", url(), "http://127.0.0.1:1212/classify", "Route of the classifier."),
        Argument("reward_timeout", number(above=0), 240, "Seconds of one request."),
        Argument("reward_max_retries", integer(least=1), 3, "Attempts of one request in all."),
        Argument("positive_class_index", integer(least=0), 0, "Class whose probability is the score."),
        Argument("score_transform", choice("identity", "logit"), "identity", "Probability, or log-odds."),
        Argument("logit_epsilon", number(above=0, below=0.5), 1e-7, "Distance log-odds keep from 0 and 1."),
        Argument(
            "standardization_mean",
            number().or_null(),
            None,
            "Mean to subtract when centred; null is the model's known one.",
        ),
        Argument("standardization_std", number(above=0).or_null(), None, "Divisor; null is the model's known one."),
        Argument("center_rewards", flag(), False, "Whether the mean is subtracted."),
        Argument("log_math_accuracy", flag(), False, "Whether boxed answers are compared as well."),
        Argument("log_science_accuracy", flag(), False, "Whether options A to J are compared as well."),
        Argument("chat_template_kwargs", mapping().or_null(), None, "Sent along to the classifier."),
    ),
    rewards=(SCORE, ERROR),
)


def _accuracy_rewards(values: Values) -> list[Reward]:
    both = values["log_math_accuracy"] and values["log_science_accuracy"]
    rewards = []
    if values["log_math_accuracy"]:
        name = "math_accuracy" if both else "accuracy"
        rewards.append(Reward(name, _math_accuracy, "1 if the last boxed answers are equivalent", weight=0.0))
    if values["log_science_accuracy"]:
        name = "science_accuracy" if both else "accuracy"
        rewards.append(Reward(name, option_accuracy, "1 if the named options are equal", weight=0.0))
    return rewards


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.reward_model import RewardModelBehaviour

    needs_answer = values["log_math_accuracy"] or values["log_science_accuracy"]
    check = require_option if values["log_science_accuracy"] and not values["log_math_accuracy"] else None
    rows = rows_of(SPEC.name, values, DatasetRules(needs_answer=needs_answer, check=check))
    known = calibration_of(values["reward_model_path"])
    if values["center_rewards"] and known is None and values["standardization_mean"] is None:
        logger.warning(
            "%s: center_rewards has no mean for %s, so nothing is centred; set standardization_mean",
            SPEC.name,
            values["reward_model_path"],
        )
    behaviour = RewardModelBehaviour(SPEC.name, rewards=[*SPEC.rewards, *_accuracy_rewards(values)], values=values)
    return build_environment(behaviour, rows, values)


load_environment = factory(SPEC, _build)
