"""``python3 -m primebeaker.roles.keeper COMMAND…``: run a single-node task, then stop the services of its joint run.

The whole task is the child, its setup command included, so that the Beaker token is out of every environment before
anything of the user's starts.  Signals go to the task; its exit code is the keeper's, whatever the clean-up does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from primebeaker.errors import UserError
from primebeaker.roles.managed import ManagedServices, take_managed_services

__all__ = ["keep", "main"]

#: Beaker's own grace is short, and the services are to be stopped within it too.
_GRACE_SECONDS = 10.0
_MISTAKE = 2
_CANNOT_START = 127


async def keep(command: Sequence[str], managed: ManagedServices | None) -> int:
    """Run ``command`` to its end and stop the managed services afterwards; returns the command's exit code."""
    try:
        process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    except OSError as error:
        _say(f"error: {command[0]} cannot be started: {error.strerror or error}")
        code = _CANNOT_START
    else:
        code = await _wait(process)
    if managed is not None:
        await managed.stop(_say)
    return code


async def _wait(process: asyncio.subprocess.Process) -> int:
    loop = asyncio.get_running_loop()
    asked: list[int] = []
    signalled = asyncio.Event()

    def forward(number: int) -> None:
        asked.append(number)
        signalled.set()
        _signal_group(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, forward, number)
    ending = asyncio.ensure_future(process.wait())
    waiting = asyncio.ensure_future(signalled.wait())
    await asyncio.wait({ending, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not ending.done():
        await asyncio.wait({ending}, timeout=_GRACE_SECONDS)
    # Also what the task left behind in its session, and the task itself when it did not end.
    _signal_group(process.pid, signal.SIGKILL)
    code = await ending
    if asked and code != 0:
        return 128 + asked[0]
    return code if code >= 0 else 128 - code


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _say(line: str) -> None:
    sys.stderr.write(f"primebeaker: {line}\n")
    sys.stderr.flush()


def main(words: Sequence[str] | None = None) -> int:
    """Keep one command."""
    command = list(sys.argv[1:] if words is None else words)
    try:
        managed = take_managed_services(os.environ, rank=0)
    except UserError as error:
        _say(f"error: {error}")
        return _MISTAKE
    return asyncio.run(keep(command, managed))


if __name__ == "__main__":
    sys.exit(main())
