"""Small JSON files on a shared file system that may be slow, late and stale.

Every operation runs in a daemon thread, so that a file system that hangs never blocks the event loop, nor the exit.
Reading treats "not there", "stale handle", "I/O error", empty and unparsable content as "not yet".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.fileio import fsync_directory
from primebeaker.roles.causes import ExitCode, RoleFault

__all__ = ["DiskFaults", "Entry", "Glimpse", "SharedFiles", "Unread"]

_NOT_YET = frozenset({errno.ENOENT, errno.ESTALE, errno.EIO, errno.ENOTDIR})
_PATIENCE_SECONDS = 30.0
_HANGING_SECONDS = 10.0
_GLANCE_SECONDS = 1.0
_THREADS = 4
_WRITE_PAUSES = (0.1, 0.3, 0.9)


class Entry(NamedTuple):
    """A directory entry; equal entries mean that the file was not replaced in between."""

    name: str
    inode: int
    modified_ns: int
    size: int


class Unread(NamedTuple):
    """Why a file could not be read."""

    errno: int | None
    reason: str


class Glimpse(NamedTuple):
    """The content of some files, and the names in a directory."""

    contents: tuple[bytes | Unread, ...]
    names: frozenset[str]


@dataclass
class DiskFaults:
    """Makes the file system slow and its listings old, for rehearsals and tests.

    Attributes:
        milliseconds: Every operation is delayed by a random time up to this.
        seed: Makes the delays repeatable.
    """

    milliseconds: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311  not for secrets
        self._listings: dict[Path, tuple[float, float, dict[str, Entry]]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> DiskFaults | None:
        """The faults of a rehearsal on the embedded engine; inert everywhere else."""
        if env.get("PRIMEBEAKER_REHEARSAL") != "1" or env.get("PRIMEBEAKER_LOCAL_ENGINE") != "1":
            return None
        text = env.get("PRIMEBEAKER_REHEARSAL_SLOW_DISK_MS", "")
        return cls(int(text), int(env.get("BEAKER_REPLICA_RANK", "0"))) if text.isdigit() and int(text) else None

    def delay(self) -> None:
        """Wait as a slow disk would."""
        with self._lock:
            pause = self._random.uniform(0, self.milliseconds / 1000)
        time.sleep(pause)

    def listing(self, directory: Path, fresh: Callable[[], dict[str, Entry]]) -> dict[str, Entry]:
        """A listing that may be up to ten times the delay old."""
        now = time.monotonic()
        with self._lock:
            known = self._listings.get(directory)
            most_age = self._random.uniform(0, self.milliseconds / 100)
        if known is not None and now - known[0] < known[1]:
            return known[2]
        value = fresh()
        with self._lock:
            self._listings[directory] = (now, most_age, value)
        return value


class SharedFiles:
    """File operations off the event loop.

    Args:
        instance: Part of every temporary name, so that two processes never share one.
        faults: Slows everything down.
        before_write: Awaited before every write; raises when this process may not write any more.
    """

    def __init__(self, instance: str, *, faults: DiskFaults | None = None) -> None:
        self._instance = instance
        self._faults = faults
        self._bad_since: dict[Path, float] = {}
        # What a file held last: opened fresh each time, but parsed only when it changed.
        self._parsed: dict[Path, tuple[bytes, dict[str, Any]]] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0
        self._pending = 0
        self._count = 0
        # When each operation under way began, by its number.
        self._under_way: dict[int, float] = {}
        self._operations = itertools.count()
        self.before_write: Callable[[], Awaitable[None]] | None = None
        #: Operations so far by kind, for measuring.
        self.operations = {"read": 0, "list": 0, "write": 0}

    async def run[T](self, function: Callable[[], T]) -> T:
        """Run a blocking function in a daemon thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        number = next(self._operations)

        def job() -> None:
            self._under_way[number] = time.monotonic()
            try:
                if self._faults is not None:
                    self._faults.delay()
                value = function()
            except BaseException as error:
                self._under_way.pop(number)
                _answer(loop, future, None, error)
            else:
                self._under_way.pop(number)
                _answer(loop, future, value, None)

        self._pending += 1
        future.add_done_callback(self._finished)
        self._jobs.put(job)
        if self._threads < min(_THREADS, self._pending):
            self._threads += 1
            threading.Thread(target=self._work, name=f"files-{self._threads}", daemon=True).start()
        return await future

    def _finished(self, future: object) -> None:
        self._pending -= 1

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def hanging(self) -> str:
        """Words for a message about a wait that took too long: whether the file system is to blame."""
        oldest = min([*self._under_way.values(), time.monotonic()])
        seconds = time.monotonic() - oldest
        return f"; the file system has not answered for {seconds:.0f} s" if seconds > _HANGING_SECONDS else ""

    async def read(self, path: Path) -> dict[str, Any] | None:
        """The JSON object in a file, or None when it is not there, or not whole, yet.

        Raises:
            RoleFault: It has been unreadable for 30 s.
        """
        self.operations["read"] += 1
        return self.understood(path, await self.run(lambda: _content(path)))

    async def glance(
        self, reads: Sequence[Path], directory: Path, *, after: Glimpse | None, pause: Callable[[], float]
    ) -> Glimpse:
        """Read some files and list a directory, again and again until something is new, at most for a second.

        It all happens in the thread: of a hundred ranks that wait on one machine each looks many times a second.

        Args:
            reads: The files.
            directory: What to list.
            after: What was seen last.
            pause: Seconds until the next look.
        """
        faults = self._faults

        def names() -> frozenset[str]:
            try:
                if faults is not None:
                    return frozenset(faults.listing(directory, lambda: _scan(directory)))
                return frozenset(os.listdir(directory))  # noqa: PTH208  names alone
            except OSError:
                return frozenset()

        def look() -> Glimpse:
            end = time.monotonic() + _GLANCE_SECONDS
            while True:
                self.operations["read"] += len(reads)
                self.operations["list"] += 1
                glimpse = Glimpse(tuple(_content(path) for path in reads), names())
                if glimpse != after or time.monotonic() >= end:
                    return glimpse
                time.sleep(pause())

        return await self.run(look)

    def understood(self, path: Path, data: bytes | Unread) -> dict[str, Any] | None:
        """The JSON object that ``data`` is, as :meth:`read` gives it."""
        if isinstance(data, Unread):
            if data.errno in _NOT_YET:
                self._bad_since.pop(path, None)
            else:
                self._bad(path, data.reason)
            return None
        known = self._parsed.get(path)
        if known is not None and known[0] == data:
            return known[1]
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if isinstance(value, dict):
            self._bad_since.pop(path, None)
            self._parsed[path] = (data, value)
            return value
        self._bad(path, "not a whole JSON object")
        return None

    def _bad(self, path: Path, reason: str) -> None:
        since = self._bad_since.setdefault(path, time.monotonic())
        if time.monotonic() - since > _PATIENCE_SECONDS:
            raise RoleFault(
                ExitCode.BARRIER_TIMEOUT, "timeout", f"{path}: {reason}, for more than {_PATIENCE_SECONDS:g} s"
            )

    async def listing(self, directory: Path) -> dict[str, Entry]:
        """The files of a directory by name; empty when it is not there yet."""
        self.operations["list"] += 1

        def scan() -> dict[str, Entry]:
            return _scan(directory)

        faults = self._faults
        try:
            return await self.run(scan if faults is None else lambda: faults.listing(directory, scan))
        except OSError:
            return {}

    async def changed(self, directory: Path, seen: Mapping[str, Entry]) -> dict[str, tuple[Entry, bytes | Unread]]:
        """The content of every JSON file of a directory that is not as ``seen``, all in one go."""
        faults = self._faults

        def look() -> dict[str, tuple[Entry, bytes | Unread]]:
            self.operations["list"] += 1
            try:
                listing = _scan(directory) if faults is None else faults.listing(directory, lambda: _scan(directory))
            except OSError:
                return {}
            new = [entry for name, entry in listing.items() if name.endswith(".json") and seen.get(name) != entry]
            self.operations["read"] += len(new)
            return {entry.name: (entry, _content(directory / entry.name)) for entry in new}

        return await self.run(look)

    async def write(self, path: Path, value: Mapping[str, Any], *, mode: int = 0o644, guarded: bool = True) -> None:
        """Replace a file: temporary name, fsync, rename, fsync of the directory."""
        await self._guard(guarded)
        temporary = self._temporary(path)
        data = json.dumps(value).encode()
        await self._patiently(lambda: _write(path, temporary, data, mode))

    async def create(self, path: Path, value: Mapping[str, Any], *, guarded: bool = True) -> bool:
        """Create a file whole, only when nobody else has; returns whether this call did."""
        await self._guard(guarded)
        temporary = self._temporary(path)
        data = json.dumps(value).encode()
        return await self._patiently(lambda: _create(path, temporary, data))

    async def _patiently[T](self, function: Callable[[], T]) -> T:
        """Write again after a fault that network file systems show for a moment."""
        for pause in _WRITE_PAUSES:
            try:
                return await self.run(function)
            except OSError as error:
                if error.errno not in _NOT_YET:
                    raise
            await asyncio.sleep(pause)
        return await self.run(function)

    async def _guard(self, guarded: bool) -> None:
        self.operations["write"] += 1
        if guarded and self.before_write is not None:
            await self.before_write()

    def _temporary(self, path: Path) -> Path:
        self._count += 1
        return path.with_name(f".{path.name}.{self._instance}.{self._count}")


def _answer[T](
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], value: T | None, error: BaseException | None
) -> None:
    def deliver() -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # a function may return None

    # The loop is closed when the process is on its way out.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(deliver)


def _content(path: Path) -> bytes | Unread:
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read()
    except OSError as error:
        return Unread(error.errno, error.strerror or str(error))


def _scan(directory: Path) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                found[entry.name] = Entry(entry.name, state.st_ino, state.st_mtime_ns, state.st_size)
    return found


def _write(path: Path, temporary: Path, data: bytes, mode: int) -> None:
    _store(temporary, data, mode)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _create(path: Path, temporary: Path, data: bytes) -> bool:
    _store(temporary, data, 0o644)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


def _store(temporary: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
