"""Who holds a secret: environment and arguments of every process of this user."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Holder", "holders", "watched"]


class Holder(NamedTuple):
    """A process that holds the secret; ``experiment`` is that of the embedded engine, empty outside of one."""

    pid: int
    group: int
    experiment: str
    command: str


def holders(secret: str, *, variable: str = "BEAKER_TOKEN") -> list[Holder]:
    """The processes with the secret in their arguments, or in their environment within an experiment.

    Args:
        secret: The value.
        variable: The variable it is known by; the shell that launches may have it, replicas must not.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            group = os.getpgid(int(folder.name))
        except OSError:
            continue
        values = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        experiment = values.get("BEAKER_EXPERIMENT_ID", "")
        inherited = experiment and any(secret in value for value in values.values())
        if inherited or secret in words or (experiment and values.get(variable) == secret):
            found.append(Holder(int(folder.name), group, experiment, words))
    return found


@contextlib.contextmanager
def watched(secret: str) -> Iterator[dict[int, Holder]]:
    """Look for holders again and again; gives everything seen, by pid."""
    seen: dict[int, Holder] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            seen.update({holder.pid: holder for holder in holders(secret)})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
