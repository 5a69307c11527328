"""Faults that reach the programs by their environment, and the clock that one of them shifts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.rehearsal.fault_variables import fault_variables, without_faults
from primebeaker.rehearsal.faults import parse_faults

FAULTS = parse_faults(["slow-disk:ms=20", "clock:rank=1,skew=3600", "clock:skew=-90", "kill:process=role"])
REHEARSAL = {"PRIMEBEAKER_REHEARSAL": "1", "PRIMEBEAKER_LOCAL_ENGINE": "1"}
LOOK = """
import datetime, json, time
print(json.dumps([time.time(), time.time_ns() / 1e9, datetime.datetime.now(datetime.UTC).timestamp(),
                  time.monotonic(), isinstance(datetime.datetime.now(), datetime.datetime)]))
"""


def clock(**environment: str) -> list[float]:
    """Wall clock (three ways) less the real one, of a process with this environment."""
    import time

    before = time.time()
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    *walls, monotonic, is_moment = json.loads(done.stdout)
    assert monotonic <= time.monotonic() and is_moment
    return [wall - before for wall in walls]


def test_only_the_named_replicas_have_another_time_and_only_in_a_rehearsal():
    shifted = {**REHEARSAL, **fault_variables(FAULTS, {})}
    assert all(3600 <= skew < 3700 for skew in clock(**shifted, BEAKER_REPLICA_RANK="1"))
    assert all(-90 <= skew < 10 for skew in clock(**shifted, BEAKER_REPLICA_RANK="0"))
    assert all(0 <= skew < 60 for skew in clock(**shifted, BEAKER_REPLICA_RANK="2"))
    for name in REHEARSAL:
        assert all(0 <= skew < 60 for skew in clock(**{**shifted, name: "0"}, BEAKER_REPLICA_RANK="1"))


@pytest.mark.parametrize("given", [{}, {"PYTHONPATH": "/a:/b"}])
def test_a_resumed_run_has_none_of_them(given):
    variables = {**given, **fault_variables(FAULTS, given)}
    assert variables["PRIMEBEAKER_REHEARSAL_SLOW_DISK_MS"] == "20"
    assert variables["PYTHONPATH"].partition(":")[2] == given.get("PYTHONPATH", "")
    assert Path(variables["PYTHONPATH"].partition(":")[0], "sitecustomize.py").is_file()
    assert without_faults({**variables, "OTHER": "x"}) == {**given, "OTHER": "x"}
