"""One container of one rollout: getting it, running commands in it, and what may be repeated."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from primebeaker.environments._shared.outcomes import Outcome, failed, outcome_of_error
from primebeaker.environments._shared.podman.book import ContainerEntry, SessionBook
from primebeaker.environments._shared.podman.client import LONGEST_COMMAND, make_client
from primebeaker.environments._shared.podman.failures import Trouble, trouble_of
from primebeaker.environments._shared.services import ServicePool

__all__ = ["LONGEST_MODEL_COMMAND", "NoContainer", "Session", "open_session"]

#: Characters of a model's command; more are refused.
LONGEST_MODEL_COMMAND = 1_000_000

_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 8.0
_MODEL_CAUSED = frozenset({400, 413, 422})
_OUT_OF_TIME = 408

# What a command that is too long for one request is run by; it comes on standard input.
_FROM_STDIN = (
    'script=$(mktemp) && cat >"$script" && /bin/bash -l "$script" </dev/null; code=$?; rm -f "$script"; exit "$code"'
)


async def backoff_sleep(seconds: float) -> None:
    """Wait before another attempt."""
    await asyncio.sleep(seconds)


class Delays:
    """0.5 s, doubling to 8 s, each half as long or as long again at random, so that waiting rollouts spread out."""

    def __init__(self) -> None:
        self._next = _FIRST_DELAY_SECONDS

    async def wait(self, most: float = _LONGEST_DELAY_SECONDS * 2) -> None:
        """Wait once, at most ``most`` seconds."""
        seconds = self._next * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
        self._next = min(self._next * 2, _LONGEST_DELAY_SECONDS)
        await backoff_sleep(min(seconds, most))


class NoContainer(RuntimeError):
    """The service gave no container within the time for it."""


class Session:
    """A live container.

    Args:
        client: Its client.
        entry: Its line in the book.
        pool: Request slots.
        attempts: Attempts of what is safe to repeat.
    """

    def __init__(self, client: Any, entry: ContainerEntry, pool: ServicePool, attempts: int) -> None:
        self.client = client
        self.entry = entry
        self.attempts = attempts
        self._pool = pool
        self._last_exit_code: int | None = None

    @property
    def was_killed(self) -> bool:
        """Whether the last command ended as one that was killed does."""
        return self._last_exit_code == 137

    async def model_command(self, command: str, *, limit: float, workdir: str) -> Outcome:
        """Run a command of the model, once: it is sent again only when it cannot have started.

        Args:
            command: The text.
            limit: Seconds it may take.
            workdir: Where it runs.

        Raises:
            Exception: What the client raised when the container cannot be used any more.
        """
        if len(command) > LONGEST_MODEL_COMMAND:
            return failed(
                "model",
                f"bash: the command has {len(command)} characters; at most {LONGEST_MODEL_COMMAND} are accepted",
            )
        try:
            command.encode()
        except UnicodeEncodeError:
            # The service cannot even say what is wrong with such a request.
            return failed("model", "bash: the command holds half of a surrogate pair, which is no text")
        text, stdin = (command, "") if len(command) <= LONGEST_COMMAND else (_FROM_STDIN, command)
        try:
            reply = await self._repeated(
                lambda: self._execute(text, stdin, limit, workdir),
                lambda trouble: trouble.kind == "refused" or trouble.status == 429,
            )
        except Exception as error:
            status = trouble_of(error).status
            if status in _MODEL_CAUSED:
                return outcome_of_error("bash", error)
            if status == _OUT_OF_TIME:
                late = outcome_of_error("bash", error)
                return Outcome("result", {**late.output, "timed_out": True, "time_limit": limit})
            raise
        return Outcome("result", {**reply, "time_limit": limit})

    async def control_command(self, command: str, stdin: str, limit: float) -> dict[str, Any]:
        """Run a command of ours, which is safe to repeat; raises what the client raised."""
        return await self._repeated(
            lambda: self._execute(command, stdin, limit, "/"),
            lambda trouble: (
                trouble.kind in ("refused", "lost")
                or (trouble.status is not None and (trouble.status in (_OUT_OF_TIME, 429) or trouble.status >= 500))
            ),
        )

    async def _execute(self, command: str, stdin: str, limit: float, workdir: str) -> dict[str, Any]:
        async with self._pool.tool_slot():
            reply = await self.client.execute(command=command, stdin=stdin, timeout=limit, workdir=workdir)
        reply = dict(reply)
        code = reply.get("exit_code")
        self._last_exit_code = code if isinstance(code, int) else None
        return reply

    async def _repeated(
        self, request: Callable[[], Awaitable[dict[str, Any]]], again: Callable[[Trouble], bool]
    ) -> dict[str, Any]:
        delays = Delays()
        for attempt in range(1, self.attempts + 1):
            try:
                return await request()
            except Exception as error:
                if attempt == self.attempts or not again(trouble_of(error)):
                    raise
            await delays.wait()
        raise ValueError("attempts must be at least 1")


async def open_session(env: Any, book: SessionBook, pool: ServicePool, image: str) -> Session:
    """Get a container.

    A full pool makes the rollout wait.  When the caller is cancelled while a handshake is in flight, the handshake is
    finished in the background and its container closed; so is one that takes longer than ``request_timeout``.

    Args:
        env: The environment, for its settings.
        book: Where the container is written down.
        pool: Connections and request slots.
        image: The image reference.

    Raises:
        Exception: What the last attempt raised, or :class:`NoContainer` when the time is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + env.handshake_timeout
    delays, lost, last = Delays(), 0, "no answer"
    while (left := deadline - loop.time()) > 0:
        client_id = f"{env.client_id_prefix}-{uuid.uuid4().hex}"
        client = make_client(
            env.podman_client_factory,
            pool,
            gateway_url=env.podman_gateway_url,
            image=image,
            client_id=client_id,
            service=env.service,
            timeout=env.request_timeout,
            handshake_timeout=env.handshake_timeout,
            workdir=env.podman_workdir,
        )
        try:
            entry = await _handshake(book, pool, client, client_id, min(env.request_timeout, left))
        except Exception as error:
            trouble = trouble_of(error)
            last = str(error)
            if isinstance(error, TimeoutError) or trouble.kind == "lost":
                lost += 1
                if lost >= env.max_retries:
                    raise
            elif trouble.kind != "refused" and trouble.status not in (429, 503):
                raise
        else:
            return Session(client, entry, pool, env.max_retries)
        await delays.wait(max(deadline - loop.time(), 0))
    raise NoContainer(f"no container within {env.handshake_timeout:g} s: {last}")


async def _handshake(book: SessionBook, pool: ServicePool, client: Any, client_id: str, limit: float) -> ContainerEntry:
    sent = asyncio.Event()

    async def ask() -> None:
        async with pool.tool_slot():
            sent.set()
            await client.start()

    task = asyncio.ensure_future(ask())
    try:
        # Waiting for a slot of our own is no time of the service.
        await _either(task, sent)
        done, _ = await asyncio.wait({task}, timeout=limit)
    except asyncio.CancelledError:
        if sent.is_set():
            pool.acquire()
            book.adopt(task, client, client_id, pool.release)
        else:
            task.cancel()
        raise
    if not done:
        pool.acquire()
        book.adopt(task, client, client_id, pool.release)
        raise TimeoutError(f"the handshake took longer than {limit:g} s")
    error = task.exception()
    entries = book.returned(client)
    if error is None and len(entries) == 1 and _same_ids(client):
        return entries[0]
    for entry in entries:
        await book.close(entry)
    if error is None:
        raise RuntimeError("the handshake returned no usable session id")
    if not entries and trouble_of(error).kind in ("lost", "other"):
        book.lost(client_id)
    raise error


def _same_ids(client: Any) -> bool:
    return bool(client.container_id) and client.container_id == client.affinity_id


async def _either(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait until a task is done or an event has come."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
