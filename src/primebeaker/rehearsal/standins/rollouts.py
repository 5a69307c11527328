"""Real rollouts: environments loaded and run by Verifiers, scored by their own rubrics.

Imported by the orchestrator alone, as Verifiers takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import verifiers
from verifiers.clients import resolve_client
from verifiers.types import ClientConfig
from verifiers.v1.legacy import rollout_output_to_trace

from primebeaker.errors import UserError
from primebeaker.prime_rl.tables import lookup
from primebeaker.rehearsal.candidates import CandidateBook, PromptText, chosen_kind, message_text, prompt_key
from primebeaker.rehearsal.policy import Sample
from primebeaker.rehearsal.standins.outcome import Rollout

__all__ = ["RolloutRunner", "Source", "load_sources"]

#: What the bundled environments count of a rollout's tool calls, and of those that a service failed.
_CALLS = ("jtc_tool_call_count", "jtc_code_call_count", "jtc_terminal_call_count", "search_agent_tool_call_count")
_FAILURES = ("jtc_tool_infrastructure_stderr_count", "search_agent_infrastructure_error_count")
_STATE_COLUMNS = ["trajectory", *_CALLS, *_FAILURES]
#: How every tool of ours tells the model that its service failed.
_UNAVAILABLE = "service unavailable"


@dataclass(frozen=True)
class Source:
    """One environment of the config with its rows."""

    name: str
    environment: Any
    rows: Sequence[Mapping[str, Any]]
    group_size: int
    num_examples: int


def load_sources(tables: Sequence[Mapping[str, Any]]) -> list[Source]:
    """Load the environments of ``orchestrator.train.source`` or ``orchestrator.eval.source``.

    Args:
        tables: The config's entries.

    Raises:
        UserError: An entry names no classic environment, or it does not load; the message is the environment's own.
    """
    sources = []
    for table in tables:
        identifier = lookup(table, "legacy.id")
        name = str(table.get("name") or identifier)
        if not isinstance(identifier, str):
            raise UserError(
                f"source {name}: only classic environments (legacy.id) run in a rehearsal",
                hint="rehearse with --no-rollouts",
            )
        try:
            # Some environments print while they load; stdout belongs to our own lines.
            with contextlib.redirect_stdout(sys.stderr):
                environment = verifiers.load_environment(identifier, **lookup(table, "legacy.args", {}))
                environment.set_kwargs(**lookup(table, "legacy.extra_env_kwargs", {}))
                rows = environment.get_dataset().to_list()
        except Exception as error:  # An environment is the user's code and may fail in any way.
            raise UserError(f"source {name}: {error}") from error
        sources.append(
            Source(name, environment, rows, int(table.get("group_size", 1)), int(table.get("num_examples", -1)))
        )
    return sources


class RolloutRunner:
    """Runs groups of rollouts against one OpenAI-compatible URL.

    Args:
        base_url: Ends in ``/v1``.
        model: The served model's name.
        book: The candidate replies.
        seed: Makes every request's own ``seed``.
        concurrency: Groups in flight at once.
    """

    def __init__(self, base_url: str, model: str, book: CandidateBook, *, seed: int, concurrency: int = 64) -> None:
        self._model = model
        self._book = book
        self._seed = seed
        self._slots = asyncio.Semaphore(concurrency)
        self._client = resolve_client(
            ClientConfig(
                api_base_url=base_url,
                api_key_var="VLLM_API_KEY",
                max_retries=2,
                extra_headers_from_state={"x-session-id": "trajectory_id"},
            )
        )

    async def prepare(self, source: Source, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write down the candidate replies of some rows, so that inference knows them before it is asked.

        The environment itself says what a row's prompt and answer are.
        """
        prompts = []
        # The one tool that is called by a reply's text.
        runs_code = "python" in getattr(source.environment, "tool_clients", {})
        for row in rows:
            state = await source.environment.init_state(dict(row), self._client, self._model, {})
            answer = state.get("answer")
            text = answer if isinstance(answer, str) and answer else None
            prompts.append(PromptText([_plain(message) for message in state.get("prompt") or []], text, runs_code))
        self._book.add(prompts)

    async def group(
        self, source: Source, row: Mapping[str, Any], size: int, label: str, sampling: Mapping[str, Any]
    ) -> list[Rollout]:
        """``size`` rollouts of one row.

        Args:
            source: The environment.
            row: The example.
            size: Rollouts, scored together when the rubric compares them.
            label: Names the group, so that its seeds are its own.
            sampling: The config's sampling table.
        """
        arguments = {key: sampling[key] for key in ("temperature", "top_p", "max_completion_tokens") if key in sampling}
        async with self._slots:
            environment = source.environment
            if environment.requires_group_rollouts:
                outputs = await environment.run_group(
                    [dict(row)] * size, self._client, self._model, arguments, state_columns=_STATE_COLUMNS
                )
            else:
                outputs = await asyncio.gather(
                    *(
                        environment.run_rollout(
                            dict(row),
                            self._client,
                            self._model,
                            {**arguments, "seed": _seed_of(f"{self._seed}:{label}:{number}")},
                            state_columns=_STATE_COLUMNS,
                        )
                        for number in range(size)
                    )
                )
        return [self._finish(source, dict(output), number) for number, output in enumerate(outputs)]

    def _finish(self, source: Source, output: dict[str, Any], number: int) -> Rollout:
        messages = [_plain(message) for message in output.get("completion") or []]
        replies = [message for message in messages if message.get("role") == "assistant"]
        error = output.get("error")
        reward = float(output.get("reward") or 0.0)
        return Rollout(
            source=source.name,
            reward=reward,
            sample=None if error or not replies else self._sample(output, replies[0], reward),
            error=None if not error else " ".join(str(error).split())[:300],
            tool_calls=max(sum(len(message.get("tool_calls") or ()) for message in replies), _counted(output, _CALLS)),
            tool_failures=max(
                sum(_UNAVAILABLE in message_text(message) for message in messages if message not in replies),
                _counted(output, _FAILURES),
            ),
            record=rollout_output_to_trace(output, int(output.get("example_id") or 0)).to_record()
            | {"env_name": source.name, "rollout": number},
        )

    def _sample(self, output: Mapping[str, Any], reply: Mapping[str, Any], reward: float) -> Sample | None:
        key = prompt_key([_plain(message) for message in output["prompt"]])
        texts = self._book.find(key)
        kind = chosen_kind(texts, reply) if texts else None
        return None if kind is None else Sample(key, kind, reward)


def _plain(message: Any) -> dict[str, Any]:
    return dict(message.model_dump()) if hasattr(message, "model_dump") else dict(message)


def _counted(output: Mapping[str, Any], names: Sequence[str]) -> int:
    return sum(int(output.get(name) or 0) for name in names)


def _seed_of(text: str) -> int:
    # Any number that depends on the whole text and fits OpenAI's field.
    return int.from_bytes(text.encode(), "big") % (2**31 - 1)
