"""A rehearsal that is interrupted, or loses any of its processes, leaves nothing running and nothing half written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from primebeaker.local import LocalEngine
from primebeaker.prime_rl.checkpoint_rules import rl_rule
from primebeaker.prime_rl.checkpoints import list_steps
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.rehearsal.local_ports import claim_block
from primebeaker.rehearsal.settings import PORTS

from .conftest import ROOT, left_over, pids_of

SINGLE, MULTINODE = ROOT / "examples/rl/config.toml", ROOT / "examples/rl/multinode.toml"
SECONDS = 180


def started(home: Path, toml: Path, work: Path, *words: str) -> subprocess.Popen[str]:
    """A rehearsal of its own session, as a terminal starts it."""
    command = [sys.executable, "-m", "primebeaker", "rehearse", "--toml", str(toml), "--work-dir", str(work), *words]
    return subprocess.Popen(
        [*command, "--timeout=120", "--no-rollouts", "--format=json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PRIMEBEAKER_LOCAL_HOME": str(home)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, None),
        (signal.SIGTERM, "started"),
        (signal.SIGINT, "start done"),
        (signal.SIGHUP, "step 1"),
    ],
)
def test_each_phase_ends_at_a_signal_and_the_next_ones_change_nothing(
    home: Path, tmp_path: Path, number: signal.Signals, line: str | None
) -> None:
    process = started(home, MULTINODE, tmp_path / "work", "--steps=50")
    assert process.stderr is not None
    if line is None:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "work/config.toml").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    else:
        assert any(line in told for told in process.stderr)
    for _ in range(3):
        process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number, err
    assert out == "" and len([told for told in err.splitlines() if told.startswith("primebeaker: error:")]) == 1
    assert left_over(home) == []
    assert all(experiment.state == "canceled" for experiment in LocalEngine(home).list())
    assert unreadable(tmp_path / "work") == []


def test_a_mistake_leaves_an_earlier_rehearsal_of_that_name_alone(home: Path, tmp_path: Path) -> None:
    words = ("--steps=50", "--launch-id=twice")
    first = started(home, SINGLE, tmp_path / "first", *words)
    assert first.stderr is not None
    assert any("step 1" in told for told in first.stderr)
    second = started(home, SINGLE, tmp_path / "second", *words)
    _, err = second.communicate(timeout=SECONDS)
    assert second.returncode == 2 and "already in use" in err
    assert [experiment.state for experiment in LocalEngine(home).list()] == ["running"]
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=SECONDS)


def struck_at_random(home: Path, work: Path, toml: Path, seed: int) -> None:
    """Kill one to three processes of a rehearsal, its own and the engine's included, at random moments."""
    draw = random.Random(seed)
    process = started(home, toml, work, "--steps=3", f"--launch-id=seed{seed}")
    for _ in range(draw.randint(1, 3)):
        time.sleep(draw.uniform(0.1, 3.0))
        victims = sorted(pids_of(home))
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(victims), signal.SIGKILL)
    process.communicate(timeout=SECONDS)


def check_aftermath(home: Path, work: Path, toml: Path, seed: int) -> None:
    """Nothing runs after the next engine call, nothing is damaged, and the same launch can be started again."""
    engine = LocalEngine(home)
    deadline = time.monotonic() + SECONDS
    # A run whose terminal was killed goes on to its own end.
    while any(one.state in ("created", "running") for one in engine.list()):
        assert time.monotonic() < deadline, engine.list()
        time.sleep(0.2)
    assert left_over(home) == []
    with contextlib.closing(sqlite3.connect(home / "engine.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert unreadable(work) == []
    found = engine.list()
    if not found:
        again = started(home, toml, work.with_name("again"), f"--launch-id=seed{seed}")
        _, err = again.communicate(timeout=SECONDS)
        assert again.returncode == 0, err
    elif found[0].state != "succeeded":
        with own_ports_of(engine, found[0].id):
            engine.restart(found[0].id)
            ended = engine.wait(found[0].id, timeout=SECONDS)
        assert ended.state == "succeeded", "\n".join(line.text for line in engine.logs(found[0].id, tail=40))
        ranks = 4 if toml == MULTINODE else 1
        assert list_steps(GEN_0_7.layout(work / "output"), rl_rule(ranks))[-1].step == 3
    assert left_over(home) == []


@contextlib.contextmanager
def own_ports_of(engine: LocalEngine, experiment: str) -> Iterator[None]:
    """Keep other rehearsals from the ports of one that starts again, as its own command line did."""
    rehearsal = engine.find(experiment).rehearsal
    assert rehearsal is not None
    deadline = time.monotonic() + SECONDS
    while (block := claim_block(int(rehearsal["env"][PORTS]))) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert block is not None, "somebody else keeps the ports"
    try:
        yield
    finally:
        block.release()


def unreadable(work: Path) -> list[str]:
    """JSON files that hold no whole document. Prime-RL's own temporary names do not count."""
    broken = []
    for path in work.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            broken.append(str(path))
    return broken


@pytest.mark.parametrize(("toml", "seed"), [(SINGLE, 1), (MULTINODE, 2)], ids=["single", "multi"])
def test_killed_at_random(home: Path, tmp_path: Path, toml: Path, seed: int) -> None:
    struck_at_random(home, tmp_path / "work", toml, seed)
    check_aftermath(home, tmp_path / "work", toml, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 124))
def test_killed_at_random_often(home: Path, tmp_path: Path, seed: int) -> None:
    toml = MULTINODE if seed % 2 else SINGLE
    struck_at_random(home, tmp_path / "work", toml, seed)
    check_aftermath(home, tmp_path / "work", toml, seed)
