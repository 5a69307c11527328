"""What must follow a fault is judged by exit codes, causes and checkpoints, not by the mere fact that a run failed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from primebeaker.beaker.models import Experiment, Job, JobStatus
from primebeaker.rehearsal.expectations import Seen, judge
from primebeaker.rehearsal.faults import parse_fault
from primebeaker.rehearsal.injection import Injector, Strike

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOO_LATE = {"code": 93, "message": "assembly: rank 1 of 2 have not arrived"}


def judged(text: str, state: str, codes: list[int], *, down: float = 2.0, **seen: object) -> bool:
    """Whether a fault that struck two seconds before the end of such a run counts as expected."""
    injector = Injector([parse_fault(text)], Path("/nonexistent"), lambda line: None)
    injector.strikes[0] = Strike(100.0, "struck", seen.pop("row", None))
    jobs = tuple(
        Job(id=str(rank), task="t", replica_rank=rank, status=JobStatus(exited=NOW, exit_code=code))
        for rank, code in enumerate(codes)
    )
    experiment = Experiment("e", "e", "w", "a", "", NOW, jobs, reported_state=state)
    values = {
        "timed_out": False, "ended_at": 100.0 + down, "checkpoints": (), "steps": (), "ends": (), "last_step": 2,
        "left": 0, "multi_node": True, "barrier_seconds": 30.0, **seen,
    }  # fmt: skip
    (row,) = judge(injector, Seen(experiment=experiment, **values))
    return bool(row["ok"])


@pytest.mark.parametrize(
    ("text", "state", "codes", "seen", "ok"),
    [
        ("kill:rank=1,process=engine0", "failed", [90, 137], {}, True),
        ("kill:rank=1,process=engine0", "failed", [90, 90], {}, False),
        ("kill:rank=1,process=engine0", "failed", [7, 137], {}, False),
        ("kill:rank=1,process=engine0", "failed", [90, 137], {"down": 25.0}, False),
        ("kill:rank=1,process=engine0", "failed", [90, 137], {"left": 1}, False),
        ("exit:process=worker0,code=9", "failed", [1, 90], {}, True),
        ("kill:rank=1,process=worker0", "failed", [1, 143], {}, True),
        ("kill:rank=1,process=worker0", "failed", [90, 7], {}, False),
        ("hang:process=orchestrator", "failed", [97, 90], {}, True),
        ("hang:process=orchestrator", "failed", [1, 90], {}, False),
        ("hang:process=orchestrator", "canceled", [143, 143], {"timed_out": True}, False),
        ("hang:rank=1,process=role", "failed", [95, 143], {}, True),
        ("hang:rank=1,process=role", "canceled", [0, 143], {"timed_out": True}, False),
        ("restart-alone:rank=1", "failed", [95, 143], {}, True),
        ("restart-alone:rank=1", "failed", [90, 143], {}, False),
        ("restart-alone:rank=1", "succeeded", [0, 0], {}, False),
        ("late:rank=1,seconds=5", "succeeded", [0, 0], {}, True),
        ("late:rank=1,seconds=5", "failed", [93, 143], {"ends": [TOO_LATE]}, False),
        ("late:rank=1,seconds=60", "failed", [93, 143], {"ends": [TOO_LATE]}, True),
        ("late:rank=1,seconds=60", "failed", [93, 143], {"ends": []}, False),
        ("no-service:name=terminal", "failed", [94, 90], {"ends": [{"code": 94, "message": "terminal: 0 of 1"}]}, True),
        ("no-service:name=terminal", "failed", [94, 90], {"ends": [{"code": 94, "message": "engines"}]}, False),
        ("preempt:restart=true", "succeeded", [0, 0], {"steps": [{"step": 1}, {"step": 2}]}, True),
        ("preempt:restart=true", "preempted", [143, 143], {}, False),
        ("corrupt", "succeeded", [0, 0], {"row": {"step": 2, "complete": True, "missing": []}}, False),
        ("corrupt", "succeeded", [0, 0], {"row": {"step": 2, "complete": False, "missing": ["a shard"]}}, True),
        ("midsave", "failed", [1, 90], {"checkpoints": [{"step": 2, "complete": True, "missing": []}]}, False),
        ("slow-disk:ms=5", "succeeded", [0, 0], {"steps": [{"step": 2}]}, True),
        ("slow-disk:ms=5", "succeeded", [0, 0], {"steps": [{"step": 1}]}, False),
        ("clock:skew=5", "failed", [95, 0], {"steps": [{"step": 2}]}, False),
        ("full-disk:bytes=9", "failed", [1, 90], {"failure": "[Errno 28] No space left on device: 'x'"}, True),
        ("full-disk:bytes=9", "failed", [1, 90], {"failure": "Traceback …\nNo space left on device"}, False),
        ("full-disk:bytes=9", "failed", [1, 90], {"failure": "it ended"}, False),
        ("full-disk:bytes=9", "failed", [1, 90], {"failure": "No space left on device", "down": 30.0}, False),
        ("port-busy:port=8000", "succeeded", [0, 0], {}, True),
        ("port-busy:port=8000", "failed", [1, 90], {}, False),
        ("port-busy:port=1212", "failed", [2, 90], {"ends": [{"code": 2, "message": "see --gateway-port"}]}, True),
        ("port-busy:port=1212", "failed", [2, 90], {"ends": [{"code": 2, "message": "a port is busy"}]}, False),
        ("port-busy:port=8000", "failed", [1], {"multi_node": False, "failure": "port 8000 cannot be used"}, True),
        ("port-busy:port=8000", "succeeded", [0], {"multi_node": False}, False),
        ("tool-outage:name=python,seconds=5", "succeeded", [0, 0], {"steps": [{"step": 2, "errors": 3}]}, True),
        ("tool-outage:name=python,seconds=5", "failed", [1, 0], {"steps": [{"step": 1}]}, False),
    ],
)
def test_what_counts_as_expected(text, state, codes, seen, ok):
    assert judged(text, state, codes, **seen) is ok
