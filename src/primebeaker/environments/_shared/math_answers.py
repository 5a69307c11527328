"""Grading boxed mathematical answers by equivalence, in a worker process.

Comparing expressions may take arbitrarily long in the computer algebra behind it, and stops such work by a signal that
needs a main thread of its own; so it runs in processes, which end with the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from primebeaker.environments._shared.rows import answer_text

__all__ = ["LONGEST_TEXT", "MOST_SECONDS", "MathGrader", "last_boxed"]

#: A text of more characters scores 0, as does a comparison of more seconds.
LONGEST_TEXT = 50_000
MOST_SECONDS = 5.0

_BOX = "\\boxed{"


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced ``\boxed{…}`` of a text."""
    closing_of: dict[int, int] = {}
    stack: list[int] = []
    for position, character in enumerate(text):
        if character == "{":
            stack.append(position)
        elif character == "}" and stack:
            closing_of[stack.pop()] = position
    end = len(text)
    while (start := text.rfind(_BOX, 0, end)) >= 0:
        brace = start + len(_BOX) - 1
        if brace in closing_of:
            return text[brace + 1 : closing_of[brace]]
        end = start
    return None


class MathGrader:
    """Compares boxed answers in one worker process at a time."""

    def __init__(self) -> None:
        self._workers: ProcessPoolExecutor | None = None

    async def accuracy(self, reply: str, answer: Any) -> float:
        """1.0 when the last boxed expression after thinking is equivalent to that of the answer, else 0.0."""
        said = reply.rpartition("</think>")[2]
        if len(said) > LONGEST_TEXT:
            return 0.0
        named = last_boxed(said)
        gold = answer_text({"answer": answer})
        if named is None or gold is None:
            return 0.0
        gold = last_boxed(gold) or gold
        if self._workers is None:
            # A forked worker would inherit the sockets and locks of this process.
            context = multiprocessing.get_context("spawn")
            self._workers = ProcessPoolExecutor(max_workers=1, mp_context=context)
        workers = self._workers
        try:
            return float(await asyncio.wrap_future(workers.submit(_are_equivalent, gold, named)))
        except Exception:
            # A worker that was killed spoils its pool; the next comparison starts a new one.
            if self._workers is workers:
                self.close()
            return 0.0

    def close(self) -> None:
        """End the worker."""
        workers, self._workers = self._workers, None
        if workers is not None:
            with contextlib.suppress(Exception):
                workers.shutdown(wait=False, cancel_futures=True)


def _are_equivalent(gold: str, named: str) -> bool:
    from math_verify import parse, verify  # type: ignore[import-untyped]  # it has no type information

    started = time.monotonic()
    seconds = int(MOST_SECONDS)
    parsed_gold = parse(f"\\boxed{{{gold}}}", parsing_timeout=seconds)
    parsed_named = parse(f"\\boxed{{{named}}}", parsing_timeout=seconds)
    equal = bool(verify(parsed_gold, parsed_named, timeout_seconds=seconds))
    return equal and time.monotonic() - started <= MOST_SECONDS
