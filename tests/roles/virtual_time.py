"""An event loop whose time jumps to the next timer, so that minutes of a slow disk take milliseconds."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from primebeaker.roles import files as files_module
from primebeaker.roles import polling, rendezvous
from primebeaker.roles.files import Entry, Glimpse, SharedFiles, _content, _scan


class _Jump(selectors.SelectSelector):
    """Never waits: what would have been a wait moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing would ever happen again"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is the selector's."""

    def __init__(self) -> None:
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        # Without the rest, rounding could keep a timer waiting for ever.
        return self.jump.now + 1e-6


def run[T](work: Callable[[], Coroutine[Any, Any, T]], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run ``work`` in virtual time; every clock of the rendezvous shows it."""
    loop = VirtualLoop()
    clock = SimpleNamespace(monotonic=loop.time, sleep=None)
    for module in (files_module, polling, rendezvous):
        monkeypatch.setattr(module, "time", clock, raising=False)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work())


class SlowFiles(SharedFiles):
    """Every operation takes a random time, and listings are old."""

    def __init__(self, instance: str, *, delay: float, stale: float, seed: int) -> None:
        super().__init__(instance)
        self._delay = delay
        self._stale = stale
        self._random = random.Random(seed)
        self._listings: dict[Path, tuple[float, dict[str, Entry]]] = {}
        self.hung = asyncio.Event()
        #: Operations from now on never end.
        self.hangs = False

    async def run[T](self, function: Callable[[], T]) -> T:
        self._under_way[0] = asyncio.get_running_loop().time()
        before = self._random.uniform(0, self._delay)
        await asyncio.sleep(before)
        if self.hangs:
            self.hung.set()
            await asyncio.Event().wait()
        value = function()
        await asyncio.sleep(self._random.uniform(0, self._delay - before))
        self._under_way.pop(0, None)
        return value

    async def listing(self, directory: Path) -> dict[str, Entry]:
        return await self.run(lambda: self._old(directory))

    async def glance(self, reads: Any, directory: Path, *, after: Any, pause: Any) -> Glimpse:
        contents = [await self.run(lambda path=path: _content(path)) for path in reads]
        await asyncio.sleep(pause())
        return Glimpse(tuple(contents), frozenset(await self.listing(directory)))

    async def changed(self, directory: Path, seen: Any) -> dict[str, tuple[Entry, Any]]:
        listing = await self.listing(directory)
        new = [entry for entry in listing.values() if seen.get(entry.name) != entry]
        contents = await asyncio.gather(
            *(self.run(lambda entry=entry: _content(directory / entry.name)) for entry in new)
        )
        return {entry.name: (entry, content) for entry, content in zip(new, contents, strict=True)}

    def _old(self, directory: Path) -> dict[str, Entry]:
        now = asyncio.get_running_loop().time()
        known = self._listings.get(directory)
        if known is None or now - known[0] >= self._stale:
            try:
                known = (now, _scan(directory))
            except OSError:
                known = (now, {})
            self._listings[directory] = known
        return known[1]
