"""Rollouts of ``podman-terminal``: a container for each, two tools, and grading when the model says that it is done."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.behaviour import Message, Reward, State, StopRule
from primebeaker.environments._shared.live import LiveRollout, live_of
from primebeaker.environments._shared.outcomes import Outcome, failed
from primebeaker.environments._shared.podman.book import SessionBook
from primebeaker.environments._shared.podman.completion import is_completion_command, shows_completion
from primebeaker.environments._shared.podman.failures import Phase, failure_defaults, record_failure
from primebeaker.environments._shared.podman.grading import GradingPlan, grade, grading_defaults
from primebeaker.environments._shared.podman.results import podman_tool_content
from primebeaker.environments._shared.podman.rows import image_of, private_tests
from primebeaker.environments._shared.podman.session import Session, open_session
from primebeaker.environments._shared.results import cut_streams
from primebeaker.environments._shared.services import ServicePool
from primebeaker.environments._shared.submissions import expected_rubric_ids
from primebeaker.environments._shared.tool_calls import ToolCall
from primebeaker.environments._shared.tool_rollout import INVALID, ToolBehaviour, is_last_turn
from primebeaker.environments._shared.tool_specs import check_call
from primebeaker.environments._shared.verifiers_adapter import infrastructure_error

__all__ = ["PodmanBehaviour"]

_UNAVAILABLE = "bash: the container is unavailable"
_AFTER_COMPLETION = "the task was declared finished before this call; it was not run"


def _has_failed(env: Any, state: State) -> bool:
    return bool(state.get("podman_failure"))


def _is_complete(env: Any, state: State) -> bool:
    return bool(state.get("podman_terminal_complete"))


def _budget_is_spent(env: Any, state: State) -> bool:
    return bool(0 < env.max_tool_calls <= state.get("jtc_tool_call_count", 0))


def _is_invalid(env: Any, state: State) -> bool:
    return state.get("jtc_tool_route") == INVALID


class PodmanBehaviour(ToolBehaviour):
    """The base tool protocol in a container; calls run one at a time.

    Args:
        environment: The canonical name, for messages.
        rewards: How a finished rollout is scored.
        specs: Tool definitions by name.
        pool: Connections and request slots.
        book: The containers that must be deleted.
        most_sessions: Containers at a time; further rollouts wait in order. None for no limit.
    """

    stops: Sequence[StopRule] = (
        StopRule("podman_failed", _has_failed, priority=60),
        StopRule("terminal_complete", _is_complete, priority=50),
        StopRule("tool_budget_exhausted", _budget_is_spent, priority=40),
        StopRule("stop_after_final_or_invalid", _is_invalid, priority=30),
    )
    takes_final_answer = False

    def __init__(
        self,
        environment: str,
        *,
        rewards: Sequence[Reward],
        specs: Mapping[str, Mapping[str, Any]],
        pool: ServicePool,
        book: SessionBook,
        most_sessions: int | None,
    ) -> None:
        super().__init__(environment, rewards=rewards, specs=specs, render=podman_tool_content, pool=pool)
        self.book = book
        self._most_sessions = most_sessions
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def setup(self, env: Any, state: State) -> None:
        """Get a container; a failure is recorded, and ends the rollout before the model is asked."""
        await super().setup(env, state)
        state.update(failure_defaults())
        state.update(grading_defaults())
        state.update(
            podman_container_id=None,
            podman_original_image=None,
            podman_terminal_complete=False,
            podman_terminal_completion_command=f"echo {env.completion_marker}",
            podman_test_command=env.test_command,
            podman_test_file_path=env.test_file_path,
            podman_reward_file_path=env.reward_file_path,
            podman_cleanup=None,
            podman_cleanup_error=None,
        )
        live = live_of(state)
        try:
            image = image_of(state["input"])
            state["podman_original_image"] = image
            await self._take_place(live)
            session = await open_session(env, self.book, self.pool, image)
        except Exception as error:
            self._fail(env, state, "setup", error)
        else:
            live.container = session
            state["podman_container_id"] = session.entry.container

    async def _take_place(self, live: LiveRollout) -> None:
        if self._most_sessions is None:
            return
        places = self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most_sessions))
        await places.acquire()
        live.place = places

    def _fail(self, env: Any, state: State, phase: Phase, error: Exception, session: Session | None = None) -> None:
        record_failure(state, phase, error, after_kill=session is not None and session.was_killed)
        message = state["podman_failure_message"]
        self.outages.note("Podman", state["trajectory_id"])
        if env.podman_failure_policy == "error":
            state["error"] = infrastructure_error(f"Podman failure ({phase}): {message}")

    # What the base protocol asks.

    def runs_in_order(self, calls: Sequence[ToolCall]) -> bool:
        """Calls of one message share a shell's world: always one after the other."""
        return True

    def notice(self, env: Any, state: State) -> str | None:
        """Say when one call of the budget remains, and how the task is finished."""
        over = _is_complete(env, state) or _has_failed(env, state)
        if over or env.max_tool_calls - state["jtc_tool_call_count"] != 1:
            return None
        return (
            "One tool call of your budget remains. If the task is finished, run exactly:"
            f" {state['podman_terminal_completion_command']}"
        )

    async def run_call(self, env: Any, state: State, call: ToolCall) -> Outcome:
        """Run one admitted call."""
        live = live_of(state)
        if _is_complete(env, state):
            return failed("result", _AFTER_COMPLETION)
        if _has_failed(env, state):
            return failed("result", _UNAVAILABLE)
        if call.name == "submit" and not expected_rubric_ids(state["input"]):
            return failed(
                "model",
                "submit: this task has no rubrics; it is finished by running exactly"
                f" {state['podman_terminal_completion_command']} with bash",
            )
        if call.name != "bash":
            return await super().run_call(env, state, call)
        arguments, finding = check_call("bash", call.arguments, live.schemas.get("bash", {}))
        if finding is not None:
            return failed("model", finding.text)
        return await self._run_command(env, state, live.container, arguments["command"])

    async def _run_command(self, env: Any, state: State, session: Session, command: str) -> Outcome:
        try:
            outcome = await session.model_command(command, limit=env.command_timeout, workdir=env.podman_workdir)
        except Exception as error:
            self._fail(env, state, "execute", error, session)
            return failed("result", _UNAVAILABLE)
        if is_completion_command(command, env.completion_marker) and shows_completion(
            outcome.output, env.completion_marker
        ):
            state["podman_terminal_complete"] = True
            await self._grade(env, state, session)
        return Outcome(outcome.kind, cut_streams(outcome.output, env.terminal_truncation))

    async def _grade(self, env: Any, state: State, session: Session) -> None:
        plan = GradingPlan(
            reward_file_path=env.reward_file_path,
            test_file_path=env.test_file_path,
            tests=private_tests(state["input"]),
            test_command=env.test_command,
            test_timeout=env.test_timeout,
            workdir=env.podman_workdir,
            keeps_processes=env.keep_background_processes,
        )
        try:
            await grade(session, state, plan)
        except Exception as error:
            self._fail(env, state, "test", error, session)

    async def respond(self, env: Any, state: State) -> list[Message]:
        """Answer the calls; the answers that end the episode are its last messages."""
        messages = await super().respond(env, state)
        over = _has_failed(env, state) or _is_complete(env, state) or _budget_is_spent(env, state)
        if over or is_last_turn(env, state):
            state["final_env_response"] = messages
        return messages

    async def cleanup(self, env: Any, state: State) -> None:
        """Delete the container, whatever the rollout ended by; nothing raises but the caller's own cancellation."""
        live = live_of(state)
        session, live.container = live.container, None
        place, live.place = live.place, None
        try:
            if session is not None:
                try:
                    await self.book.close(session.entry)
                finally:
                    state["podman_cleanup"] = session.entry.reply
                    state["podman_cleanup_error"] = self.book.undeleted.get(session.entry.container)
        finally:
            if place is not None:
                place.release()
            await super().cleanup(env, state)

    async def teardown(self, env: Any) -> None:
        """Finish handshakes in flight, try again what could not be deleted, close the connections."""
        try:
            async with self.pool.held():
                await self.book.settle()
        finally:
            await super().teardown(env)
