"""Calling the services behind an environment: shared connections, bounded concurrency, retries, outages.

Tools are reached through LiteRegistry's tool clients only.  Those repeat every failed request by themselves and tell
the status in the text of a ``RuntimeError``, so the clients built here are given one attempt, and the rule of
:func:`call_service` is applied on top.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from primebeaker.environments._shared.behaviour import InfrastructureFault, RolloutFault, State
from primebeaker.environments._shared.outcomes import Outcome, is_worth_a_retry, outcome_of_error, outcome_of_reply
from primebeaker.redaction import Redactor

__all__ = [
    "MOST_SCORER_REQUESTS",
    "MOST_TOOL_REQUESTS",
    "OutageLog",
    "ServicePool",
    "call_service",
    "pooled",
    "watch_outcomes",
]

logger = logging.getLogger("primebeaker.environments")

#: Requests in flight for one environment; further callers wait in order.
MOST_TOOL_REQUESTS = 256
MOST_SCORER_REQUESTS = 64

_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 8.0
_redact = Redactor()


async def retry_sleep(seconds: float) -> None:
    """Wait before another attempt."""
    await asyncio.sleep(seconds)


class _LoopShare:
    """What an environment shares within one event loop."""

    def __init__(self) -> None:
        self.tool_slots = asyncio.Semaphore(MOST_TOOL_REQUESTS)
        self.scorer_slots = asyncio.Semaphore(MOST_SCORER_REQUESTS)
        self.session: Any = None
        self.holders = 0


class ServicePool:
    """Connections and request slots of one environment, made lazily in the event loop that uses them.

    Connections are kept as long as any rollout of the loop holds the pool, and closed with the last one, so that
    nothing is left open between batches or after a cancelled run.
    """

    def __init__(self) -> None:
        self._shares: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopShare] = weakref.WeakKeyDictionary()

    def _share(self) -> _LoopShare:
        loop = asyncio.get_running_loop()
        if loop not in self._shares:
            self._shares[loop] = _LoopShare()
        return self._shares[loop]

    @property
    def session(self) -> Any:
        """The ``aiohttp.ClientSession`` of the running loop; None when nobody holds the pool."""
        import aiohttp

        share = self._share()
        if share.holders == 0:
            return None
        if share.session is None:
            # The slots bound the requests; a second limit here would only reorder them.
            share.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False)
        return share.session

    def acquire(self) -> None:
        """Hold the connections open; each call needs a :meth:`release`."""
        self._share().holders += 1

    async def release(self) -> None:
        """Give up one hold; the last one closes the connections."""
        share = self._share()
        share.holders -= 1
        if share.holders == 0:
            await self._close(share)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the connections open for a block."""
        self.acquire()
        try:
            yield
        finally:
            await self.release()

    async def close(self) -> None:
        """Close the connections of the running loop, whoever holds them."""
        await self._close(self._share())

    async def _close(self, share: _LoopShare) -> None:
        session, share.session = share.session, None
        if session is not None:
            await session.close()

    def tool_slot(self) -> asyncio.Semaphore:
        """One of the slots for tool requests."""
        return self._share().tool_slots

    def scorer_slot(self) -> asyncio.Semaphore:
        """One of the slots for scorer requests."""
        return self._share().scorer_slots


def pooled(client_class: type[Any], pool: ServicePool, *arguments: Any, **keywords: Any) -> Any:
    """Make a tool client that takes its connections from ``pool`` and makes one attempt a call."""

    class Pooled(client_class):  # type: ignore[misc]  # the class is a parameter
        @property
        def _http_session(self) -> Any:
            return pool.session

        @_http_session.setter
        def _http_session(self, value: Any) -> None:
            """The base class stores the session it was given: none."""

    Pooled.__name__ = Pooled.__qualname__ = client_class.__name__
    client = Pooled(*arguments, max_retries=1, **keywords)
    client.primebeaker_pooled = True
    return client


async def call_service(
    tool: str,
    request: Callable[[], Awaitable[Any]],
    *,
    slot: contextlib.AbstractAsyncContextManager[Any],
    attempts: int = 1,
) -> Outcome:
    """Make one call, again where that makes sense, and say what became of it; raises nothing but cancellation.

    Args:
        tool: The tool's name, for messages.
        request: Makes one attempt.
        slot: Bounds how many requests are in flight; not held while waiting.
        attempts: How many attempts in all; connection faults, time-outs, 429, 502 and 503 are tried again after
            0.5 s, doubling up to 8 s.
    """
    delay = _FIRST_DELAY_SECONDS
    for attempt in range(1, attempts + 1):
        try:
            async with slot:
                return outcome_of_reply(tool, await request())
        except Exception as error:
            logger.debug("%s: attempt %d of %d: %s", tool, attempt, attempts, _redact(str(error)))
            if attempt == attempts or not is_worth_a_retry(error):
                outcome = outcome_of_error(tool, error)
                if outcome.kind == "service":
                    logger.info("%s: %s: %s", tool, type(error).__name__, _redact(str(error)))
                return outcome
        await retry_sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY_SECONDS)
    raise ValueError("attempts must be at least 1")


class OutageLog:
    """One warning an outage and service, at most one a minute, with the number of rollouts hit since the last one."""

    def __init__(self, environment: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._environment = environment
        self._clock = clock
        self._hit: dict[str, set[str]] = {}
        self._warned: dict[str, float] = {}

    def note(self, service: str, rollout: str) -> None:
        """Count one failure of ``service`` in a rollout, and warn when it is time."""
        hit = self._hit.setdefault(service, set())
        hit.add(rollout)
        now = self._clock()
        if service in self._warned and now - self._warned[service] < 60:
            return
        self._warned[service] = now
        logger.warning("%s: the %s service fails; rollouts hit: %d", self._environment, service, len(hit))
        hit.clear()


def watch_outcomes(
    environment: str, env: Any, state: State, live: Any, outages: OutageLog, outcomes: Iterable[tuple[str, Outcome]]
) -> None:
    """Keep count of service failures in a row, and end the rollout when there are too many.

    Args:
        environment: The canonical name, for messages.
        env: The environment, for ``max_consecutive_infrastructure_errors``.
        state: The rollout.
        live: Its live side, which keeps ``failures_in_row``.
        outages: Where outages are reported.
        outcomes: Tool names and outcomes in call order.

    Raises:
        InfrastructureFault: A service failed too often in a row; training on that would teach that tools are useless.
        RolloutFault: A setting of the run is wrong.
    """
    most = env.max_consecutive_infrastructure_errors
    for name, outcome in outcomes:
        if outcome.kind == "configuration":
            raise RolloutFault(f"{environment}: terminal_truncation: {outcome.output['stderr']}")
        if outcome.kind != "service":
            live.failures_in_row = 0
            continue
        live.failures_in_row += 1
        outages.note(name, state["trajectory_id"])
        if most is not None and live.failures_in_row >= most:
            raise InfrastructureFault(f"the {name} service failed {live.failures_in_row} times in a row")
