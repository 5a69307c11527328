"""The state of a replica as a user understands it, from what Beaker tells about its job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primebeaker.beaker.parse import parse_experiment
from primebeaker.beaker.status import experiment_status

AT = "2026-01-01T00:00:0{}Z"


def experiment(*statuses: dict[str, Any], **spec: Any) -> Any:
    jobs = [
        {
            "id": f"job{index}",
            "execution": {"task": "t", "replicaRank": index, "spec": {"name": "main", **spec}},
            "status": {"created": AT.format(0), **status},
        }
        for index, status in enumerate(statuses)
    ]
    return parse_experiment({"id": "01X", "name": "exp", "jobs": jobs})


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"message": "no node has 8 free GPUs"}, "queued"),
        ({"scheduled": AT.format(1)}, "scheduled"),
        ({"scheduled": AT.format(1), "started": AT.format(2)}, "running"),
        ({"started": AT.format(2), "exited": AT.format(3), "exitCode": 0}, "succeeded"),
        ({"started": AT.format(2), "exited": AT.format(3), "exitCode": 1}, "failed"),
        ({"canceled": AT.format(3), "canceledCode": 4, "finalized": AT.format(3)}, "canceled"),
        ({"canceled": AT.format(3), "canceledCode": 1, "finalized": AT.format(3)}, "preempted"),
    ],
)
def test_the_state_of_a_replica(status: dict[str, Any], state: str):
    (replica,) = experiment_status(experiment(status)).replicas
    assert replica.state == state
    assert replica.message == status.get("message", "")


def test_the_replica_that_failed_first_is_the_cause():
    """Not the first rank, and not one that was canceled because of it."""
    ran = {"started": AT.format(1)}
    found = experiment_status(
        experiment(
            {**ran, "exited": AT.format(5), "exitCode": 90},
            {**ran, "exited": AT.format(3), "exitCode": 7},
            {**ran, "exited": AT.format(2), "exitCode": 143, "canceled": AT.format(2), "canceledCode": 4},
        )
    )
    assert found.cause == "main rank 1 ended with 7"
    assert [replica.seconds for replica in found.replicas] == [4, 2, 1]


def test_what_the_roles_wrote_down_is_the_better_cause(tmp_path: Path):
    (tmp_path / "epochs" / "e1").mkdir(parents=True)
    (tmp_path / "epoch.json").write_text(json.dumps({"epoch": "e1"}))
    shutdown = {"message": "trainer on rank 0 ended with 1; last lines of x.log:\nTraceback"}
    (tmp_path / "epochs" / "e1" / "shutdown.json").write_text(json.dumps(shutdown))
    ended = {"started": AT.format(1), "exited": AT.format(2), "exitCode": 1}
    variables = [{"name": "RENDEZVOUS_DIR", "value": str(tmp_path)}]
    found = experiment_status(experiment(ended, envVars=variables))
    assert found.cause == "trainer on rank 0 ended with 1; last lines of x.log"
    (tmp_path / "epoch.json").write_text("half a fi")
    assert experiment_status(experiment(ended, envVars=variables)).cause == "main rank 0 ended with 1"


def test_a_role_that_ended_before_the_start_says_why_in_its_member_file(tmp_path: Path):
    ended = {"started": AT.format(1), "exited": AT.format(2), "exitCode": 93}
    found = experiment(ended, envVars=[{"name": "RENDEZVOUS_DIR", "value": str(tmp_path)}])
    (tmp_path / "members").mkdir()
    member = {"job_id": "job0", "phase": "ended", "code": 93, "message": "assembly: rank 1 of 2 have not arrived"}
    for change, cause in (
        ({}, "main rank 0 ended with 93: assembly: rank 1 of 2 have not arrived"),
        ({"job_id": "an earlier one"}, "main rank 0 ended with 93"),
        ({"phase": "run"}, "main rank 0 ended with 93"),
    ):
        (tmp_path / "members" / "0.json").write_text(json.dumps(member | change))
        assert experiment_status(found).cause == cause


def test_an_experiment_that_goes_well_has_no_cause():
    assert experiment_status(experiment({"started": AT.format(1)})).cause is None


def test_the_newest_attempt_counts():
    first = {"started": AT.format(1), "canceled": AT.format(2), "canceledCode": 1, "finalized": AT.format(2)}
    found = experiment(first, {"created": AT.format(3), "started": AT.format(4)})
    same_rank = tuple(replace(job, replica_rank=0) for job in found.jobs)
    (replica,) = experiment_status(replace(found, jobs=same_rank)).replicas
    assert (replica.state, replica.attempt) == ("running", 2)
