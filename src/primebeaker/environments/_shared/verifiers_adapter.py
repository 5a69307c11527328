"""All contact with Verifiers' classic (v0) environment API, as release 0.2.1 has it.

Its successor drops this API, so no other module knows it.  The adapter runs a :class:`Behaviour` as a Verifiers
environment and closes the gaps a trainer would fall into: faults of a rollout stay with that rollout, services that
fail give an ``InfraError`` in single and group scoring alike, and an environment can be built outside the main thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import verifiers as vf
from verifiers.decorators import discover_decorated
from verifiers.utils.message_utils import normalize_messages

from primebeaker.environments._shared.behaviour import (
    Behaviour,
    InfrastructureFault,
    Message,
    Reward,
    RolloutFault,
    State,
    StopRule,
    last_assistant,
    plain_message,
)
from primebeaker.environments._shared.dataset import expanded_row
from primebeaker.environments._shared.thinking import hidden_reasoning, off_the_loop, visible_text

__all__ = ["AdaptedEnvironment", "infrastructure_error"]

logger = logging.getLogger("primebeaker.environments")


class AdaptedEnvironment(vf.MultiTurnEnv):  # type: ignore[misc]  # Verifiers has no type information
    """A Verifiers environment whose rollout logic is a :class:`Behaviour`.

    Args:
        behaviour: What happens in a rollout.
        rows: The ``datasets.Dataset`` of :func:`load_rows`.
        tool_defs: Provider-neutral tool definitions offered to the model.
        max_turns: The most assistant turns of a rollout; -1 for no limit.
        settings: Further attributes of the environment object, which callers may change later.
        verifiers_arguments: Keywords of the Verifiers environment itself.
    """

    def __init__(
        self,
        *,
        behaviour: Behaviour,
        rows: Any,
        tool_defs: Sequence[Mapping[str, Any]] | None = None,
        max_turns: int = 1,
        settings: Mapping[str, Any] | None = None,
        verifiers_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.behaviour = behaviour
        rubric = _BehaviourRubric(self, behaviour)
        super().__init__(
            dataset=rows,
            eval_dataset=rows,
            rubric=rubric,
            tool_defs=[dict(definition) for definition in tool_defs or ()],
            max_turns=max_turns,
            **(verifiers_arguments or {}),
        )
        # One rubric with the turn counter in it: a group of rubrics loses the advantages of group scoring.
        self.rubric = rubric
        for name, value in (settings or {}).items():
            setattr(self, name, value)

    def _format_dataset_source(self, dataset: Any) -> Any:
        return dataset

    def __post_init__(self) -> None:
        """Collect stop rules and clean-ups; install Verifiers' signal handlers where Python allows it."""
        if threading.current_thread() is threading.main_thread():
            super().__post_init__()
        else:
            self._stop_conditions = discover_decorated(self, "stop")
            self._cleanup_handlers = discover_decorated(self, "cleanup")
            self._teardown_handlers = discover_decorated(self, "teardown")
            atexit.register(_run_teardown, self)
        self._stop_conditions += [_stop_condition(self, rule) for rule in self.behaviour.stops]
        self._stop_conditions.sort(key=lambda condition: (-getattr(condition, "stop_priority", 0), condition.__name__))

    async def init_state(self, input: Any, client: Any, model: str, sampling_args: Any = None) -> State:
        """Start the state of one rollout; a row that cannot be used becomes that rollout's error."""
        row = expanded_row(input)
        try:
            state = await self._started(row, client, model, sampling_args)
        except Exception as error:
            logger.warning("a row cannot be used: %s: %s", type(error).__name__, error)
            bare = {"prompt": [], "example_id": row.get("example_id", 0)}
            state = await super().init_state(bare, client, model, sampling_args)
            state["error"] = vf.Error(f"the row cannot be used: {error}")
        return state

    async def _started(self, row: dict[str, Any], client: Any, model: str, sampling_args: Any) -> State:
        info = row.get("info")
        if isinstance(info, Mapping) and "tool_defs" in info:
            # Verifiers would offer these instead of the environment's own tools.
            row["info"] = {key: value for key, value in info.items() if key != "tool_defs"}
        if row.get("info", ...) is None:
            del row["info"]
        state: State = await super().init_state(row, client, model, sampling_args)
        if not isinstance(state.get("prompt"), list):
            raise RolloutFault("it has no prompt")
        if isinstance(info, Mapping) and "tool_defs" in info:
            state["info"] = dict(info)
        return state

    async def setup_state(self, state: State) -> State:
        """Prepare a rollout."""
        if state.get("error") is None:
            await _guarded(self.behaviour.setup(self, state))
        return state

    async def add_model_response(self, state: State, prompt_messages: Any, response: Any) -> None:
        """Record a reply and let the behaviour take note of it."""
        await super().add_model_response(state, prompt_messages, response)
        message = plain_message(state["trajectory"][-1]["completion"][-1])
        await _guarded(self.behaviour.observe(self, state, message))

    @vf.stop  # type: ignore[untyped-decorator]
    async def max_turns_reached(self, state: State) -> bool:
        """Whether no turn is left, and the last reply needs no answer any more."""
        reached = 0 < self.max_turns <= len(state["trajectory"])
        answered = state.get("final_env_response") is not None
        return reached and (answered or not self.behaviour.answers_last_turn(self, state))

    @vf.stop  # type: ignore[untyped-decorator]
    async def has_final_env_response(self, state: State) -> bool:
        """Whether the answers that end the rollout are there, other than those to its last allowed turn."""
        return state.get("final_env_response") is not None and not 0 < self.max_turns <= len(state["trajectory"])

    async def env_response(self, messages: Any, state: State, **kwargs: Any) -> list[Any]:
        """The messages that answer the last reply."""
        answered: list[Message] = await _guarded(self.behaviour.respond(self, state))
        answers: list[Any] = list(normalize_messages(answered, field_name="env_response"))
        if state.get("final_env_response") is not None:
            state["final_env_response"] = answers
        return answers

    async def cleanup(self, state: State, task: object | None = None, resources: object | None = None) -> None:
        """Run the clean-up steps of Verifiers and, even when one of them fails, drop what the rollout held."""
        try:
            await super().cleanup(state, task=task, resources=resources)
        finally:
            await self.behaviour.cleanup(self, state)

    @vf.teardown  # type: ignore[untyped-decorator]
    async def tear_down_behaviour(self) -> None:
        """Close what the environment holds open."""
        await self.behaviour.teardown(self)


class _BehaviourRubric(vf.Rubric):  # type: ignore[misc]  # Verifiers has no type information
    """Scores by the table of a behaviour; a scorer that fails sets the rollout's error."""

    def __init__(self, env: AdaptedEnvironment, behaviour: Behaviour) -> None:
        super().__init__()
        self._env = env
        self._behaviour = behaviour
        for reward in behaviour.rewards:
            self.add_reward_func(_reward_function(env, reward), reward.weight)
        self.add_metric(num_turns)
        self._own = list(self.funcs)

    async def score_rollout(self, state: State) -> None:
        await self._ask_scorers(state)
        if self.funcs == self._own:
            await self._score_own(state)
        else:
            await super().score_rollout(state)

    async def score_group(self, states: list[State]) -> None:
        await asyncio.gather(*(self._ask_scorers(state) for state in states))
        if self.funcs != self._own:
            await super().score_group(states)
            return
        for state in states:
            await self._score_own(state)
        mean = sum(state["reward"] for state in states) / max(len(states), 1)
        for state in states:
            state["advantage"] = state["reward"] - mean
            for step in state["trajectory"]:
                if step["advantage"] is None:
                    step["advantage"] = state["advantage"]
                if step["reward"] is None:
                    step["reward"] = state["reward"]

    async def _score_own(self, state: State) -> None:
        message = last_assistant(state) or {}
        await off_the_loop(visible_text(message) + hidden_reasoning(message), self._score, state)

    def _score(self, state: State) -> None:
        """What Verifiers does, without its look at every function's signature for every rollout."""
        had_error = state.get("error") is not None
        values = [function(state) for function in self._own]
        if state.get("error") is not None and not had_error:
            # A function that failed spoils the rollout, whatever was added up before it.
            values = [function(state) for function in self._own]
        state["reward"] = sum(value * weight for value, weight in zip(values, self.weights, strict=True)) + 0.0
        state["metrics"] = {function.__name__: value for function, value in zip(self._own, values, strict=True)}

    async def _ask_scorers(self, state: State) -> None:
        if state.get("error") is not None:
            return
        try:
            await _guarded(self._behaviour.score(self._env, state))
        except vf.Error as error:
            state["error"] = error


def num_turns(state: State) -> float:
    """The number of assistant turns."""
    return float(len(state["trajectory"]))


def _reward_function(env: AdaptedEnvironment, reward: Reward) -> Callable[[State], float]:
    def compute(state: State) -> float:
        if state.get("error") is not None and not reward.despite_error:
            return 0.0
        try:
            value = float(reward.compute(env, state))
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
        except Exception as error:
            logger.warning("%s failed: %s: %s", reward.name, type(error).__name__, error)
            state["error"] = vf.Error(f"{reward.name} failed: {error}")
            return 0.0
        # Adding zero turns -0.0 into 0.0.
        return value + 0.0

    compute.__name__ = reward.name
    compute.__doc__ = reward.formula
    return compute


def _stop_condition(env: AdaptedEnvironment, rule: StopRule) -> Callable[[State], Any]:
    async def condition(state: State) -> bool:
        return rule.check(env, state)

    condition.__name__ = rule.name
    condition.stop_priority = rule.priority  # type: ignore[attr-defined]  # how Verifiers orders them
    return condition


async def _guarded(work: Any) -> Any:
    """Await ``work``; a fault in it becomes a Verifiers error, which stays with its rollout."""
    try:
        return await work
    except vf.Error:
        raise
    except InfrastructureFault as fault:
        raise vf.InfraError(str(fault)) from fault
    except RolloutFault as fault:
        raise vf.Error(str(fault)) from fault
    except Exception as error:
        logger.exception("a rollout failed")
        raise vf.Error(f"{type(error).__name__}: {error}") from error


def infrastructure_error(text: str) -> Exception:
    """The error of a rollout that a service failed."""
    error: Exception = vf.InfraError(text)
    return error


def _run_teardown(env: AdaptedEnvironment) -> None:
    asyncio.run(env._teardown())
