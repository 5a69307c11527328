"""Scoring a final answer with the judge service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from literegistry_tool_client import JudgeClient

from primebeaker.environments._shared.behaviour import InfrastructureFault, State, last_assistant, plain_message
from primebeaker.environments._shared.rows import answer_text
from primebeaker.environments._shared.search_answers import final_text
from primebeaker.environments._shared.search_rollout import SearchBehaviour
from primebeaker.environments._shared.services import ServicePool, call_service, pooled
from primebeaker.environments._shared.thinking import content_text, off_the_loop, visible_text

__all__ = [
    "GatewayJudgeClient",
    "JudgeAnswerRubric",
    "JudgedSearchBehaviour",
    "UnusableJudgment",
    "judgment_label",
]


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


class GatewayJudgeClient:
    """The judge service behind the gateway.

    Args:
        server_url: Its route.
        service_model_path: The pool of the judge service.
        timeout: Seconds of one request.
        max_retries: Attempts in all, for failed requests and for replies that break the rules.
        pool: Connections and request slots; by default its own.
    """

    def __init__(
        self,
        server_url: str,
        *,
        service_model_path: str = "judge",
        timeout: float = 240,
        max_retries: int = 3,
        pool: ServicePool | None = None,
    ) -> None:
        self.pool = pool or ServicePool()
        self.max_retries = max_retries
        self.service_model_path = service_model_path.strip()
        self._client = pooled(
            JudgeClient, self.pool, server_url, service_model_path=self.service_model_path, timeout=timeout
        )

    async def judge(self, *, input: str, output: str, rubric: str, model: str) -> Mapping[str, Any]:
        """Ask about one rubric; the reply holds a label.

        Raises:
            UnusableJudgment: The service failed, or its replies broke the rules.
        """
        broken: list[str] = []

        async def ask() -> Any:
            reply = await self._client.execute(input=input, output=output, rubrics=[rubric], model=model)
            try:
                judgment_label(reply)
            except UnusableJudgment as fault:
                broken.append(str(fault))
                raise
            return reply

        async with self.pool.held():
            outcome = await call_service("judge", ask, slot=self.pool.scorer_slot(), attempts=self.max_retries)
        if outcome.kind != "result":
            raise UnusableJudgment(broken[-1] if broken else str(outcome.output["stderr"]))
        return outcome.output

    async def close(self) -> None:
        """Close the connections."""
        await self.pool.close()


class JudgeAnswerRubric:
    """Compares final answers with gold answers by a judge.

    Args:
        judge_client: The judge service.
        judge_model_path: The model it must use.
        rubric_template: What it checks, with ``{answer}`` for the gold answer.
    """

    def __init__(self, *, judge_client: GatewayJudgeClient, judge_model_path: str, rubric_template: str) -> None:
        self.judge_client = judge_client
        self.judge_model_path = judge_model_path
        self.rubric_template = rubric_template

    async def judge_answer(
        self, *, completion: Sequence[Any], answer: Any, prompt: Any, question: str = "", state: State
    ) -> float:
        """1.0 when the judge passes the final answer, else 0.0.

        A judge that fails sets ``state["error"]`` to an infrastructure error.
        """
        from primebeaker.environments._shared.verifiers_adapter import infrastructure_error

        output = final_text({"completion": list(completion)})
        if output is None:
            return 0.0
        asked = question.strip() or _prompt_text(prompt)
        try:
            return float(await self.label(output, asked, answer, state) == "pass")
        except UnusableJudgment as fault:
            state["error"] = infrastructure_error(f"the judge failed: {fault}")
            return 0.0

    async def label(self, output: str, question: str, answer: Any, state: State) -> str:
        """The judge's label; what was asked and answered is kept in ``state["info"]["judge"]``.

        Raises:
            UnusableJudgment: The service failed, or its replies broke the rules.
        """
        gold = answer_text({"answer": answer}) or ""
        request = {
            "input": question,
            "output": output,
            "rubrics": [self.rubric_template.replace("{answer}", gold)],
            "model": self.judge_model_path.strip(),
            "model_path": self.judge_client.service_model_path,
        }
        try:
            reply = await self.judge_client.judge(
                input=question, output=output, rubric=request["rubrics"][0], model=self.judge_model_path.strip()
            )
        except UnusableJudgment as fault:
            _record(state, {"request": request, "error": str(fault)})
            raise
        _record(state, {"request": request, "response": dict(reply)})
        return judgment_label(reply)


class JudgedSearchBehaviour(SearchBehaviour):
    """Search rollouts whose final answer a judge compares with the gold answer."""

    def __init__(self, environment: str, *, judge: JudgeAnswerRubric, **keywords: Any) -> None:
        super().__init__(environment, **keywords)
        self._judge = judge

    async def score(self, env: Any, state: State) -> None:
        """Ask the judge, unless there is no final answer."""
        message = last_assistant(state) or {}
        output = await off_the_loop(visible_text(message), final_text, state)
        if output is None:
            return
        try:
            state["primebeaker_judge_label"] = await self._judge.label(
                output, _question(state), state.get("answer"), state
            )
        except UnusableJudgment as fault:
            self.outages.note("judge", state["trajectory_id"])
            raise InfrastructureFault(f"the judge failed: {fault}") from None


def _question(state: State) -> str:
    row = state["input"]
    question = row.get("question")
    if isinstance(question, str) and question.strip():
        return question.strip()
    return _prompt_text(state["prompt"])


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(content_text(plain_message(message).get("content")) for message in prompt or ())


def _record(state: State, record: dict[str, Any]) -> None:
    info = state.get("info")
    state["info"] = {**(info if isinstance(info, Mapping) else {}), "judge": record}
