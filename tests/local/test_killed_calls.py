"""Calls of the engine that are killed in the midst of what they do: nothing is corrupt, nothing runs unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from primebeaker.errors import ExternalError, UserError
from primebeaker.local import LocalEngine

from ..waiting import read_pid, until
from .conftest import job_processes

SUPERVISE = "primebeaker.local.supervise"
# Kills the process at the n-th thing it does to files, database and processes once the database is open.
KILL = """
import os, signal, sys

KINDS = {{"open", "os.mkdir", "os.chmod", "os.rename", "os.remove", "subprocess.Popen", "sqlite3.connect"}}
left = [{number}]


def seen(event, arguments):
    if event == "sqlite3.connect":
        left[1:] = [True]
    if left[1:] and event in KINDS:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if ({SUPERVISE!r} in sys.orig_argv) == {supervisor}:
    import atexit

    sys.addaudithook(seen)
    atexit.register(lambda: open({count!r}, "w").write(str({number} - left[0])))
"""


def hook(folder: Path, number: int, *, supervisor: bool) -> None:
    """What Python runs first in processes that have the folder in ``PYTHONPATH``: in supervisors alone, or elsewhere."""
    count = str(folder / "count")
    text = KILL.format(number=number, count=count, supervisor=supervisor, SUPERVISE=SUPERVISE)
    (folder / "sitecustomize.py").write_text(text)


SOURCE = Path(__file__).parents[2] / "src"
KILLS = 8


class Calls:
    """Runs engine calls that kill themselves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def run(self, code: str, number: int) -> int:
        hook(self._folder, number, supervisor=False)
        done = subprocess.run(
            [sys.executable, "-c", f"from primebeaker.local import LocalEngine\nfrom pathlib import Path\n{code}"],
            env=os.environ | {"PYTHONPATH": f"{self._folder}:{SOURCE}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    def moments(self, code: str) -> list[int]:
        """Evenly spread numbers of things that ``code`` does, and its last."""
        assert self.run(code, 1_000_000) == 0
        whole = int((self._folder / "count").read_text())
        return sorted({*range(1, whole, max(whole // KILLS, 1)), whole - 1, whole})


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


def test_a_creation_that_is_killed_leaves_all_or_nothing(
    engine: LocalEngine, calls: Calls, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    """Either the experiment runs to its end as if nothing had happened, or it is lost and can be started again."""
    spec = write_spec("echo ran", replicas=2)

    def creation(name: object) -> str:
        return f"LocalEngine().create(Path({str(spec)!r}), name='n{name}', workspace='a/b')"

    outcomes = set()
    for number in calls.moments(creation("whole")):
        calls.run(creation(number), number)
        engine.list()
        assert engine.store.check() == "ok"
        try:
            row = engine.store.find(f"n{number}")
        except UserError:
            outcomes.add("nothing")
            continue
        outcomes.add("lost" if row.state == "failed" else "runs")
        if row.state == "failed":
            assert not job_processes(engine, row.id)
            engine.restart(row.id)
        assert engine.wait(row.id, timeout=60).state == "succeeded", f"killed at {number}"
        newest = engine.get(row.id).latest_jobs
        assert [job.replica_rank for job in newest] == [0, 1]
        assert [line.text for line in engine.logs(row.id)].count("ran") >= 2
    assert outcomes == {"nothing", "runs", "lost"}


def test_a_stop_that_is_killed_is_done_by_the_next_one(
    engine: LocalEngine, calls: Calls, launch: Callable[..., str], tmp_path: Path
) -> None:
    first = launch("exec sleep 600", name="whole")
    for number in calls.moments(f"LocalEngine().stop({first!r})"):
        experiment_id = launch("exec sleep 600", name=f"n{number}")
        calls.run(f"LocalEngine().stop({experiment_id!r})", number)
        assert engine.store.check() == "ok"
        engine.stop(experiment_id)
        assert engine.get(experiment_id).state == "canceled"
        assert not job_processes(engine, experiment_id)


def test_a_lost_supervisor_at_any_moment_of_its_own(
    engine: LocalEngine, write_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor kills itself at the n-th thing it does: what it had started is gone, and a restart works."""
    folder = tmp_path / "supervisor"
    folder.mkdir()
    spec = write_spec("echo ran", replicas=2)

    def created(name: str, number: int) -> str | None:
        hook(folder, number, supervisor=True)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{folder}:{SOURCE}")
            try:
                return engine.create(spec, name=name, workspace="a/b").experiment_id
            except ExternalError:
                return None

    whole = created("whole", 1_000_000)
    assert whole is not None
    assert engine.wait(whole, timeout=60).state == "succeeded"
    steps = read_pid(folder / "count")
    assert steps > KILLS
    for number in range(1, steps + 1, steps // KILLS):
        created(f"n{number}", number)
        row = engine.store.find(f"n{number}")
        until(lambda row=row: not engine.store.experiment(row.id).active or engine.get(row.id).ended)
        assert not job_processes(engine, row.id)
        assert engine.store.check() == "ok"
        if engine.get(row.id).state == "failed":
            engine.restart(row.id)
            assert engine.wait(row.id, timeout=60).state == "succeeded"
