"""The single-node script, run by a real bash with stand-ins for Prime-RL's programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """#!{python} -S
import json, os, signal, sys
home = {home!r}
with open(home + "/run.json", "w") as stream:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()}}, stream)
if os.path.exists(home + "/stay"):
    def end(number, frame):
        open(home + "/ended", "w").close()
        sys.exit(143)
    signal.signal(signal.SIGTERM, end)
    open(home + "/ready", "w").close()
    signal.pause()
"""


class Task:
    """One task of a plan on this machine: only its own variables, and a PATH of chosen programs."""

    def __init__(self, home: Path, plan) -> None:
        self.home = home
        self.bin = home / "bin"
        self.bin.mkdir(parents=True)
        task = plan.spec["tasks"][0]
        self.command = task["command"]
        self.env = {entry["name"]: entry["value"] for entry in task["envVars"] if "value" in entry}
        self.env |= {"PATH": f"{self.bin}:/usr/bin:/bin", "TMPDIR": str(home / "tmp"), "BEAKER_JOB_ID": "01JOB"}
        # An image with PrimeBeaker for RL, one without for SFT.
        flags = "" if plan.kind == "rl" else "-I -S"
        self.program("python3", f'#!/bin/sh\nexec {sys.executable} {flags} "$@"\n')
        self.program(plan.kind, PROGRAM.format(python=sys.executable, home=str(home)))
        snapshot = Path(plan.paths.snapshot)
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_bytes(plan.toml_data)
        self.snapshot = snapshot

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=60
        )

    @property
    def trained(self) -> dict | None:
        path = self.home / "run.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def task(plan, tmp_path):
    def make(base: str, changes=None, **settings) -> Task:
        return Task(tmp_path / "task", plan(base, changes, **settings))

    return make


def write_step(output: Path, step: int, *, ranks: int = 1, metadata: bool = True, progress: bool = True) -> Path:
    trainer = output / "checkpoints" / f"step_{step}" / "trainer"
    trainer.mkdir(parents=True)
    for rank in range(ranks):
        (trainer / f"__{rank}_0.distcp").write_bytes(b"x")
    if metadata:
        (trainer / ".metadata").write_bytes(b"m")
    orchestrator = output / "run_default" / "checkpoints" / f"step_{step}" / "orchestrator"
    orchestrator.mkdir(parents=True)
    (orchestrator / "progress.pt").write_bytes(b"p" if progress else b"")
    return trainer.parent


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_bash_accepts_the_script(plan, kind) -> None:
    script = plan(kind).spec["tasks"][0]["command"][2]
    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False).stderr == b""


def test_sft_runs_on_an_image_without_primebeaker(task, mount) -> None:
    made = task("sft")
    result = made.run()
    assert result.returncode == 0, result.stderr
    assert made.trained["argv"] == ["@", str(made.snapshot)]
    assert made.trained["cwd"] == str(mount)
    env = made.trained["env"]
    assert env["XDG_CACHE_HOME"] == f"{mount}/.cache"
    assert env["HF_HOME"] == f"{mount}/.cache/huggingface"
    assert env["TORCH_HOME"] == f"{mount}/.cache/torch"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == f"{mount}/.cache/torch/inductor"
    assert env["TRITON_CACHE_DIR"] == f"{mount}/.cache/triton"
    assert env["VLLM_CACHE_ROOT"] == f"{mount}/.cache/vllm"
    assert (mount / "runs/sft").is_dir()


def test_the_temporary_directory_is_of_the_launch(task) -> None:
    made = task("sft", launch_id=f"l{os.getpid()}")
    del made.env["TMPDIR"]
    expected = Path(f"/tmp/primebeaker-l{os.getpid()}")
    try:
        assert made.run().returncode == 0
        assert made.trained["env"]["TMPDIR"] == str(expected)
        assert expected.is_dir()
    finally:
        shutil.rmtree(expected)


def test_set_cache_directories_stay(task) -> None:
    made = task("sft", environment=(("HF_HOME", "/tmp"),))
    assert made.run().returncode == 0
    assert made.trained["env"]["HF_HOME"] == "/tmp"


def test_paths_with_shell_characters(plan, tmp_path, mount, toml) -> None:
    odd = mount / "a b$HOME'\"`;x"
    odd.mkdir()
    made = Task(tmp_path / "task", plan("sft", {"output_dir": str(odd / "out")}, working_dir=odd))
    result = made.run()
    assert result.returncode == 0, result.stderr
    assert made.trained["cwd"] == str(odd)
    assert (odd / "out").is_dir()


SETUP = """export FROM_SETUP="a 'b' \\"c\\"
second line"  # a comment
export OUTPUT_DIR=/changed BEAKER_JOB_ID=changed
mkdir -p "$SCRATCH/tools"
printf '#!/bin/sh\\n' > "$SCRATCH/tools/mine"
export PATH="$SCRATCH/tools:$PATH"
pwd > where
true \\"""


def test_exports_of_the_setup_command_reach_training(task, mount) -> None:
    made = task("sft", setup_command=SETUP)
    result = made.run()
    assert result.returncode == 0, result.stderr
    env = made.trained["env"]
    assert env["FROM_SETUP"] == "a 'b' \"c\"\nsecond line"
    assert env["PATH"].startswith(f"{mount}/tools:")
    assert env["OUTPUT_DIR"] == f"{mount}/runs/sft"
    assert env["BEAKER_JOB_ID"] == "01JOB"
    assert (mount / "where").read_text() == f"{mount}\n"


@pytest.mark.parametrize(("text", "code"), [("false\nexport A=1", 1), ("exit 7", 7), ("nosuchprogram", 127), ("if", 2)])
def test_a_failing_setup_command_ends_the_task_with_its_code(task, text, code) -> None:
    made = task("sft", setup_command=text)
    result = made.run()
    assert result.returncode == code
    assert f"primebeaker: error: the setup command (--setup-command) failed with code {code}\n" in result.stderr
    assert made.trained is None


def test_a_setup_command_that_exits_cleanly(task) -> None:
    made = task("sft", setup_command="export A=1; exit 0")
    assert made.run().returncode == 0
    assert made.trained["env"]["A"] == "1"


def test_a_missing_program_is_named(task) -> None:
    made = task("sft")
    (made.bin / "sft").unlink()
    result = made.run()
    assert result.returncode == 2
    assert result.stderr == "primebeaker: error: the image lacks Prime-RL's program 'sft'\n"


def test_rl_needs_primebeaker_in_the_image(task) -> None:
    made = task("rl")
    made.program("python3", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    result = made.run()
    assert result.returncode == 2
    assert result.stderr == "primebeaker: error: the image lacks the Python package 'primebeaker'\n"


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_an_edited_config_is_not_used_but_said(task, mount, kind) -> None:
    made = task(kind)
    with (mount / "run.toml").open("a") as stream:
        stream.write("# edited\n")
    result = made.run()
    assert result.returncode == 0
    assert result.stderr.count("has changed since the launch; using the snapshot") == 1
    assert "edited" not in Path(made.trained["argv"][1]).read_text()


def test_a_live_config_is_read_as_it_is(task, mount) -> None:
    made = task("sft", live_config=True)
    with (mount / "run.toml").open("a") as stream:
        stream.write("# edited\n")
    result = made.run()
    assert result.returncode == 0
    assert "has changed since the launch; using it as it is now" in result.stderr
    assert made.trained["argv"] == ["@", str(mount / "run.toml")]


def test_a_broken_snapshot_gives_way_to_the_config(task, mount) -> None:
    made = task("sft")
    made.snapshot.write_text("broken")
    assert made.run().returncode == 0
    assert made.trained["argv"] == ["@", str(mount / "run.toml")]
    (mount / "run.toml").unlink()
    result = made.run()
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "the training TOML cannot be read, and no intact snapshot is left" in result.stderr


def test_sft_data_must_be_readable(task, mount) -> None:
    made = task("sft", {"val.data.name": "./val"})
    result = made.run()
    assert result.returncode == 2
    assert "primebeaker: error: val.data.name = './val': the data cannot be read\n" in result.stderr
    (mount / "val").mkdir()
    assert made.run().returncode == 0


def test_incomplete_sft_checkpoints_are_set_aside(task, mount) -> None:
    made = task("sft")
    root = mount / "runs/sft/checkpoints"
    for step, metadata in ((1, True), (2, False), (3, False)):
        trainer = root / f"step_{step}" / "trainer"
        trainer.mkdir(parents=True)
        if metadata:
            (trainer / ".metadata").write_text("m")
    (root / "incomplete-step_2-01JOB").mkdir()
    (root / "step_9").mkdir()
    result = made.run()
    assert result.returncode == 0
    assert sorted(path.name for path in root.iterdir()) == [
        "incomplete-step_2-01JOB", "incomplete-step_2-01JOB-2", "incomplete-step_3-01JOB", "step_1", "step_9",
    ]  # fmt: skip
    assert "step_3 is incomplete (trainer .metadata); set aside as incomplete-step_3-01JOB" in result.stderr


def test_checkpoints_elsewhere_are_looked_at_there(task, mount) -> None:
    made = task("sft", {"ckpt.output_dir": "ck"})
    (mount / "ck/checkpoints/step_2/trainer").mkdir(parents=True)
    assert made.run().returncode == 0
    assert [path.name for path in (mount / "ck/checkpoints").iterdir()] == ["incomplete-step_2-01JOB"]


def test_rl_gets_a_config_with_the_common_step(task, mount) -> None:
    sources = [{"legacy": {"id": "jtc_label_env:load_environment", "args": {}}}]
    made = task("rl", {"orchestrator.train.source": sources})
    output = mount / "runs/rl"
    write_step(output, 5)
    write_step(output, 10, progress=False)
    write_step(output, 15, metadata=False)
    before = (mount / "run.toml").read_bytes()
    result = made.run()
    assert result.returncode == 0, result.stderr
    runtime = Path(made.env["TMPDIR"]) / "primebeaker-runtime.toml"
    assert made.trained["argv"] == ["@", str(runtime)]
    text = runtime.read_text()
    assert 'id = "primebeaker.environments.jtc_label_env"' in text
    assert "resume_step = 5\n" in text
    assert (mount / "run.toml").read_bytes() == before
    changed = [pair for pair in zip(before.decode().splitlines(), text.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 2
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == [
        "incomplete-step_10-01JOB", "incomplete-step_15-01JOB", "step_5",
    ]  # fmt: skip
    assert "continuing from step 5" in result.stderr


def test_rl_without_a_common_step_starts_afresh(task, mount) -> None:
    """The orchestrator's steps run ahead; alone they would make it continue where the trainer begins."""
    made = task("rl")
    orchestrator = mount / "runs/rl/run_default/checkpoints"
    (orchestrator / "step_3" / "orchestrator").mkdir(parents=True)
    assert made.run().returncode == 0
    assert "resume_step = -1" in Path(made.trained["argv"][1]).read_text()
    assert [path.name for path in orchestrator.iterdir()] == ["incomplete-step_3-01JOB"]


def test_a_named_step_stays(task, mount) -> None:
    made = task("rl", {"ckpt.resume_step": 10})
    write_step(mount / "runs/rl", 5)
    assert made.run().returncode == 0
    assert "resume_step = 10" in Path(made.trained["argv"][1]).read_text()


def test_a_gateway_runs_the_supervised_form(task) -> None:
    made = task("rl", registry="redis://h:1", gateway_port=4321)
    log = made.home / "python-calls"
    made.program(
        "python3",
        f'#!/bin/sh\nif [ "$2" = primebeaker.multinode ]; then echo "$@" > {log}; exit 5; fi\nexec {sys.executable} "$@"\n',
    )
    assert made.run().returncode == 5
    assert (
        log.read_text()
        == f"-m primebeaker.multinode single-node-rl --config {made.env['TMPDIR']}/primebeaker-runtime.toml\n"
    )


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_the_trainer_takes_the_tasks_place_and_its_signals(task, kind) -> None:
    made = task(kind)
    (made.home / "stay").touch()
    process = subprocess.Popen(made.command, env=made.env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (made.home / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert made.trained["pid"] == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert (made.home / "ended").exists()
