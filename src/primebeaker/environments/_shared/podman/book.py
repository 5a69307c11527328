"""The containers an environment holds, so that each of them is deleted: in time, later, or at the end of the process.

Every container that a handshake returned is written down before anything is done with it, and crossed out when it is
closed.  What could not be deleted stays visible (:attr:`SessionBook.undeleted`), and so does every handshake whose
reply was lost (:attr:`SessionBook.lost_handshakes`): the service has no route that finds such a container, its idle
reaper removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from primebeaker.environments._shared.podman.client import ContainerClient, close_by_id, exit_session
from primebeaker.environments._shared.podman.failures import safe_text, trouble_of

__all__ = ["ContainerEntry", "SessionBook", "close_entries", "unclosed_entries"]

logger = logging.getLogger("primebeaker.environments")

#: Seconds that teardown waits for handshakes which are still in flight.
SETTLE_SECONDS = 10.0

_CLOSE_PAUSE_SECONDS = 0.5

#: All books of this process, for its end.
_books: weakref.WeakSet[SessionBook] = weakref.WeakSet()


async def close_pause() -> None:
    """Wait before another attempt to close."""
    await asyncio.sleep(_CLOSE_PAUSE_SECONDS)


class ContainerEntry:
    """A container that must be closed.

    Args:
        container: Its id.
        client: The client that started it.
    """

    def __init__(self, container: str, client: Any) -> None:
        self.container = container
        self.client = client
        self.closed = False
        self.reply: dict[str, Any] | None = None
        #: Seconds one more attempt may take once the process is ending; None before.
        self.hurry: float | None = None
        self._process = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, not one that it was forked from."""
        return self._process == os.getpid()

    async def close(self, attempts: int) -> str | None:
        """Close it; "already gone" is success.

        Returns:
            What went wrong, or None. Nothing but cancellation is raised.
        """
        problem = None
        for attempt in range(1 if self.hurry else attempts):
            if attempt:
                await close_pause()
            if self.closed:
                return None
            if not self.is_ours:
                return "it belongs to another process"
            try:
                async with asyncio.timeout(self.hurry):
                    reply = await self._ask()
            except Exception as error:
                trouble = trouble_of(error)
                if not trouble.is_session_lost:
                    problem = f"{type(error).__name__}: {safe_text(str(error))}"
                    if _is_final(error):
                        return problem
                    continue
                reply = {"removed": True, "already_gone": True}
            self.closed, self.reply = True, reply
            return None
        return problem

    async def _ask(self) -> dict[str, Any]:
        if isinstance(self.client, ContainerClient):
            return await close_by_id(self.client, self.container)
        reply = await self.client.close()
        return dict(reply) if isinstance(reply, Mapping) else {"removed": True}


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end the same way, or take as long again."""
    status = trouble_of(error).status
    refused = status is not None and status < 429 and status != 408
    return refused or isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)


class SessionBook:
    """The containers of one environment object.

    Args:
        environment: The canonical name, for messages.
        attempts: How often a close is tried at a time.
    """

    def __init__(self, environment: str, attempts: int) -> None:
        self.environment = environment
        self.attempts = attempts
        self.live: dict[str, ContainerEntry] = {}
        #: Container id to what went wrong when it was to be deleted.
        self.undeleted: dict[str, str] = {}
        #: The client ids of handshakes whose reply was lost: each may have left a container behind.
        self.lost_handshakes: list[str] = []
        self.pending: set[asyncio.Task[None]] = set()
        _books.add(self)

    def enter(self, container: str, client: Any) -> ContainerEntry:
        """Write a container down."""
        entry = ContainerEntry(container, client)
        self.live[container] = entry
        return entry

    def lost(self, client_id: str) -> None:
        """Count a handshake whose reply is lost."""
        self.lost_handshakes.append(client_id)
        logger.warning(
            "%s: the reply to the handshake of client %s is lost; a container it may have started is left to the"
            " service's idle reaper (%d so far)",
            self.environment,
            client_id,
            len(self.lost_handshakes),
        )

    async def close(self, entry: ContainerEntry) -> str | None:
        """Close a container whatever happens to the caller, who gets its cancellation afterwards.

        Returns:
            What went wrong, or None; the container then stays in the list of what could not be deleted.
        """
        task = asyncio.ensure_future(entry.close(self.attempts))
        cancelled = False
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                cancelled = True
                if task.cancelled():
                    # The end of an event loop cancels every task of it once; closing is safe to repeat.
                    task = asyncio.ensure_future(entry.close(1))
        problem = "the close was cancelled" if task.cancelled() else task.result()
        self._note(entry, problem)
        if cancelled:
            raise asyncio.CancelledError
        return problem

    def _note(self, entry: ContainerEntry, problem: str | None) -> None:
        if problem is None:
            self.live.pop(entry.container, None)
            self.undeleted.pop(entry.container, None)
            return
        if entry.container not in self.undeleted:
            logger.warning("%s: container %s could not be deleted: %s", self.environment, entry.container[:12], problem)
        self.undeleted[entry.container] = problem

    def adopt(self, handshake: asyncio.Task[Any], client: Any, client_id: str, release: Any) -> None:
        """Finish a handshake nobody waits for any more, and close what it returns.

        Args:
            handshake: The request in flight.
            client: Its client.
            client_id: What the service knows it by.
            release: Called (and awaited) at the end, to give up what the handshake holds.
        """
        task = asyncio.ensure_future(self._finish(handshake, client, client_id, release))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)

    async def _finish(self, handshake: asyncio.Task[Any], client: Any, client_id: str, release: Any) -> None:
        try:
            # Waiting does not raise what the handshake raised, and a cancellation of this task reaches us alone.
            await asyncio.wait({handshake})
        except asyncio.CancelledError:
            handshake.cancel()
            await asyncio.wait({handshake})
            raise
        finally:
            try:
                await self._close_returned(handshake, client, client_id)
            finally:
                await release()

    async def _close_returned(self, handshake: asyncio.Task[Any], client: Any, client_id: str) -> None:
        entries = self.returned(client)
        for entry in entries:
            with contextlib.suppress(asyncio.CancelledError):
                await self.close(entry)
        if not entries and (handshake.cancelled() or _may_have_started(handshake.exception())):
            self.lost(client_id)

    def returned(self, client: Any) -> list[ContainerEntry]:
        """Write down the containers a client's handshake returned, also those that the client refused."""
        if isinstance(client, ContainerClient):
            ids = client.returned_ids
        else:
            ids = (str(client.container_id),) if client.started else ()
        return [self.live.get(id) or self.enter(id, client) for id in ids]

    async def settle(self) -> None:
        """At teardown: finish what is in flight, close what is left, and say what could not be deleted."""
        pending = [task for task in self.pending if task.get_loop() is asyncio.get_running_loop()]
        if pending:
            _, late = await asyncio.wait(pending, timeout=SETTLE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await asyncio.gather(*(self.close(entry) for entry in list(self.live.values())))
        if self.live:
            logger.warning(
                "%s: %d containers could not be deleted and are left to the service's idle reaper: %s",
                self.environment,
                len(self.live),
                ", ".join(id[:12] for id in self.live),
            )

    def owned(self) -> list[ContainerEntry]:
        """What this process still has to close; a forked child owns nothing of its parent."""
        return [entry for entry in self.live.values() if entry.is_ours]


def unclosed_entries() -> list[ContainerEntry]:
    """The containers of all books of this process that are not closed."""
    return [entry for book in list(_books) for entry in book.owned() if not entry.closed]


async def close_entries(entries: Iterable[ContainerEntry], attempts: int = 3) -> None:
    """Close containers in parallel, over connections of this event loop."""
    async with exit_session() as session:

        async def close(entry: ContainerEntry) -> None:
            client = entry.client
            borrowed = client.connected_by(session) if isinstance(client, ContainerClient) else contextlib.nullcontext()
            with borrowed:
                await entry.close(attempts)

        await asyncio.gather(*(close(entry) for entry in entries))


def _may_have_started(error: BaseException | None) -> bool:
    return error is not None and trouble_of(error).kind in ("lost", "other")
