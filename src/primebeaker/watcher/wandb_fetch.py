"""Curves from W&B on demand: which are due, one child process that asks, and the cache that keeps the answers."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from primebeaker.redaction import mask_credentials
from primebeaker.watcher.metric_cache import MetricStore

__all__ = ["NO_KEY", "Fetcher", "Wanted", "online_key"]

#: Most time one request may take, from its start to its last answer.
REQUEST_SECONDS = 60.0
#: Most time between two answers of a long fetch.
_SILENCE_SECONDS = 600.0
_SECRET_SECONDS = 10
_ERROR_LENGTH = 240
NO_KEY = "no W&B key: set WANDB_API_KEY, give --wandb_secret=NAME, or run `wandb login`"


class Wanted(NamedTuple):
    """Metrics of one W&B run: exact names, and globs over what it logged."""

    path: str
    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()


def online_key(secret: str | None, environment: Mapping[str, str]) -> str | None:
    """The W&B key: ``WANDB_API_KEY``, else the named Beaker secret, else None (the client's own login).

    Raises:
        OSError: Beaker did not give the secret; the text never holds what it printed.
    """
    if environment.get("WANDB_API_KEY"):
        return environment["WANDB_API_KEY"]
    if secret is None:
        return None
    try:
        done = subprocess.run(
            ["beaker", "secret", "read", secret], capture_output=True, text=True, timeout=_SECRET_SECONDS, check=False
        )
    except FileNotFoundError:
        raise OSError("--wandb_secret: the program beaker is not installed") from None
    except (subprocess.TimeoutExpired, UnicodeDecodeError):
        raise OSError(f"--wandb_secret: beaker did not give {secret} within {_SECRET_SECONDS} s") from None
    if done.returncode != 0 or not done.stdout.strip():
        raise OSError(f"--wandb_secret: beaker secret read {secret} ended with {done.returncode}")
    return done.stdout.strip()


@dataclass
class Fetcher:
    """Fetches what is due and keeps it; asked from several threads at once.

    Attributes:
        store: Where answers are kept.
        secret: Name of the Beaker secret that holds the key.
        rate: Most requests a minute.
    """

    store: MetricStore
    secret: str | None = None
    rate: float = 60.0
    _requests: deque[float] = field(default_factory=deque)
    _running: dict[frozenset[Wanted], Future[None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _refused: tuple[float, str] = (0.0, "")

    def __post_init__(self) -> None:
        # One child at a time: it has the four connections that are allowed.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="wandb")

    def due(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """What of it is worth asking now: never a finished run twice, a running or failed one after a minute."""
        if os.environ.get("WANDB_MODE") in ("offline", "disabled"):
            return []
        now = time.time()
        found = []
        for item in wanted:
            known = self.store.online(item.path)
            if known is None or known.is_due(None, now):
                found.append(item)
                continue
            matching = [name for name in known.available if any(fnmatch.fnmatchcase(name, one) for one in item.globs)]
            names = tuple(name for name in dict.fromkeys([*item.names, *matching]) if known.is_due(name, now))
            if names:
                found.append(Wanted(item.path, names))
        return found

    def submit(self, wanted: Sequence[Wanted]) -> Future[None]:
        """Begin to fetch in a thread of its own; equal requests share one fetch."""
        key = frozenset(wanted)
        with self._lock:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = self._pool.submit(self.fetch, wanted, REQUEST_SECONDS)
                running.add_done_callback(lambda _done: self._running.pop(key, None))
            return running

    def fetch(
        self,
        wanted: Sequence[Wanted],
        seconds: float | None = None,
        told: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Ask W&B and keep the answers; a failure becomes the run's own error.

        Args:
            wanted: Runs and metrics.
            seconds: Most time for all of it; None gives each run its own minute, waiting for its turn not counted.
            told: Receives each answer as it comes.
        """
        left = {item.path for item in wanted}

        def keep(answer: dict[str, Any]) -> None:
            if answer.get("error"):
                answer["error"] = mask_credentials(str(answer["error"]))[:_ERROR_LENGTH]
            left.discard(answer["path"])
            self.store.put_online(answer["path"], answer)
            if told is not None:
                told(answer)

        until, refusal = self._refused
        problem = refusal if time.monotonic() < until else self._ask(wanted, seconds, keep)
        for path in sorted(left):
            keep({"path": path, "error": problem})

    def _ask(self, wanted: Sequence[Wanted], seconds: float | None, keep: Callable[[dict[str, Any]], None]) -> str:
        """Run the child; returns what to say of runs it did not answer."""
        try:
            key = online_key(self.secret, os.environ)
        except OSError as error:
            return str(error)
        request = {
            "runs": [item._asdict() for item in wanted],
            "rate": self.rate,
            "allowance": self._allowance(),
            "seconds": REQUEST_SECONDS if seconds is None else min(seconds, REQUEST_SECONDS),
            "patient": seconds is None,
        }
        environment = {**os.environ, **({"WANDB_API_KEY": key} if key else {})}
        child = subprocess.Popen(
            [sys.executable, "-m", "primebeaker.watcher.wandb_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # The client writes a `wandb` folder where it stands.
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        limit = _SILENCE_SECONDS if seconds is None else seconds
        watch = _Watch(child, limit)
        problem = f"no answer within {limit:.0f} s"
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(request).encode())
                child.stdin.close()
            for line in child.stdout:
                if seconds is None:
                    watch.again()
                answer = json.loads(line)
                if "requests" in answer:
                    self._requests.extend([time.monotonic()] * answer["requests"])
                elif "refused" in answer:
                    problem = self._refuse(answer, key)
                else:
                    keep(answer)
        except ValueError:
            problem = "the W&B client broke off"
        finally:
            watch.end()
            _kill(child)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        return problem

    def _refuse(self, answer: Mapping[str, Any], key: str | None) -> str:
        text = str(answer["error"])
        if answer["refused"] == "login" and key is None:
            text = f"{NO_KEY} ({text})"
        self._refused = (time.monotonic() + 60, text)
        return text

    def _allowance(self) -> float:
        now = time.monotonic()
        while self._requests and now - self._requests[0] > 60:
            self._requests.popleft()
        return max(0.0, self.rate - len(self._requests))

    def close(self) -> None:
        """Forget what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Watch:
    """Ends a child that stays silent for too long."""

    def __init__(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        self._child, self._seconds = child, seconds
        self.again()

    def again(self) -> None:
        """Count from now."""
        self.end()
        self._timer = threading.Timer(self._seconds, _kill, [self._child])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Watch no more."""
        if hasattr(self, "_timer"):
            self._timer.cancel()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and the service the client started, which share a session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
