"""Experiments run as on Beaker: gangs, propagation, time-outs, stop, preemption, restart."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from primebeaker.errors import ExternalError, UserError
from primebeaker.local import LocalEngine
from primebeaker.supervision.processes import descendants, marked, snapshot

from ..waiting import alive, command_line, until
from .conftest import job_processes

Launch = Callable[..., str]

WAIT_30 = "trap 'exit 0' TERM; i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done"


def states(engine: LocalEngine, experiment_id: str) -> list[str]:
    return [job.state for job in engine.store.jobs(experiment_id)]


def test_a_replica_that_ends_well(engine: LocalEngine, launch: Launch):
    experiment_id = launch("echo hello; echo again >&2")
    experiment = engine.wait(experiment_id, timeout=30)
    (job,) = experiment.jobs
    assert (experiment.state, job.state, job.status.exit_code, job.status.message) == ("succeeded", "succeeded", 0, "")
    times = [job.status.created, job.status.scheduled, job.status.started, job.status.exited, job.status.finalized]
    assert all(times)
    assert times == sorted(times)
    assert job.status.failed is None
    assert [line.text for line in engine.logs(experiment_id)] == ["hello", "again"]


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [("exit 7", 7, "ended with 7"), ("kill -9 $$", 137, "was killed by signal 9")],
)
def test_a_replica_that_fails(engine: LocalEngine, launch: Launch, script: str, code: int, message: str):
    experiment = engine.wait(launch(script), timeout=30)
    assert experiment.state == "failed"
    assert experiment.jobs[0].status.exit_code == code
    assert experiment.jobs[0].status.message == message


def test_a_gang_starts_together_and_ends_together(engine: LocalEngine, launch: Launch):
    """No replica starts before all are scheduled; one exits 7, the others are canceled and nothing is left."""
    script = f'test "$BEAKER_REPLICA_RANK" = 2 && sleep 0.2 && exit 7; setsid sleep 600 & {WAIT_30}'
    experiment_id = launch(
        script,
        replicas=4,
        leaderSelection=True,
        synchronizedStartTimeout="4h",
        propagateFailure=True,
        propagatePreemption=True,
    )
    experiment = engine.wait(experiment_id, timeout=30)
    jobs = engine.store.jobs(experiment_id)
    assert max(job.scheduled_at or "~" for job in jobs) <= min(job.started_at or "" for job in jobs)
    assert experiment.state == "failed"
    assert [job.state for job in jobs] == ["canceled", "canceled", "failed", "canceled"]
    assert [job.exit_code for job in jobs] == [0, 0, 7, 0]
    assert jobs[0].message == "canceled because main rank 2 ended with 7"
    assert not job_processes(engine, experiment_id)


def test_failure_reaches_every_task_of_the_experiment(engine: LocalEngine, write_spec: Callable[..., Path]):
    image = {"beaker": "x"}
    spec = write_spec(
        tasks=[
            {"name": "bad", "image": image, "command": ["sh", "-c", "sleep 0.2; exit 3"], "propagateFailure": True},
            {"name": "good", "image": image, "command": ["sleep", "600"]},
        ]
    )
    created = engine.create(spec, name="two", workspace="a/b")
    experiment = engine.wait(str(created.experiment_id), timeout=30)
    assert {job.task: job.state for job in experiment.jobs} == {"bad": "failed", "good": "canceled"}


def test_without_propagation_the_others_go_on(engine: LocalEngine, launch: Launch):
    experiment_id = launch('test "$BEAKER_REPLICA_RANK" = 0 && exit 3; sleep 0.5; echo done', replicas=2)
    experiment = engine.wait(experiment_id, timeout=30)
    assert experiment.state == "failed"
    assert states(engine, experiment_id) == ["failed", "succeeded"]


def test_a_program_that_is_not_there(engine: LocalEngine, launch: Launch):
    """The job has failed without a start, and its log says why."""
    experiment_id = launch("", command=["no-such-program", "x"])
    (job,) = engine.wait(experiment_id, timeout=30).jobs
    assert job.status.failed is not None
    assert job.status.started is None
    assert job.status.message == "cannot start no-such-program: No such file or directory"
    assert [line.text for line in engine.logs(experiment_id)] == [job.status.message]


def test_arguments_follow_the_command(engine: LocalEngine, launch: Launch):
    experiment_id = launch("", command=["sh", "-c", 'echo "$0|$1"'], arguments=["a b", "{x}"])
    engine.wait(experiment_id, timeout=30)
    assert [line.text for line in engine.logs(experiment_id)] == ["a b|{x}"]


def test_a_task_that_takes_too_long(engine: LocalEngine, launch: Launch):
    (job,) = engine.wait(launch("sleep 600", timeout="300ms"), timeout=30).jobs
    assert (job.state, job.status.message, job.status.exit_code) == ("failed", "timeout after 0.3s", 143)


def test_a_gang_that_cannot_be_made_ready_is_canceled(engine: LocalEngine, launch: Launch):
    """The jobs' folder cannot be made: nothing starts, and the message says what was not ready."""
    experiment_id = launch("true", replicas=2, synchronizedStartTimeout="300ms")
    engine.wait(experiment_id, timeout=30)
    jobs = engine.home.experiment(experiment_id) / "jobs"
    shutil.rmtree(jobs)
    jobs.write_text("in the way")
    engine.restart(experiment_id)
    experiment = engine.wait(experiment_id, timeout=30)
    assert experiment.state == "canceled"
    assert {job.status.message for job in experiment.latest_jobs} == {
        "not ready within the synchronized start time-out: main rank 0, main rank 1"
    }
    assert all(job.status.started is None for job in experiment.latest_jobs)


def test_stop_ends_everything_and_is_idempotent(engine: LocalEngine, launch: Launch, tmp_path: Path):
    """A child that traps TERM gets its time; one that ignores it is killed after the grace time; both are gone."""
    saved = tmp_path / "saved"
    script = (
        f"setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & "
        f"trap 'sleep 0.2; echo yes > {saved}; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    )
    experiment_id = launch(script)
    until(lambda: [line.text for line in engine.logs(experiment_id)] == ["ready"])
    engine.stop("exp")
    assert saved.exists()
    assert not job_processes(engine, experiment_id)
    (job,) = engine.get(experiment_id).jobs
    assert (job.state, job.status.exit_code, job.status.message) == ("canceled", 9, "stopped")
    engine.stop(experiment_id)
    assert engine.get(experiment_id).state == "canceled"


def test_a_stop_that_takes_long_says_so(engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch):
    """The jobs are killed after the grace time all the same."""
    experiment_id = launch("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: list(engine.logs(experiment_id)))
    monkeypatch.setattr("primebeaker.local.engine._STOP_SECONDS", 0.3)
    with pytest.raises(ExternalError, match=r"is still stopping after 0\.3 s"):
        engine.stop(experiment_id)
    (job,) = engine.wait(experiment_id, timeout=30).jobs
    assert (job.state, job.status.exit_code) == ("canceled", 137)


def test_a_supervisor_that_does_not_start(
    engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """One line that names its log; the experiment is lost, and its name stays taken for somebody to look at."""
    (tmp_path / "broken" / "primebeaker").mkdir(parents=True)
    (tmp_path / "broken" / "primebeaker" / "__init__.py").write_text("raise SystemExit('cannot be imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    with pytest.raises(ExternalError, match=r"did not start \(see .*supervisor.log\)"):
        launch("true")
    (experiment,) = engine.list()
    assert (experiment.state, experiment.jobs[0].status.message) == ("failed", "supervisor lost")
    log = engine.home.experiment(experiment.id) / "supervisor.log"
    assert "cannot be imported" in log.read_text()


def test_a_signal_to_the_supervisor_is_an_orderly_end(engine: LocalEngine, launch: Launch, tmp_path: Path):
    """As at a shutdown of the machine: TERM reaches the replica, which gets the grace time; nothing is left."""
    saved = tmp_path / "saved"
    experiment_id = launch(
        f"trap 'sleep 0.2; echo yes > {saved}; exit 143' TERM; echo ready; {WAIT_30.partition('; ')[2]}"
    )
    until(lambda: [line.text for line in engine.logs(experiment_id)] == ["ready"])
    row = engine.store.experiment(experiment_id)
    assert row is not None
    os.kill(int(row.supervisor_pid or 0), signal.SIGTERM)
    (job,) = engine.wait(experiment_id, timeout=30).jobs
    assert saved.exists()
    assert (job.state, job.status.exit_code) == ("canceled", 143)
    assert job.status.message == "the supervisor was asked to end by a signal"
    until(lambda: not alive(int(row.supervisor_pid or 0)))


def test_preemption_without_resume_ends_the_experiment(engine: LocalEngine, launch: Launch):
    experiment_id = launch(f"echo ready; {WAIT_30}", replicas=2, propagatePreemption=True)
    until(lambda: len(list(engine.logs(experiment_id))) == 2)
    engine.preempt(experiment_id, rank=1)
    experiment = engine.wait(experiment_id, timeout=30)
    assert experiment.state == "preempted"
    assert states(engine, experiment_id) == ["preempted", "preempted"]
    assert {job.status.canceled_code for job in experiment.jobs} == {1}


def test_a_preempted_job_is_started_again_with_the_same_environment(
    engine: LocalEngine, launch: Launch, tmp_path: Path
):
    """A new job, the next attempt, the same rank, task and environment; the outcome is that of the new job."""
    own = "-e JOB_ID -e RESULT -e SUPERVISED -e ^TMPDIR= -e PWD -e ^_="
    script = f"env | grep -v {own} | sort > {tmp_path}/env.$(ls {tmp_path} | grep -c ^env); "
    script += f"echo ready; test -e {tmp_path}/again && exit 0; {WAIT_30}"
    experiment_id = launch(script, context={"autoResume": True}, envVars=[{"name": "X", "value": "1"}])
    until(lambda: [line.text for line in engine.logs(experiment_id)] == ["ready"])
    (tmp_path / "again").touch()
    engine.preempt(experiment_id)
    experiment = engine.wait(experiment_id, timeout=30)
    assert experiment.state == "succeeded"
    first, second = engine.store.jobs(experiment_id)
    assert (first.state, first.attempt, second.state, second.attempt) == ("preempted", 1, "succeeded", 2)
    assert first.id != second.id
    assert (tmp_path / "env.0").read_text() == (tmp_path / "env.1").read_text()


def test_a_gang_is_restarted_together(engine: LocalEngine, launch: Launch, tmp_path: Path):
    script = f"echo ready; test -e {tmp_path}/again && exit 0; {WAIT_30}"
    experiment_id = launch(script, replicas=2, propagatePreemption=True, context={"autoResume": True})
    until(lambda: len(list(engine.logs(experiment_id))) == 2)
    (tmp_path / "again").touch()
    engine.preempt(experiment_id, rank=0)
    assert engine.wait(experiment_id, timeout=30).state == "succeeded"
    jobs = engine.store.jobs(experiment_id)
    assert [(job.replica_rank, job.attempt) for job in jobs] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    ended = max(str(job.exited_at) for job in jobs if job.attempt == 1)
    assert all(ended <= str(job.started_at) for job in jobs if job.attempt == 2)


def test_one_replica_is_restarted_while_the_others_run_on(engine: LocalEngine, launch: Launch, tmp_path: Path):
    script = f"trap 'touch {tmp_path}/told' TERM; echo ready; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    experiment_id = launch(script, replicas=2, propagateFailure=True, propagatePreemption=True)
    until(lambda: len(list(engine.logs(experiment_id))) == 2)
    engine.restart_alone(experiment_id, 1)
    until(lambda: len(list(engine.logs(experiment_id))) == 3)
    (tmp_path / "go").touch()
    assert engine.wait(experiment_id, timeout=30).state == "succeeded"
    jobs = engine.store.jobs(experiment_id)
    assert [(job.replica_rank, job.attempt, job.state) for job in jobs] == [
        (0, 1, "succeeded"),
        (1, 1, "preempted"),
        (1, 2, "succeeded"),
    ]
    # As when its machine is lost, the replica had no chance to tell anybody.
    assert jobs[1].exit_code == 137
    assert not (tmp_path / "told").exists()


def test_an_ended_experiment_is_restarted(engine: LocalEngine, launch: Launch, tmp_path: Path):
    experiment_id = launch(f"test -e {tmp_path}/ok", replicas=2)
    assert engine.wait(experiment_id, timeout=30).state == "failed"
    (tmp_path / "ok").touch()
    engine.restart(experiment_id)
    assert engine.wait(experiment_id, timeout=30).state == "succeeded"
    assert [job.attempt for job in engine.store.jobs(experiment_id)] == [1, 2, 1, 2]


def test_a_running_experiment_is_not_restarted(engine: LocalEngine, launch: Launch):
    experiment_id = launch("sleep 600")
    with pytest.raises(UserError, match="has not ended"):
        engine.restart(experiment_id)
    engine.stop(experiment_id)
    with pytest.raises(UserError, match="has ended"):
        engine.preempt(experiment_id)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_an_experiment_survives_its_caller(
    engine: LocalEngine, write_spec: Callable[..., Path], tmp_path: Path, number: signal.Signals
):
    """The shell that created it is killed with its whole group: the experiment runs on and ends right."""
    spec = write_spec(f"while ! test -e {tmp_path}/go; do sleep 0.02; done; echo done")
    program = f"""
    import os, signal, time
    from pathlib import Path
    from primebeaker.local import LocalEngine
    created = LocalEngine().create(Path({str(spec)!r}), name="orphan", workspace="a/b")
    os.killpg(0, {int(number)})
    time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], start_new_session=True)
    assert process.wait(timeout=30) == -number
    (tmp_path / "go").touch()
    experiment = engine.wait("orphan", timeout=30)
    assert experiment.state == "succeeded"


def test_a_lost_supervisor_is_noticed_once_and_leaves_nothing(engine: LocalEngine, launch: Launch):
    """kill -9 of the supervisor: replicas die with it, escaped descendants are gone after the next call."""
    experiment_id = launch("setsid sh -c 'trap \"\" TERM; echo ready; exec sleep 600' & wait", replicas=2)
    until(lambda: len(list(engine.logs(experiment_id))) == 2)
    row = engine.store.experiment(experiment_id)
    assert row is not None
    replicas = [int(job.pid or 0) for job in engine.store.jobs(experiment_id)]
    os.kill(int(row.supervisor_pid or 0), signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in replicas), 5)
    experiment = engine.get(experiment_id)
    assert not job_processes(engine, experiment_id)
    assert experiment.state == "failed"
    assert {job.status.message for job in experiment.jobs} == {"supervisor lost"}
    engine.get(experiment_id)
    lost = [event for event in engine.store.events(experiment_id) if event.detail == "supervisor lost"]
    assert len(lost) == 1


def test_a_reused_pid_is_no_supervisor(engine: LocalEngine, launch: Launch):
    """As after a reboot: another process has the supervisor's pid. The experiment is lost, that process is left alone."""
    experiment_id = launch("exec sleep 600")
    row = engine.store.experiment(experiment_id)
    assert row is not None
    os.kill(int(row.supervisor_pid or 0), signal.SIGKILL)
    until(lambda: not alive(int(row.supervisor_pid or 0)))
    with subprocess.Popen(["sleep", "600"]) as other:
        engine.store.connection.execute("UPDATE experiments SET supervisor_pid = ?", (other.pid,))
        engine.stop(experiment_id)
        assert engine.get(experiment_id).jobs[0].status.message == "supervisor lost"
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_moments_leave_nothing(engine: LocalEngine, launch: Launch, seed: int):
    """Supervisor, guardian, replicas or their workers are killed at a random moment: after the next call nothing runs."""
    chance = random.Random(seed)
    script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & while :; do sleep 0.05; done"
    experiment_id = launch(script, replicas=2, propagateFailure=True)
    time.sleep(chance.uniform(0, 0.3))
    row = engine.store.experiment(experiment_id)
    assert row is not None
    supervisor = int(row.supervisor_pid or 0)
    targets = [supervisor] if seed % 2 else []
    below = [process.pid for process in descendants([supervisor], snapshot())]
    targets += chance.sample(below, min(len(below), 2))
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    engine.stop(experiment_id)
    assert engine.get(experiment_id).ended
    assert not job_processes(engine, experiment_id)
    assert engine.store.check() == "ok"
    served = experiment_id.encode()
    until(lambda: not any(served in command_line(process.pid) for process in marked("detached", snapshot())))


def test_many_experiments_at_once(engine: LocalEngine, write_spec: Callable[..., Path]):
    """20 experiments of 4 replicas created at the same moment all end right, and the database is consistent."""
    spec = write_spec('test "$BEAKER_REPLICA_RANK" != 3 || exit ${CODE:-0}', replicas=4)
    specs = [spec, spec.with_name("bad.json")]
    specs[1].write_text(spec.read_text().replace("${CODE:-0}", "5"))
    with ThreadPoolExecutor(20) as pool:
        created = list(
            pool.map(lambda n: engine.create(specs[n % 2], name=f"many-{n}", workspace="a/b").experiment_id, range(20))
        )
    ended = [engine.wait(str(experiment_id), timeout=120).state for experiment_id in created]
    assert ended == ["succeeded", "failed"] * 10
    assert engine.store.check() == "ok"
    for experiment_id in created:
        jobs = engine.store.jobs(str(experiment_id))
        assert len(jobs) == 4
        assert all(job.ended for job in jobs)


def test_a_name_is_used_once(engine: LocalEngine, launch: Launch):
    launch("true")
    with pytest.raises(UserError, match="experiment name 'exp' is already in use by"):
        launch("true")
