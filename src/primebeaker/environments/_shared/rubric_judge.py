"""Scoring an answer with a judge over a sample of weighted rubrics, and observing a second judge beside it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from literegistry_tool_client import JudgeClient

from primebeaker.environments._shared.behaviour import (
    Behaviour,
    InfrastructureFault,
    Reward,
    State,
    last_assistant,
    plain_message,
)
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.rubric_rows import (
    Rubric,
    has_orphan_think_close,
    row_rubrics,
    rubric_score,
    sampled_rubrics,
)
from primebeaker.environments._shared.services import OutageLog, ServicePool, call_service, pooled
from primebeaker.environments._shared.shadow_figures import compared
from primebeaker.environments._shared.thinking import content_text, visible_text
from primebeaker.fileio import atomic_write_json

__all__ = ["RubricJudgeBehaviour", "judged_labels"]

_FAULT_PREFIX = (
    "The following describes a fault. Label it pass when the fault IS present in the output, and fail when it is"
    " absent:\n"
)
_LONGEST_NAME = 120


class UnusableJudgments(RuntimeError):
    """A reply of the judge that breaks its rules; the text says how."""


def judged_labels(reply: Any, count: int) -> list[dict[str, Any]]:
    """The judgments of a reply in the order of the rubrics, with their labels in lower case.

    Raises:
        UnusableJudgments: There is not exactly one judgment a rubric, or a label is neither pass nor fail.
    """
    judgments = reply.get("judgments") if isinstance(reply, Mapping) else None
    if not isinstance(judgments, list) or len(judgments) != count:
        raise UnusableJudgments(f"judgments is not a list of {count}")
    ordered: dict[int, dict[str, Any]] = {}
    for judgment in judgments:
        index = judgment.get("rubric_index") if isinstance(judgment, Mapping) else None
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count or index in ordered:
            raise UnusableJudgments(f"rubric_index {index!r} is not one of 0 to {count - 1}, each once")
        label = judgment.get("label")
        if not isinstance(label, str) or label.strip().lower() not in ("pass", "fail"):
            raise UnusableJudgments(f"the label {label!r} is neither pass nor fail")
        ordered[index] = {**judgment, "label": label.strip().lower()}
    return [ordered[index] for index in range(count)]


class RubricJudgeBehaviour(Behaviour):
    """One reply, scored by a judge.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        values: The checked arguments.
    """

    def __init__(self, environment: str, *, rewards: Sequence[Reward], values: Values) -> None:
        self.environment = environment
        self.rewards = rewards
        self.pool = ServicePool()
        self.outages = OutageLog(environment)
        self._judge = self._client(values, "judge", values["judge_server_url"])
        shadow_url = values["shadow_judge_server_url"] or values["judge_server_url"]
        has_shadow = values["shadow_judge_model_path"] is not None
        self._shadow = self._client(values, "shadow_judge", shadow_url) if has_shadow else None

    def _client(self, values: Values, prefix: str, url: str) -> Any:
        return pooled(
            JudgeClient,
            self.pool,
            url,
            service_model_path=values[f"{prefix}_service_model_path"],
            timeout=values[f"{prefix}_timeout"],
        )

    async def score(self, env: Any, state: State) -> None:
        """Judge the final answer and keep the audit in ``state["info"]["jtc_rubrichub_judge"]``."""
        record_id, rubrics = row_rubrics(state["input"], state.get("answer"))
        message = last_assistant(state)
        output = visible_text(message) if message else ""
        selected = sampled_rubrics(rubrics, most=env.max_rubrics, seed=env.rubric_sample_seed, record_id=record_id)
        orphan = has_orphan_think_close(output)
        audit = _empty_audit(env, record_id, selected, orphan)
        if state.get("is_truncated"):
            applied = env.orphan_think_close_penalty if orphan else 0.0
            audit |= {"status": "non_terminated_policy_output", "score": env.non_termination_penalty + applied}
            audit["applied_orphan_think_close_penalty"] = applied
            _record(state, "jtc_rubrichub_judge", audit)
            return
        if not output.strip():
            audit |= {"status": "invalid_policy_output", "score": env.invalid_output_penalty}
            _record(state, "jtc_rubrichub_judge", audit)
            return
        audit["judge_called"] = True
        request = {"input": _input_text(state), "output": output, "rubrics": [_asked(rubric) for rubric in selected]}
        try:
            reply, judgments = await self._ask(
                self._judge, request, env.judge_model_path, env.judge_max_retries, len(selected)
            )
        except UnusableJudgments as fault:
            _record(state, "jtc_rubrichub_judge", {**audit, "status": "judge_failed", "error": str(fault)})
            self.outages.note("judge", state["trajectory_id"])
            raise InfrastructureFault(f"the judge failed: {fault}") from None
        labels = [judgment["label"] for judgment in judgments]
        score = rubric_score(selected, labels)
        applied = env.orphan_think_close_penalty if orphan else 0.0
        audit |= {
            "status": "judged",
            "judge_record_id": reply.get("record_id"),
            "judge_profile": reply.get("profile"),
            "judgments": [
                _judgment_audit(index, rubric, judgment)
                for index, (rubric, judgment) in enumerate(zip(selected, judgments, strict=True))
            ],
            "weighted_pass_sum": sum(
                rubric.weight for rubric, label in zip(selected, labels, strict=True) if label == "pass"
            ),
            "rubric_score_before_format_penalties": score,
            "applied_orphan_think_close_penalty": applied,
            "score": score + applied,
        }
        _record(state, "jtc_rubrichub_judge", audit)
        if self._shadow is not None:
            await self._observe_shadow(env, state, record_id, selected, labels, request)

    async def _ask(
        self, client: Any, request: Mapping[str, Any], model: str, attempts: int, count: int
    ) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """The judge's reply and its judgments; a reply that breaks the rules is asked for again."""
        broken: list[str] = []

        async def ask() -> Any:
            reply = await client.execute(**request, model=model)
            try:
                judged_labels(reply, count)
            except UnusableJudgments as fault:
                broken.append(str(fault))
                raise
            return reply

        async with self.pool.held():
            outcome = await call_service("judge", ask, slot=self.pool.scorer_slot(), attempts=attempts)
        if outcome.kind != "result":
            raise UnusableJudgments(broken[-1] if broken else str(outcome.output["stderr"]))
        return outcome.output, judged_labels(outcome.output, count)

    async def _observe_shadow(
        self,
        env: Any,
        state: State,
        record_id: str,
        selected: Sequence[Rubric],
        labels: Sequence[str],
        request: Mapping[str, Any],
    ) -> None:
        """Ask a second judge about a share of the rollouts; whatever comes of it, reward and error stay."""
        audit = {
            "status": "not_sampled",
            "sample_rate": env.shadow_judge_sample_rate,
            "sample_seed": env.shadow_judge_sample_seed,
            "policy_version": _policy_version(state),
            "trajectory_id": _trajectory_id(state, str(request["output"])),
            "source_record_id": record_id,
            "judge_model_path": env.judge_model_path,
            "shadow_judge_model_path": env.shadow_judge_model_path,
        }
        if not _is_sampled(audit):
            _record(state, "jtc_rubrichub_shadow_judge", audit)
            return
        try:
            attempts = env.shadow_judge_max_retries
            # Waiting for a free slot counts too: an observation may not hold up the score any longer.
            async with asyncio.timeout(env.shadow_judge_timeout * attempts):
                _, judgments = await self._ask(
                    self._shadow, request, env.shadow_judge_model_path, attempts, len(selected)
                )
            audit |= {"status": "ok", **compared(selected, labels, [judgment["label"] for judgment in judgments])}
        except TimeoutError:
            audit |= {"status": "failed", "error": "no answer in time"}
        except Exception as error:
            audit |= {"status": "failed", "error": str(error)}
        if env.shadow_judge_audit_dir is not None:
            try:
                await asyncio.to_thread(_write_audit, env.shadow_judge_audit_dir, audit)
            except (OSError, ValueError) as error:
                audit["audit_persistence_error"] = str(error)
        _record(state, "jtc_rubrichub_shadow_judge", audit)

    async def teardown(self, env: Any) -> None:
        """Close the connections."""
        await self.pool.close()


def _empty_audit(env: Any, record_id: str, selected: Sequence[Rubric], orphan: bool) -> dict[str, Any]:
    return {
        "status": None,
        "error": None,
        "source_record_id": record_id,
        "judge_record_id": None,
        "judge_profile": None,
        "judge_model_path": env.judge_model_path,
        "judge_service_model_path": env.judge_service_model_path,
        "judge_called": False,
        "max_rubrics": env.max_rubrics,
        "rubric_sample_seed": env.rubric_sample_seed,
        "selected_rubrics": [rubric._asdict() for rubric in selected],
        "judgments": [],
        "weighted_pass_sum": None,
        "selected_weight_sum": sum(rubric.weight for rubric in selected if rubric.weight > 0),
        "rubric_score_before_format_penalties": None,
        "orphan_think_close_tag": orphan,
        "orphan_think_close_penalty": env.orphan_think_close_penalty,
        "applied_orphan_think_close_penalty": 0.0,
        "score": None,
    }


def _judgment_audit(index: int, rubric: Rubric, judgment: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "request_index": index,
        **rubric._asdict(),
        "label": judgment["label"],
        "feedback": judgment.get("feedback"),
        "trace": judgment.get("trace"),
        "weighted_pass": rubric.weight if judgment["label"] == "pass" else 0.0,
    }


def _asked(rubric: Rubric) -> str:
    return rubric.text if rubric.weight > 0 else _FAULT_PREFIX + rubric.text


def _input_text(state: State) -> str:
    messages = [plain_message(message) for message in state["prompt"]]
    if len(messages) == 1 and messages[0]["role"] == "user":
        return content_text(messages[0].get("content"))
    return "\n\n".join(f"{message['role']}:\n{content_text(message.get('content'))}" for message in messages)


def _policy_version(state: State) -> str:
    sampling = state.get("sampling_args") or {}
    extra = sampling.get("extra_body") if isinstance(sampling, Mapping) else None
    salt = extra.get("cache_salt") if isinstance(extra, Mapping) else None
    return "unknown" if salt in (None, "") else str(salt)


def _trajectory_id(state: State, output: str) -> str:
    for key in ("trajectory_id", "example_id"):
        if state.get(key) not in (None, ""):
            return str(state[key])
    return hashlib.sha256(output.encode()).hexdigest()


def _is_sampled(audit: Mapping[str, Any]) -> bool:
    keys = ("sample_seed", "policy_version", "trajectory_id", "source_record_id")
    digest = hashlib.sha256(":".join(str(audit[key]) for key in keys).encode()).digest()
    return bool(int.from_bytes(digest[:8], "big") / 2**64 < audit["sample_rate"])


def _write_audit(folder: str, audit: Mapping[str, Any]) -> None:
    place = Path(folder).expanduser() / f"policy_version={_file_name(audit['policy_version'])}"
    place.mkdir(parents=True, exist_ok=True)
    atomic_write_json(place / f"{_file_name(audit['trajectory_id'])}.json", dict(audit))


def _file_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_NAME]
    return "_" if name in ("", ".", "..") else name


def _record(state: State, key: str, audit: dict[str, Any]) -> None:
    info = state.get("info")
    state["info"] = {**(info if isinstance(info, Mapping) else {}), key: audit}
