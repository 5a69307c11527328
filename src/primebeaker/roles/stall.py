"""Notice a run that is alive but does nothing: no log output and no new step for a long time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from primebeaker.prime_rl.layout import Layout
from primebeaker.roles.causes import Cause, ExitCode
from primebeaker.roles.http import in_thread
from primebeaker.supervision import Child

__all__ = ["StallWatch", "progress"]

_DUMP_SECONDS = 20


def progress(layout: Layout, logs: Sequence[Path]) -> tuple[object, ...]:
    """A value that changes whenever something is logged or a step is written."""
    sizes: list[object] = []
    for path in (*logs, layout.metrics, layout.orchestrator_metrics):
        with contextlib.suppress(OSError):
            sizes.append((str(path), path.stat().st_size))
    for root in layout.step_roots:
        with contextlib.suppress(OSError):
            sizes.append((str(root), len(os.listdir(root))))  # noqa: PTH208  only a count
    return tuple(sizes)


class StallWatch:
    """Ends the role when nothing has moved for too long.

    Args:
        limit: Seconds.
        layout: The run's paths.
        children: The processes whose logs count, and whose stacks (and those of what they started) are dumped.
        logs: Further logs that count, written by others than the children.
    """

    def __init__(self, limit: float, layout: Layout, children: Sequence[Child], logs: Sequence[Path] = ()) -> None:
        self._limit = limit
        self._layout = layout
        self._children = children
        self._logs = (*logs, *(child.spec.log.path for child in children if child.spec.log is not None))

    async def run(self, end: Callable[[Cause], None], say: Callable[[str], None], env: Mapping[str, str]) -> None:
        """Watch for ever."""
        seen, since = None, time.monotonic()
        while True:
            await asyncio.sleep(min(5.0, self._limit / 4))
            now = await in_thread(lambda: progress(self._layout, self._logs))
            if now != seen:
                seen, since = now, time.monotonic()
                continue
            if time.monotonic() - since >= self._limit:
                await self._dump(say, env)
                message = f"no log output and no new step for {self._limit:g} s"
                end(Cause(code=ExitCode.STALLED, cause="stall", message=message))
                return

    async def _dump(self, say: Callable[[str], None], env: Mapping[str, str]) -> None:
        program = shutil.which("py-spy", path=env.get("PATH"))
        if program is None:
            say("py-spy is not installed: no stacks are shown")
            return
        for child in self._children:
            for line in await in_thread(lambda pid=child.pid: _stacks(program, pid)):  # type: ignore[misc]
                say(f"  {child.name}: {line}")


def _stacks(program: str, pid: int) -> list[str]:
    try:
        done = subprocess.run(
            [program, "dump", "--subprocesses", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DUMP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"py-spy failed: {error}"]
    return (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
