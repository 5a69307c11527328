"""Resume a run: what is chosen, moved, written, recorded, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from primebeaker.resume import (
    discover_common_checkpoints,
    plan_resume,
    render_resume_config,
    select_common_checkpoint,
)
from primebeaker.resume import resume as resume_from_python
from primebeaker.resume.plan import resumed_name


def variables(spec):
    return {entry["name"]: entry.get("value", f"secret:{entry.get('secret')}") for entry in spec["tasks"][0]["envVars"]}


def test_a_resume_from_start_to_end(source, resume, beaker) -> None:
    code, document, err = resume()
    assert code == 0, err
    assert list(document) == ["resume", "child_experiment_id", "child_experiment_url", "stdout", "warnings"]
    assert document["child_experiment_id"] == "01EXPERIMENT"
    found = document["resume"]
    assert list(found) == [
        "source_experiment_id", "source_experiment_name", "checkpoint", "skipped", "source_config_path",
        "generated_config_path", "manifest_path", "experiment_name", "attempt_id", "moves_planned", "launch",
    ]  # fmt: skip
    assert found["experiment_name"] == "parent-resume-step20-a1"
    assert found["checkpoint"]["step"] == 20
    assert len(found["checkpoint"]["trainer_shards"]) == 4
    generated = Path(found["generated_config_path"])
    assert generated == source.output / "primebeaker_resume/configs/parent-resume-step20-a1-a1.toml"
    assert tomllib.loads(generated.read_text())["ckpt"] == {"interval": 5, "resume_step": 20}
    assert "clean_output_dir = false\n" in generated.read_text()
    assert source.toml.read_text().count("clean_output_dir = true") == 1

    spec = json.loads(Path(found["launch"]["spec_path"]).read_text())
    assert spec["description"] == "PrimeBeaker resume of 01SOURCE from step 20"
    values = variables(spec)
    expected = {
        "CONFIG_PATH": str(generated), "OUTPUT_DIR": str(source.output), "LAUNCH_ID": "a1", "WANDB_RUN_ID": "wandb1",
        "WANDB_SHARED_RUN_ID": "wandb1", "WANDB_RESUME": "allow", "WANDB_ENTITY": "team", "GATEWAY_PORT": "1300",
        "REGISTRY": "redis://u:pass-word@h:1", "REQUIRED_LITEREGISTRY_SERVICES": '{"terminal":2}', "MINE": "a = b\nc",
        "PRIMEBEAKER_GRACE_SECONDS": "5", "PRIMEBEAKER_VERSION": "0.4.0", "PRIMEBEAKER_RESUME_PARENT_EXPERIMENT_ID": "01SOURCE",
        "PRIMEBEAKER_RESUME_STEP": "20", "PRIMEBEAKER_RESUME_ATTEMPT_ID": "a1", "EXPERIMENT_NAME": "tiny rl",
        "WANDB_API_KEY": "secret:my-wandb", "OTHER": "secret:o",
    }  # fmt: skip
    assert {name: values.get(name) for name in expected} == expected
    assert "BEAKER_TOKEN" not in values and "HF_TOKEN" not in values
    task = spec["tasks"][0]
    assert task["context"] == {"priority": "urgent", "minRuntime": "2h", "autoResume": False}
    assert task["constraints"] == {"cluster": ["ai2/x", "ai2/y"]}
    assert task["resources"] == {"gpuCount": 8, "sharedMemory": "64GiB"}
    assert task["datasets"][0]["source"] == {"weka": "bucket"}

    manifest = source.manifest()
    assert manifest["status"] == "submitted"
    assert manifest["child_experiment_id"] == "01EXPERIMENT"
    assert "pass-word" not in json.dumps(manifest) and "pass-word" not in json.dumps(document)
    assert not (source.output / "primebeaker_resume/lock").exists()
    # In-memory broadcasts go away as a whole.
    assert not (source.output / "run_default/broadcasts").exists()
    assert (source.output / "primebeaker_resume/broadcast_archives/a1/step_22/STABLE").exists()
    assert manifest["broadcast_archive"] == str(source.output / "primebeaker_resume/broadcast_archives/a1")


def test_newer_incomplete_steps_are_skipped_and_moved_aside(source, resume) -> None:

    source.write_step(25, ranks=3)
    source.write_step(30, progress=b"")
    source.age()
    code, document, err = resume()
    assert code == 0, err
    found = document["resume"]
    assert found["checkpoint"]["step"] == 20
    assert [entry["step"] for entry in found["skipped"]] == [30, 25]
    assert "step 25 is skipped: trainer shard __3_0.distcp" in err
    assert "step 30 is skipped: orchestrator progress.pt" in err
    superseded = source.output / "primebeaker_resume/superseded/a1"
    assert sorted(path.name for path in (superseded / "checkpoints").iterdir()) == ["step_25", "step_30"]
    assert sorted(path.name for path in (superseded / "run_default_checkpoints").iterdir()) == ["step_25", "step_30"]
    assert sorted(path.name for path in (source.output / "checkpoints").iterdir()) == ["step_10", "step_20"]


def test_an_incomplete_step_cannot_be_asked_for(source, resume) -> None:

    source.write_step(25, progress=b"")
    source.age()
    code, _, err = resume("--resume-step=25")
    assert code == 2
    assert "step 25 is incomplete: orchestrator progress.pt; complete steps: 20, 10" in err
    assert resume("--resume-step=10")[1]["resume"]["checkpoint"]["step"] == 10


@pytest.mark.parametrize("step", ["0", "-1"])
def test_steps_start_at_one(source, resume, step) -> None:
    code, _, err = resume(f"--resume-step={step}")
    assert code == 2
    assert "steps start at 1; leave it out for the newest complete step" in err


def test_a_filesystem_policy_stays_where_the_orchestrator_reads_it(source, resume) -> None:
    source.toml.write_text(source.toml.read_text() + '[weight_broadcast]\ntype = "filesystem"\n')
    broadcasts = source.output / "run_default/broadcasts"
    for step in (10, 20):
        (broadcasts / f"step_{step}/model.safetensors").write_bytes(b"w")
        (broadcasts / f"step_{step}/NCCL_READY").touch()
    for path in source.output.rglob("*"):
        os.utime(path, (0, 0))
    code, _, err = resume()
    assert code == 0, err
    assert sorted(path.name for path in broadcasts.iterdir()) == ["step_20"]
    assert sorted(path.name for path in (broadcasts / "step_20").iterdir()) == ["STABLE", "model.safetensors"]
    archive = source.output / "primebeaker_resume/broadcast_archives/a1"
    assert sorted(path.name for path in archive.iterdir()) == ["step_10", "step_20", "step_22"]
    assert [path.name for path in (archive / "step_20").iterdir()] == ["NCCL_READY"]


def test_dry_run_changes_nothing(source, resume, beaker) -> None:
    source.status.append({"started": "2026-01-01T00:00:01Z"})
    source.tell()
    before = sorted(source.output.rglob("*"))
    code, document, err = resume("--dry-run")
    assert code == 0, err
    assert list(document) == ["resume", "generated_config", "source_active", "warnings"]
    assert document["source_active"] == ["01J1"]
    assert "resume_step = 20" in document["generated_config"]
    assert sorted(source.output.rglob("*")) == before
    assert [call[:2] for call in beaker.calls] == [["experiment", "get"], ["job", "get"]]


@pytest.mark.parametrize("order", [0, 1])
def test_active_jobs_are_refused(source, resume, beaker, order) -> None:
    jobs = [
        {"finalized": "2026-01-01T00:00:02Z", "canceled": "2026-01-01T00:00:02Z", "canceledCode": 1},
        {"started": "2026-01-01T00:00:01Z"},
    ]
    source.status = jobs if order == 0 else jobs[::-1]
    source.tell()
    before = source.files()
    code, _, err = resume()
    assert code == 2
    assert f"the run is still active: 01J{1 - order} of 01SOURCE is running; stop it first" in err
    assert beaker.called("experiment", "create") == []
    assert source.files() == before


def test_jobs_cancelled_before_they_started_have_ended(source, resume) -> None:
    source.status = [
        {"canceled": "2026-01-01T00:00:02Z"},
        {"started": "0001-01-01T00:00:00Z", "finalized": "2026-01-01T00:00:02Z"},
    ]
    source.tell()
    assert resume()[0] == 0


def test_an_earlier_child_that_runs_is_refused(source, resume, beaker) -> None:
    assert resume()[0] == 0
    running = {"id": "01JX", "execution": {"spec": {}}, "status": {"started": "2026-01-01T00:00:01Z"}}
    beaker.answer("experiment get 01EXPERIMENT", [{"id": "01EXPERIMENT", "jobs": [running]}])
    code, _, err = resume(attempt="a2")
    assert code == 2
    assert "01JX of 01EXPERIMENT is running" in err
    beaker.answer("experiment get 01EXPERIMENT", stderr="lookup beaker.org: no such host", code=1)
    assert resume(attempt="a2")[0] == 3, "that Beaker cannot be reached does not tell that the child is gone"
    beaker.answer("experiment get 01EXPERIMENT", stderr="experiment not found", code=1)
    assert resume(attempt="a2")[0] == 0


def test_files_that_still_change_are_refused(source, resume) -> None:
    path = source.output / "checkpoints/step_20/trainer/.metadata"
    os.utime(path)
    code, _, err = resume()
    assert code == 2
    assert f"{path} is still being written" in err
    assert resume("--force")[0] == 0


def test_replicas_that_still_beat_are_refused(source, resume) -> None:
    members = source.mount / "rendezvous/members"
    members.mkdir(parents=True)
    member = members / "0.json"
    member.write_text('{"beat": 0}')
    source.values["RENDEZVOUS_DIR"] = str(members.parent)
    source.tell()
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(0.2):
            number += 1
            fresh = members / "new"
            fresh.write_text(json.dumps({"beat": number}))
            fresh.replace(member)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        code, _, err = resume()
    finally:
        stop.set()
        thread.join()
    assert code == 2
    assert "replicas of the source are still alive: 0.json" in err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run: run.spec.update(command=["bash", "-c", "x"], name="rl"), "is a single-node RL task, not a multi-node RL launch; Beaker restarts it by itself, and ckpt.resume_step = -1"),
        (lambda run: run.spec.update(command=["python3", "-m", "primebeaker.multinode", "role", "sft"]), "is a multi-node SFT task"),
        (lambda run: run.values.pop("OUTPUT_DIR"), "was not launched from a training TOML"),
        (lambda run: run.status.clear(), "has no job yet"),
        (lambda run: run.values.pop("SCRATCH"), "SCRATCH is not in its spec"),
        (lambda run: run.spec.update(datasets=[]), "no Weka mount of its spec holds OUTPUT_DIR"),
        (lambda run: run.spec.update(image={}), "its image is not known; pass --image"),
        (lambda run: run.spec.update(constraints={}), "its clusters are not known; pass --cluster"),
        (lambda run: run.values.pop("WANDB_SHARED_RUN_ID"), "its W&B run is not known; pass --wandb-run-id"),
        (lambda run: run.values.pop("REGISTRY"), "--registry is required: the source 01SOURCE has none"),
        (lambda run: run.values.update(PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID="01STACK"), "--registry is required: the service stack 01STACK of the source was stopped with it"),
        (lambda run: run.values.update(GATEWAY_PORT="x"), "GATEWAY_PORT = 'x': expected a positive whole number"),
        (lambda run: run.values.update(REQUIRED_LITEREGISTRY_SERVICES="[]"), "REQUIRED_LITEREGISTRY_SERVICES = '[]': expected a JSON object"),
        (lambda run: run.spec["context"].update(minRuntime="soon"), "minRuntime = 'soon': expected a duration"),
        (lambda run: run.values.update(OUTPUT_DIR=f"{run.mount}/gone"), "is not visible here; run this on a machine that mounts the bucket"),
        (lambda run: run.toml.write_text(run.toml.read_text().replace("runs/rl", "runs/other")), "the run would write to"),
        (lambda run: run.toml.write_text(run.toml.read_text().replace("max_steps = 40", "max_steps = 20")), "max_steps = 20: already finished: step 20 is the last one; raise max_steps"),
        (lambda run: run.toml.write_text(run.toml.read_text().replace("dp_replicate = 4", "dp_replicate = 8")), "has shards of 4 trainer ranks, expected 8 (trainer.model.cp x trainer.model.dp_replicate)"),
        (lambda run: run.toml.unlink(), "the source's training TOML cannot be read; pass one with --config"),
    ],
)  # fmt: skip
def test_refused(source, resume, beaker, change, expected) -> None:
    change(source)
    source.tell()
    code, _, err = resume()
    assert code == 2, err
    assert expected in err
    assert len([line for line in err.splitlines() if ": error: " in line]) == 1
    assert beaker.called("experiment", "create") == []
    assert not (source.output / "primebeaker_resume").exists()


def test_beaker_does_not_know_the_source(source, resume, beaker) -> None:
    beaker.answer("experiment get 01SOURCE", stderr="experiment not found\nmore", code=1)
    code, _, err = resume()
    assert code == 3
    assert "beaker refused experiment 01SOURCE: experiment not found" in err


def test_no_complete_step(source, resume) -> None:
    for path in source.output.glob("checkpoints/*/trainer/.metadata"):
        path.unlink()
    code, _, err = resume()
    assert code == 2
    assert f"no complete checkpoint matches {source.output}/checkpoints/step_*/trainer/.metadata" in err
    assert "step 20 lacks trainer .metadata" in err


def test_overrides(source, resume) -> None:
    code, document, err = resume(
        "--env=MINE=", "--env=NEW=1", "--secret=OTHER=", "--cluster=ai2/z", "--priority=low", "--registry=redis://new:1",
        "--required-service=python=3", "--experiment-name=other", "--min-runtime-hours=0", "--hf-secret=o", "--budget=b",
    )  # fmt: skip
    assert code == 0, err
    spec = json.loads(Path(document["resume"]["launch"]["spec_path"]).read_text())
    values = variables(spec)
    assert "MINE" not in values and "OTHER" not in values
    assert (values["NEW"], values["REGISTRY"], values["HF_TOKEN"]) == ("1", "redis://new:1", "secret:o")
    assert values["REQUIRED_LITEREGISTRY_SERVICES"] == '{"python":3}'
    assert spec["budget"] == "b"
    assert spec["tasks"][0]["constraints"] == {"cluster": ["ai2/z"]}
    assert spec["tasks"][0]["context"]["minRuntime"] == "0h"
    assert document["resume"]["experiment_name"] == "other-resume-step20-a1"
    assert "--registry" in source.manifest()["overrides"]
    assert "redis" not in json.dumps(source.manifest()["overrides"])


def test_a_registry_that_is_a_secret_stays_one(source, resume) -> None:
    del source.values["REGISTRY"]
    source.secrets["REGISTRY"] = "o"
    source.tell()
    code, document, err = resume()
    assert code == 0, err
    assert variables(document["resume"]["launch"]["spec"])["REGISTRY"] == "secret:o"


def test_the_snapshot_counts_when_the_toml_was_edited(source, resume) -> None:
    import hashlib

    snapshot = source.mount / "snapshot.toml"
    snapshot.write_bytes(source.toml.read_bytes())
    source.values["PRIMEBEAKER_CONFIG_SNAPSHOT"] = str(snapshot)
    source.values["PRIMEBEAKER_CONFIG_SHA256"] = hashlib.sha256(snapshot.read_bytes()).hexdigest()
    source.tell()
    source.toml.write_text(source.toml.read_text().replace("batch_size = 4", "batch_size = 8"))
    code, document, err = resume("--dry-run")
    assert code == 0
    assert "has changed since the launch; using the snapshot" in err
    assert "batch_size = 4" in document["generated_config"]
    assert "batch_size = 8" in resume("--dry-run", f"--config={source.toml}")[1]["generated_config"]


def test_resume_of_a_resumed_run(source, resume, beaker) -> None:
    first = resume()[1]["resume"]
    spec = json.loads(Path(first["launch"]["spec_path"]).read_text())
    job = {
        "id": "01JC", "execution": {"spec": spec["tasks"][0]},
        "status": {"created": "2026-01-02T00:00:00Z", "finalized": "2026-01-02T00:00:01Z"},
    }  # fmt: skip
    child = {
        "id": "01EXPERIMENT",
        "name": f"me/{first['experiment_name']}",
        "workspaceRef": {"fullName": "ai2/oe-agents"},
        "jobs": [job],
    }
    beaker.answer("experiment get 01EXPERIMENT", [child])
    beaker.answer("job get 01JC", [job])

    source.age()
    code = resume("--from-experiment=01EXPERIMENT", attempt="b2")[0]
    assert code == 2, "the flag is given twice with different values"
    assert plan_resume("01EXPERIMENT", attempt_id="b2").source.name == "parent-resume-step20-a1"
    document = resume_from_python("01EXPERIMENT", attempt_id="b2")
    assert document["resume"]["experiment_name"] == "parent-resume-step20-b2"
    values = variables(json.loads(Path(document["resume"]["launch"]["spec_path"]).read_text()))
    assert values["WANDB_RUN_ID"] == "wandb1"
    assert values["PRIMEBEAKER_RESUME_PARENT_EXPERIMENT_ID"] == "01EXPERIMENT"


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [({"stderr": "quota exceeded", "code": 1}, "submission_failed", 3), ({"sleep": 600}, "unknown", 3)],
)
def test_failed_and_unclear_submissions(source, resume, beaker, monkeypatch, answer, status, code) -> None:
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_TIMEOUT_SECONDS", "0.5")
    before = source.files()
    beaker.answer("experiment create", **answer)
    assert resume()[0] == code
    manifest = source.manifest()
    assert manifest["status"] == status
    assert manifest["error"]
    assert (source.files() == before) is (status == "submission_failed")
    assert not (source.output / "primebeaker_resume/lock").exists()
    beaker.answer("experiment create", "Experiment 01NEW submitted. See progress at https://b.org/ex/01NEW")
    beaker.answer("experiment get me/parent-resume-step20-a1", stderr="not found", code=1)
    code, document, err = resume()
    if status == "unknown":
        assert code == 2
        assert "attempt a1 may have created parent-resume-step20-a1" in err
    else:
        assert code == 0, err
        assert document["child_experiment_id"] == "01NEW"
        assert source.manifest()["status"] == "submitted"


def test_a_submitted_attempt_is_not_repeated(source, resume, beaker) -> None:
    assert resume()[0] == 0
    code, _, err = resume()
    assert code == 2
    assert "attempt a1 was submitted already, as 01EXPERIMENT" in err
    assert len(beaker.called("experiment", "create")) == 1


def test_the_lock(source, resume) -> None:
    lock = source.output / "primebeaker_resume/lock"
    lock.parent.mkdir()
    import socket
    from datetime import UTC, datetime

    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "attempt_id": "other",
        "created_at": datetime.now(UTC).isoformat(),
    }
    lock.write_text(json.dumps(holder))
    code, _, err = resume()
    assert code == 2
    assert f"attempt other of process {os.getpid()}" in err
    assert lock.exists()
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock.write_text(json.dumps({**holder, "pid": gone.pid}))
    code, _, err = resume()
    assert code == 0
    assert "took over the lock of an attempt that is gone" in err
    assert not lock.exists()


def test_two_resumes_at_once_make_one_child(source, beaker) -> None:
    beaker.answer("experiment create", "Experiment 01NEW submitted. See progress at https://b.org/ex/01NEW", sleep=0.5)
    running = {"id": "01JX", "execution": {"spec": {}}, "status": {"started": "2026-01-01T00:00:01Z"}}
    beaker.answer("experiment get 01NEW", [{"id": "01NEW", "jobs": [running]}])
    command = [sys.executable, "-m", "primebeaker", "rl", "resume", "--from-experiment=01SOURCE"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], errors
    assert len(beaker.called("experiment", "create")) == 1


@pytest.mark.parametrize("step", ["account whoami", "job get", "experiment create"])
def test_killed_and_run_again_with_the_same_attempt(source, resume, beaker, step) -> None:
    """kill -9 while Beaker hangs at a step; the second run makes exactly one child and loses nothing."""
    import time

    shards = {name: data for name, data in source.files().items() if "step_20/" in name and "broadcasts" not in name}
    answers = dict(beaker._answers)
    beaker.answer(step, sleep=600)
    command = [sys.executable, "-m", "primebeaker", "rl", "resume", "--from-experiment=01SOURCE", "--attempt-id=a1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not beaker.called(*step.split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    beaker._answers = answers
    beaker._save()
    beaker.answer("experiment get me/parent-resume-step20-a1", stderr="not found", code=1)
    code, document, err = resume()
    assert code == 0, err
    assert document["child_experiment_id"] == "01EXPERIMENT"
    after = source.files()
    assert all(after[name] == data for name, data in shards.items())
    assert (source.output / "primebeaker_resume/broadcast_archives/a1/step_20/STABLE").exists()
    assert not (source.output / "primebeaker_resume/lock").exists()


KILLED = """
import os, signal, sys
import primebeaker.cli.rl_resume
from primebeaker.resume import run
name, calls = {name!r}, {calls}
target = run._Attempt if name.startswith("_") else run
real = getattr(target, name)
def wrapped(*words, **more):
    global calls
    done = real(*words, **more)
    calls -= 1
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
setattr(target, name, wrapped)
from primebeaker.cli import main
sys.exit(main(["rl", "resume", "--from-experiment=01SOURCE", "--attempt-id=a1"]))
"""


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("make_plan", 1),
        ("refuse_active", 2),
        ("preflight", 1),
        ("select_again", 1),
        ("write_manifest", 1),
        ("move_aside", 1),
        ("_write_files", 1),
        ("create", 1),
        ("write_manifest", 2),
    ],
)
def test_killed_after_each_step(source, resume, beaker, name, calls) -> None:
    """kill -9 just after a step, then the same attempt again: one child at the end, nothing lost, no lock left."""
    beaker.answer("experiment get me/parent-resume-step20-a1", stderr="not found", code=1)
    shards = {path: data for path, data in source.files().items() if "broadcasts" not in path}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED.format(name=name, calls=calls)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if name == "create":
        # Without its receipt the engine is asked by name.
        next(source.mount.rglob("*.receipt.json")).unlink()
        beaker.answer("experiment get me/parent-resume-step20-a1", [{"id": "01EXPERIMENT", "jobs": []}])
    code, document, err = resume()
    if (name, calls) == ("write_manifest", 2):
        assert code == 2
        assert "attempt a1 was submitted already, as 01EXPERIMENT" in err
    else:
        assert code == 0, err
        assert document["child_experiment_id"] == "01EXPERIMENT"
    assert len(beaker.called("experiment", "create")) == 1
    assert source.manifest()["status"] == "submitted"
    after = source.files()
    assert {path: after.get(path) for path in shards} == shards
    archive = source.output / "primebeaker_resume/broadcast_archives/a1"
    assert sorted(path.name for path in archive.iterdir()) == ["step_10", "step_20", "step_22"]
    if (name, calls) != ("write_manifest", 2):
        assert not (source.output / "primebeaker_resume/lock").exists()


def test_a_child_created_before_the_kill_is_found(source, resume, beaker) -> None:
    """The experiment exists but the manifest does not say so: it is taken, not made again."""
    assert resume()[0] == 0
    path = source.output / "primebeaker_resume/attempts/a1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "prepared", "child_experiment_id": None}))
    for receipt in source.mount.rglob("*.receipt.json"):
        receipt.unlink()
    beaker.answer("experiment get me/parent-resume-step20-a1", [{"id": "01EXPERIMENT", "jobs": []}])
    code, document, err = resume()
    assert code == 0, err
    assert document["child_experiment_id"] == "01EXPERIMENT"
    assert len(beaker.called("experiment", "create")) == 1


def test_interrupted_while_creating(source, beaker) -> None:
    import time

    beaker.answer("experiment create", sleep=600)
    command = [sys.executable, "-m", "primebeaker", "rl", "resume", "--from-experiment=01SOURCE", "--attempt-id=a1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not beaker.called("experiment", "create"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "may exist" in err
    assert source.manifest()["status"] == "unknown"
    assert not (source.output / "primebeaker_resume/lock").exists()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[ckpt]\ninterval = 1\n", ["resume_step = 7"]),
        ("[ckpt]\nresume_step = -1 # latest\r\n", ["resume_step = 7 # latest"]),
        ("ckpt.interval = 5\nmax_steps = 3\n", ["ckpt.resume_step = 7"]),
        ("ckpt = { interval = 5 }\n", ["ckpt = { interval = 5, resume_step = 7 }"]),
        ("[ ckpt ] # comment\ninterval = 1\n", ["resume_step = 7"]),
        ('a = """\n[ckpt]\nresume_step = 1\n"""\n', ["[ckpt]", "resume_step = 7"]),
        ("clean_output_dir = true\r\n[ckpt]\r\ninterval = 1\r\n", ["clean_output_dir = false", "resume_step = 7"]),
        ("clean_output_dir = false\n[ckpt]\ninterval = 1\n", ["resume_step = 7"]),
        ("output_dir = 'x'\n[monitors.wandb]\n[resume]\ndir = 'd'\n", ["step = 7"]),
    ],
)
def test_edits_of_the_toml(text, changed) -> None:
    """Only the edited values differ, line by line."""
    rendered = render_resume_config(text, resume_step=7)
    before, after = text.splitlines(), rendered.splitlines()
    assert [line for line in after if line not in before and line.strip()] == [
        line for line in changed if line not in before
    ]
    assert ("\r\n" in rendered) is ("\r\n" in text)
    values = tomllib.loads(rendered)
    assert values.get("resume", {}).get("step", values.get("ckpt", {}).get("resume_step")) == 7
    assert "dir" not in values.get("resume", {})


@pytest.mark.parametrize(
    ("base", "step", "attempt", "expected"),
    [
        ("parent", 20, "abcdef0123", "parent-resume-step20-abcdef01"),
        ("x" * 200, 20, "abcdef0123", "x" * 105 + "-resume-step20-abcdef01"),
        ("multinode-rl-resume-step20-aaaaaaaa", 40, "abcdef0123", "multinode-rl-resume-step40-abcdef01"),
        ("p-resume-step1-a-resume-step2-b", 3, "c", "p-resume-step3-c"),
    ],
)
def test_names(base, step, attempt, expected) -> None:
    name = resumed_name(base, step, attempt)
    assert name == expected
    assert len(name) <= 128


def test_python_surface(source) -> None:
    found = discover_common_checkpoints(source.output, expected_trainer_shards=4)
    assert [checkpoint.step for checkpoint in found] == [10, 20]
    assert found[0].as_dict()["trainer_metadata"].endswith("step_10/trainer/.metadata")
    assert select_common_checkpoint(source.output, expected_trainer_shards=4).step == 20
    assert select_common_checkpoint(source.output, expected_trainer_shards=4, resume_step=10).step == 10
    with pytest.raises(ValueError, match="at least 1"):
        discover_common_checkpoints(source.output, expected_trainer_shards=0)
    with pytest.raises(ValueError, match="is incomplete"):
        select_common_checkpoint(source.output, expected_trainer_shards=5, resume_step=20)


def test_checkpoints_command(source, capsys) -> None:
    from primebeaker.cli import main

    (source.output / "checkpoints/step_20/trainer/__0_0.distcp").unlink()
    words = ["rl", "checkpoints", f"--output-dir={source.output}"]
    assert main([*words, f"--toml={source.toml}"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["output_dir", "layout", "expected_shards", "steps", "latest"]
    assert (document["layout"], document["expected_shards"], document["latest"]) == ("0.7", 4, 10)
    assert document["steps"][1]["missing"] == ["trainer shard __0_0.distcp"]
    assert main([*words, "--ranks=4", "--format=text"]) == 0
    assert "incomplete" in capsys.readouterr().out
    assert main(["rl", "checkpoints", f"--output-dir={source.mount}", "--ranks=4"]) == 2
    assert main(words) == 2
    assert "--toml is missing; pass it, or --ranks" in capsys.readouterr().err
