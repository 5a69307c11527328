"""The engine's home: where it is, what is refused, how the database is kept."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.local import LocalEngine, home
from primebeaker.local.database import SCHEMA_VERSION, connect
from primebeaker.local.home import home_path
from primebeaker.local.maintenance import collect_garbage, examine

from ..waiting import until
from .conftest import job_processes

Launch = Callable[..., str]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PRIMEBEAKER_LOCAL_HOME": "/x/y"}, "/x/y"),
        ({"XDG_STATE_HOME": "/state"}, "/state/primebeaker/local"),
        ({"XDG_STATE_HOME": "relative"}, "/home/me/.local/state/primebeaker/local"),
        ({}, "/home/me/.local/state/primebeaker/local"),
    ],
)
def test_where_the_home_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str):
    for name in ("PRIMEBEAKER_LOCAL_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert home_path() == Path(expected)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kind = home.file_system_type(tmp_path)
    monkeypatch.setattr(home, "_NETWORK_TYPES", frozenset({kind}))
    with pytest.raises(UserError, match=rf"lies on a network file system \({kind}\)"):
        LocalEngine(tmp_path / "home")
    assert LocalEngine(tmp_path / "home", allow_network_home=True).list() == []


def test_a_home_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used as the local engine's home"):
        LocalEngine(tmp_path / "file" / "home")


def test_a_home_that_another_user_owns_is_refused_in_one_line():
    """As a user who may not write there."""
    with tempfile.TemporaryDirectory() as closed:
        Path(closed).chmod(0o555)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            text = "it was accepted"
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                LocalEngine(Path(closed) / "home")
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write_end, text.encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            said = answer.read()
        os.waitpid(child, 0)
    assert said.startswith(
        f"UserError: {closed}/home: cannot be used as the local engine's home: Permission denied; set"
    )


def test_a_database_of_a_newer_program_is_refused(tmp_path: Path):
    engine = LocalEngine(tmp_path / "home")
    engine.store.connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(UserError, match=r"written by a newer primebeaker \(schema 99, this one knows 1\)"):
        LocalEngine(tmp_path / "home")


def test_an_older_database_is_migrated_after_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In one transaction: a step that fails changes nothing."""
    path = tmp_path / "x.sqlite3"
    connect(path).close()
    monkeypatch.setattr("primebeaker.local.database.SCHEMA_VERSION", 3)
    steps = {1: "CREATE TABLE one (x); CREATE TABLE two (x)", 2: "CREATE TABLE one (again)"}
    monkeypatch.setattr("primebeaker.local.database._MIGRATIONS", steps)
    with pytest.raises(UserError, match="table one already exists"):
        connect(path)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT value FROM meta").fetchone() == ("1",)
    assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'one'").fetchone() == (0,)
    steps[2] = "CREATE TABLE three (x)"
    migrated = connect(path)
    assert migrated.execute("SELECT value FROM meta").fetchone()["value"] == "3"
    assert (
        migrated.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('one', 'two', 'three')").fetchone()[0] == 3
    )
    backup = sqlite3.connect(tmp_path / "x.sqlite3.schema1.bak")
    assert backup.execute("SELECT value FROM meta").fetchone() == (str(SCHEMA_VERSION),)


def test_a_file_that_is_no_database(tmp_path: Path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "engine.sqlite3").write_text("not a database at all, but long enough to be looked at")
    with pytest.raises(UserError, match="cannot be read as the local engine's database"):
        LocalEngine(folder)


def test_experiments_are_found_by_id_prefix_and_name(engine: LocalEngine, launch: Launch):
    experiment_id = launch("true", name="my-run")
    for text in (experiment_id, experiment_id.lower(), experiment_id[:-2], "my-run", f"{engine.account}/my-run"):
        assert engine.find(text).id == experiment_id
    for text in (experiment_id[:5], "nobody/my-run"):
        with pytest.raises(UserError, match="no such experiment"):
            engine.find(text)
    with pytest.raises(UserError, match="my-rnu: no such experiment; did you mean 'my-run'"):
        engine.find("my-rnu")
    launch("true", name="other")
    with pytest.raises(UserError, match="2 experiments have ids that start so"):
        engine.find(experiment_id[:6])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"command": None}, r"tasks\[0\].command: is required here"),
        (
            {"datasets": [{"mountPath": "/nowhere/at/all", "source": {"weka": "b"}}]},
            r"tasks\[0\].datasets\[0\].mountPath: /nowhere/at/all does not exist on this machine; .*--mount-path",
        ),
        (
            {"datasets": [{"mountPath": "/tmp", "source": {"beaker": "01X"}}]},
            r"tasks\[0\].datasets\[0\].source: beaker: the local engine reads Weka buckets",
        ),
    ],
)
def test_what_cannot_run_here(engine: LocalEngine, launch: Launch, task: dict, message: str):
    with pytest.raises(UserError, match=message):
        launch("true", **task)
    assert engine.list() == []


@pytest.mark.parametrize(
    ("name", "workspace", "message"),
    [("a b", "a/b", "experiment name 'a b'"), ("x", "lab", "experiment workspace 'lab': expected owner/name")],
)
def test_names_are_checked(
    engine: LocalEngine, write_spec: Callable[..., Path], name: str, workspace: str, message: str
):
    with pytest.raises(UserError, match=message):
        engine.create(write_spec(), name=name, workspace=workspace)


def test_wrong_settings_are_told_before_anything_starts(
    engine: LocalEngine, launch: Launch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PRIMEBEAKER_LOCAL_GRACE_SECONDS", "soon")
    with pytest.raises(UserError, match="PRIMEBEAKER_LOCAL_GRACE_SECONDS = 'soon': expected a number"):
        launch("true")
    assert engine.list() == []


def test_only_ended_experiments_are_removed(engine: LocalEngine, launch: Launch):
    ended, running = launch("true", name="ended"), launch("exec sleep 600", name="running")
    engine.wait(ended, timeout=30)
    assert collect_garbage(engine, timedelta(days=7)) == []
    assert [one.id for one in collect_garbage(engine, timedelta(0), dry_run=True)] == [ended]
    assert engine.home.experiment(ended).is_dir()
    assert [one.id for one in collect_garbage(engine, timedelta(0))] == [ended]
    assert not engine.home.experiment(ended).exists()
    assert not list(engine.home.secrets.rglob(f"{ended}*"))
    assert [one.id for one in engine.list()] == [running]
    until(lambda: job_processes(engine, running))


def test_an_examination_finds_and_ends_what_was_left(engine: LocalEngine, launch: Launch):
    """A process that carries the job id of an ended experiment is ended."""
    experiment_id = launch("true")
    engine.wait(experiment_id, timeout=30)
    (job,) = engine.store.jobs(experiment_id)
    left = subprocess.Popen(["sleep", "600"], env={"BEAKER_JOB_ID": job.id, "PATH": "/bin:/usr/bin"})
    findings = {finding.what: finding for finding in examine(engine)}
    assert left.wait(timeout=10) == -9
    assert not findings["left-over processes"].ok
    assert findings["database"].detail.endswith(": ok")
    assert all(finding.ok for finding in examine(engine))


def test_an_examination_tells_of_a_supervisor_that_hangs(engine: LocalEngine, launch: Launch):
    experiment_id = launch("exec sleep 600")
    row = engine.store.experiment(experiment_id)
    assert row is not None
    os.kill(int(row.supervisor_pid or 0), signal.SIGSTOP)
    try:
        engine.store.connection.execute("UPDATE experiments SET supervisor_beat = '2000-01-01T00:00:00Z'")
        findings = {finding.what: finding for finding in examine(engine)}
        assert findings["silent supervisors"].detail == experiment_id
        assert not findings["silent supervisors"].ok
    finally:
        os.kill(int(row.supervisor_pid or 0), signal.SIGCONT)


def test_the_spec_is_kept_as_submitted(engine: LocalEngine, launch: Launch):
    experiment_id = launch("true", envVars=[{"name": "A", "value": "{x}"}])
    kept = json.loads((engine.home.experiment(experiment_id) / "spec.json").read_text())
    assert kept["tasks"][0]["envVars"] == [{"name": "A", "value": "{x}"}]
    assert (engine.home.experiment(experiment_id) / "spec.json").stat().st_mode & 0o777 == 0o600
