"""A tiny process beside a supervisor that outlives it only to clean up.

The supervisor holds one end of a pipe and tells every child it starts.  When the pipe closes without a farewell the
supervisor has died, however suddenly: the guardian kills the children's groups and everything that carries the
supervisor's mark, also in sessions of its own, and ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from primebeaker.supervision.processes import MARKER, Process, descendants, look_up, marked, send_signal, snapshot

if TYPE_CHECKING:
    import subprocess

__all__ = ["Guardian", "main"]

# A watch of the parent's pid beside the pipe: a process that inherited the pipe's end would keep it open.
_WATCH_SECONDS = 0.5
_ROUNDS = 5
_FAREWELL_SECONDS = 5.0
_LOOK_SECONDS = 0.005
_FAREWELL = b"bye\n"


class Guardian:
    """The supervisor's handle on its guardian process.

    Args:
        mark: The supervisor's own mark.
    """

    def __init__(self, mark: str) -> None:
        # The guardian imports this module too, and starts nothing.
        import subprocess

        read_end, self._write_end = os.pipe()
        # Without site packages and by path, so that a start costs some ten milliseconds.
        package_root = str(Path(__file__).resolve().parents[2])
        code = f"import sys; sys.path.insert(0, {package_root!r}); import {__name__} as guardian; guardian.main()"
        inherited = {name: os.environ[name] for name in ("PATH", MARKER) if name in os.environ}
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code, mark, str(read_end), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited,
                pass_fds=(read_end,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        """Its process id, so that a search for left-over descendants spares it."""
        return self._process.pid

    def tell(self, pid: int, start: str) -> None:
        """Name a child that was started."""
        self._send(f"{pid} {start}\n".encode())

    def dismiss(self) -> None:
        """Let it end: nothing is left to guard."""
        self._send(_FAREWELL)
        os.close(self._write_end)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            time.sleep(_LOOK_SECONDS)

    def _send(self, data: bytes) -> None:
        try:
            os.write(self._write_end, data)
        except OSError:
            # It was killed. The parent-death signal still covers the direct children.
            return


def main() -> None:
    """Watch until the supervisor says farewell or dies. Arguments: mark, pipe descriptor, the supervisor's pid."""
    mark, descriptor, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([descriptor], [], [], _WATCH_SECONDS)
        if not readable:
            continue
        data = os.read(descriptor, 65536)
        told += data
        if not data:
            break
    if not told.endswith(_FAREWELL):
        _kill_all(mark, _children(told))


def _children(told: bytes) -> dict[int, str]:
    children = {}
    for line in told.decode().splitlines():
        pid, _, start = line.partition(" ")
        if pid.isdigit():
            children[int(pid)] = start
    return children


def _kill_all(mark: str, children: dict[int, str]) -> None:
    for _ in range(_ROUNDS):
        table = snapshot()
        left = {process.pid: process for process in marked(mark, table)}
        for pid, start in children.items():
            leader = look_up(pid)
            if leader is not None and leader.start == start:
                members = [process for process in table.values() if process.pgid == pid]
                for process in [leader, *members, *descendants([pid], table)]:
                    left.setdefault(process.pid, process)
        targets: list[Process] = [process for process in left.values() if process.alive and process.pid != os.getpid()]
        if not targets:
            return
        for process in targets:
            send_signal(process, signal.SIGKILL)
        time.sleep(0.05)
