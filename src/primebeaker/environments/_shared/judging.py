"""Scoring a final answer with the judge service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from literegistry_tool_client import JudgeClient

from primebeaker.environments._shared.behaviour import InfrastructureFault, State, plain_message
from primebeaker.environments._shared.factory import Values
from primebeaker.environments._shared.rows import answer_text
from primebeaker.environments._shared.search_answers import final_text
from primebeaker.environments._shared.search_rollout import SearchBehaviour
from primebeaker.environments._shared.services import call_service, pooled
from primebeaker.environments._shared.thinking import content_text

__all__ = ["JudgedSearchBehaviour", "UnusableJudgment", "judgment_label"]


class UnusableJudgment(RuntimeError):
    """A reply of the judge that breaks its rules; the text says how."""


def judgment_label(reply: Any) -> str:
    """The label of a judge's reply to one rubric.

    Raises:
        UnusableJudgment: The reply has another shape.
    """
    judgments = reply.get("judgments") if isinstance(reply, Mapping) else None
    if not isinstance(judgments, list) or len(judgments) != 1 or not isinstance(judgments[0], Mapping):
        raise UnusableJudgment("judgments is not a list of exactly one object")
    label = judgments[0].get("label")
    if not isinstance(label, str) or label.strip().lower() not in ("pass", "fail"):
        raise UnusableJudgment(f"the label {label!r} is neither pass nor fail")
    return label.strip().lower()


class JudgedSearchBehaviour(SearchBehaviour):
    """Search rollouts whose final answer a judge compares with the gold answer."""

    def __init__(self, environment: str, *, values: Values, judge_url: str, **keywords: Any) -> None:
        super().__init__(environment, values=values, **keywords)
        self._judge = pooled(
            JudgeClient,
            self.pool,
            judge_url,
            service_model_path=values["judge_service_model_path"],
            timeout=values["judge_timeout"],
        )

    async def score(self, env: Any, state: State) -> None:
        """Ask the judge, unless there is no final answer; keep what was asked and answered in ``state["info"]``."""
        output = final_text(state)
        if output is None:
            return
        gold = answer_text({"answer": state.get("answer")}) or ""
        rubric = env.judge_rubric_template.replace("{answer}", gold)
        request = {
            "input": _question(state),
            "output": output,
            "rubrics": [rubric],
            "model": env.judge_model_path.strip(),
            "model_path": env.judge_service_model_path.strip(),
        }
        broken: list[str] = []

        async def ask() -> Any:
            reply = await self._judge.execute(
                input=request["input"], output=output, rubrics=[rubric], model=request["model"]
            )
            try:
                judgment_label(reply)
            except UnusableJudgment as fault:
                broken.append(str(fault))
                raise
            return reply

        async with self.pool.held():
            outcome = await call_service("judge", ask, slot=self.pool.scorer_slot(), attempts=env.judge_max_retries)
        if outcome.kind != "result":
            reason = broken[-1] if broken else str(outcome.output["stderr"])
            _record(state, {"request": request, "error": reason})
            self.outages.note("judge", state["trajectory_id"])
            raise InfrastructureFault(f"the judge failed: {reason}")
        _record(state, {"request": request, "response": outcome.output})
        state["primebeaker_judge_label"] = judgment_label(outcome.output)


def _question(state: State) -> str:
    row = state["input"]
    question = row.get("question")
    if isinstance(question, str) and question.strip():
        return question.strip()
    contents = [content_text(plain_message(message).get("content")) for message in state["prompt"]]
    return "\n\n".join(contents)


def _record(state: State, record: dict[str, Any]) -> None:
    info = state.get("info")
    state["info"] = {**(info if isinstance(info, Mapping) else {}), "judge": record}
