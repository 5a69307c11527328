"""``rubrichub-judge``: one turn, scored by a judge over a sample of the row's weighted rubrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.arguments import Argument, integer, number, text, url
from primebeaker.environments._shared.behaviour import Reward, State
from primebeaker.environments._shared.build import build_environment, rows_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.rubric_rows import prepared_row
from primebeaker.environments._shared.shadow_figures import SHADOW_NUMBERS

__all__ = ["SPEC", "load_environment"]


def _audit(state: State, key: str = "jtc_rubrichub_judge") -> Mapping[str, Any]:
    info = state.get("info")
    found = info.get(key) if isinstance(info, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float:
    return float(value or 0.0)


def _has_status(status: str) -> Any:
    return lambda env, state: float(_audit(state).get("status") == status)


def _figure(key: str) -> Any:
    return lambda env, state: _number(_audit(state).get(key))


def _metric(name: str, compute: Any, formula: str) -> Reward:
    return Reward(name, compute, formula, weight=0.0, despite_error=name == "judge_error")


REWARDS = (
    Reward(
        "jtc_weighted_score",
        _figure("score"),
        "max(-1, passed weights / positive weights of the sample) + orphan penalty; non_termination_penalty + orphan"
        " penalty when truncated; invalid_output_penalty when blank",
    ),
    _metric("invalid_final_output", _has_status("invalid_policy_output"), "1 if the answer is missing or blank"),
    _metric("non_terminated_policy_output", _has_status("non_terminated_policy_output"), "1 if the output was cut off"),
    _metric("orphan_think_close_tag", _figure("orphan_think_close_tag"), "1 if a </think> has no <think> before it"),
    _metric(
        "orphan_think_close_penalty", _figure("applied_orphan_think_close_penalty"), "the orphan penalty that applied"
    ),
    _metric(
        "rubric_score_before_penalties",
        _figure("rubric_score_before_format_penalties"),
        "the rubric score without the orphan penalty",
    ),
    _metric(
        "num_selected_rubrics",
        lambda env, state: float(len(_audit(state).get("selected_rubrics", ()))),
        "rubrics asked",
    ),
    _metric("judge_error", _has_status("judge_failed"), "1 if the judge failed"),
)


def _shadow_figure(key: str) -> Any:
    return lambda env, state: _number(_audit(state, "jtc_rubrichub_shadow_judge").get(key))


def _shadow_status(*statuses: str) -> Any:
    return lambda env, state: float(_audit(state, "jtc_rubrichub_shadow_judge").get("status") in statuses)


SHADOW_REWARDS = (
    _metric("shadow_judge_sampled", _shadow_status("ok", "failed"), "1 if the shadow judge was asked"),
    _metric("shadow_judge_error", _shadow_status("failed"), "1 if the shadow judge failed"),
    *(_metric(f"shadow_judge_{name}", _shadow_figure(name), f"{name} of the two judges") for name in SHADOW_NUMBERS),
)


SPEC = EnvironmentSpec(
    name="rubrichub-judge",
    summary="Answer in one turn; a judge scores the answer over weighted rubrics.",
    arguments=(
        Argument("dataset", text(), "sojuL/RubricHub_v1", "Path of the rows, or a Hub dataset id."),
        Argument("split", text(), "train", "Split to load."),
        Argument("judge_model_path", text(), description="Model the judge must use."),
        Argument("judge_server_url", url(), "http://127.0.0.1:1212/judge", "Route of the judge service."),
        Argument("judge_service_model_path", text(), "judge", "Pool of the judge service."),
        Argument("judge_timeout", number(above=0), 240, "Seconds of one judge request."),
        Argument("judge_max_retries", integer(least=1), 3, "Attempts of one judge request in all."),
        Argument("max_rubrics", integer(least=1), 8, "Rubrics of a row that are judged."),
        Argument("rubric_sample_seed", integer(), 0, "Seed of the choice of rubrics."),
        Argument("non_termination_penalty", number(below=0), -0.25, "Reward of an output that was cut off."),
        Argument("invalid_output_penalty", number(most=0), 0.0, "Reward of a missing or blank answer."),
        Argument("orphan_think_close_penalty", number(most=0), -0.2, "Added for a </think> without a <think>."),
        Argument("shadow_judge_model_path", text().or_null(), None, "Model of a second judge that only observes."),
        Argument("shadow_judge_server_url", url().or_null(), None, "Its route; null is judge_server_url."),
        Argument("shadow_judge_service_model_path", text(), "judge", "Its pool."),
        Argument("shadow_judge_timeout", number(above=0), 300, "Seconds of one of its requests."),
        Argument("shadow_judge_max_retries", integer(least=1), 1, "Attempts of one of its requests in all."),
        Argument("shadow_judge_sample_rate", number(least=0, most=1), 0.0, "Share of rollouts it observes."),
        Argument("shadow_judge_sample_seed", integer(), 0, "Seed of that share."),
        Argument("shadow_judge_audit_dir", text().or_null(), None, "Folder its audits are written to."),
    ),
    rewards=REWARDS,
)


def _build(values: Values) -> Any:
    from primebeaker.environments._shared.rubric_judge import RubricJudgeBehaviour

    dataset, split = values["dataset"], values["split"]

    def prepare(row: Mapping[str, Any], position: int) -> dict[str, Any]:
        return prepared_row(row, place=f"{dataset}:{split}:", position=position)

    rows = rows_of(SPEC.name, values, DatasetRules(prompt_columns=("prompt",), prepare=prepare))
    rewards = (*REWARDS, *(SHADOW_REWARDS if values["shadow_judge_model_path"] is not None else ()))
    return build_environment(RubricJudgeBehaviour(SPEC.name, rewards=rewards, values=values), rows, values)


load_environment = factory(SPEC, _build)
