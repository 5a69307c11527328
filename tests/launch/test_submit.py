"""Submit: pre-flight, files, one creation, receipt; and what is said when something is in the way."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from primebeaker.launch.submit import preflight
from primebeaker.local import LocalEngine

IMAGE_ID = "01KZVDND2PYP538F5JSGJ469EC"


@pytest.fixture
def submit(run_cli, toml, mount):
    """Submit a base TOML; exit code, receipt or None, stderr without the mount's real place."""

    def run(*words: str, base: str = "rl", changes=None, launch_id: str | None = "l1"):
        kind = base.split("-")[0]
        ids = [f"--launch-id={launch_id}"] if launch_id else []
        code, out, err = run_cli(
            kind, "submit", f"--toml={toml(base, changes)}", f"--mount-path={mount}", "--wandb-run-id=w1", *ids, *words
        )
        return code, json.loads(out) if out else None, err.replace(str(mount), "/weka")

    return run


def files(mount: Path) -> list[str]:
    return sorted(path.name for path in (mount / "primebeaker").rglob("*") if path.is_file())


def test_receipt_and_files(submit, beaker, mount, toml, preview_cli) -> None:
    code, receipt, err = submit()
    assert (code, err) == (0, "")
    stem = mount / "primebeaker" / "beaker_experiments" / "tiny-rl-l1"
    assert list(receipt) == [
        "experiment_name", "launch_id", "experiment_id", "experiment_url", "workspace", "engine", "submitted_at",
        "spec_path", "stdout", "wandb_run", "warnings",
    ]  # fmt: skip
    assert receipt["experiment_id"] == "01EXPERIMENT"
    assert receipt["experiment_url"] == "https://beaker.org/ex/01EXPERIMENT"
    assert (
        receipt["stdout"] == "Experiment 01EXPERIMENT submitted. See progress at https://beaker.org/ex/01EXPERIMENT\n"
    )
    assert receipt["engine"] == "beaker"
    assert receipt["submitted_at"].endswith("Z")
    assert files(mount) == ["tiny-rl-l1.json", "tiny-rl-l1.receipt.json", "tiny-rl-l1.toml"]
    spec_path = Path(f"{stem}.json")
    assert stat.S_IMODE(spec_path.stat().st_mode) == 0o600
    assert spec_path.read_text().endswith("}\n")
    assert Path(f"{stem}.toml").read_bytes() == (mount / "run.toml").read_bytes()
    assert json.loads(Path(f"{stem}.receipt.json").read_text()) == receipt
    preview = preview_cli("rl", mount / "run.toml", "--launch-id=l1", "--wandb-run-id=w1")
    assert json.loads(spec_path.read_text()) == preview["spec"]
    assert beaker.called("experiment", "create") == [preview["submit_command"][1:]]
    assert len(beaker.called("account")) == len(beaker.called("secret")) == 1
    assert beaker.called("image") == [["image", "get", IMAGE_ID, "--format", "json"]]


def test_skip_preflight(submit, beaker) -> None:
    assert submit("--skip-preflight")[0] == 0
    assert [call[:2] for call in beaker.calls] == [["experiment", "create"]]


@pytest.mark.parametrize(
    ("words", "answer", "expected"),
    [
        ("account whoami", {"stderr": "not authenticated\nmore", "code": 1}, "not logged in to Beaker, or Beaker is unreachable: not authenticated; log in with"),
        ("secret list", {"stdout": [{"name": "wandb_api_key"}]}, "workspace ai2/oe-agents lacks the secret HF_TOKEN; add it with 'beaker secret write --workspace ai2/oe-agents HF_TOKEN'"),
        ("secret list", {"stdout": []}, "lacks the secrets HF_TOKEN, WANDB_API_KEY; add each with 'beaker secret write"),
        ("image get", {"stderr": "image not found", "code": 1}, f"--image: Beaker knows no image {IMAGE_ID}"),
        ("image get", {"stdout": [{"id": IMAGE_ID}]}, "is not committed"),
        ("image get", {"stdout": {"id": IMAGE_ID, "committed": "0001-01-01T00:00:00Z"}}, "is not committed"),
    ],
)  # fmt: skip
def test_preflight_refuses(submit, beaker, mount, words, answer, expected) -> None:
    beaker.answer(words, **answer)
    code, receipt, err = submit()
    assert code == 3
    assert receipt is None
    assert expected in err
    assert not (mount / "primebeaker").exists()
    assert beaker.called("experiment") == []


@pytest.mark.parametrize(
    ("words", "answer", "expected"),
    [
        ("secret list", {"stderr": "no such command", "code": 2}, "pre-flight: beaker refused the secrets of ai2/oe-agents: no such command"),
        ("secret list", {"stdout": ""}, "no JSON about the secrets of ai2/oe-agents: it printed nothing; going on"),
        ("secret list", {"stdout": "junk"}, "pre-flight: beaker printed no JSON about the secrets of ai2/oe-agents: junk"),
        ("image get", {"stdout": "<html>"}, "pre-flight: beaker printed no JSON"),
        ("image get", {"stdout": [{"id": "x", "committed": "2026-01-01T00:00:00Z", "workspaceRef": {"fullName": "ai2/other"}}]}, "belongs to workspace ai2/other, not to ai2/oe-agents"),
        ("account whoami", {"stdout": "hello"}, ""),
    ],
)  # fmt: skip
def test_preflight_warns_and_goes_on(submit, beaker, words, answer, expected) -> None:
    beaker.answer(words, **answer)
    code, receipt, err = submit()
    assert code == 0
    assert expected in err
    assert all(f"primebeaker: warning: {warning}\n" in err for warning in receipt["warnings"])


def test_secret_names_are_spelled_as_beaker_knows_them(submit, beaker, mount) -> None:
    beaker.answer("secret list", [{"name": "wandb_api_key"}, {"name": "HF_TOKEN"}, {"name": "hf_token"}])
    code, receipt, _ = submit("--wandb-secret", "WANDB_API_KEY")
    assert code == 0
    entries = json.loads(Path(receipt["spec_path"]).read_text())["tasks"][0]["envVars"]
    assert {entry["name"]: entry["secret"] for entry in entries if "secret" in entry} == {
        "WANDB_API_KEY": "wandb_api_key", "HF_TOKEN": "HF_TOKEN",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"stderr": "quota\nexceeded", "code": 1}, "beaker did not create the experiment tiny-rl: quota exceeded (spec file: /weka/primebeaker/beaker_experiments/tiny-rl-l1.json)"),
        ({"stdout": "nope redis://u:hunter22@h:1", "code": 4}, "tiny-rl: nope redis://u:***@h:1 (spec file"),
        ({"stderr": 'name "tiny-rl" is already in use', "code": 1}, "change --name or wandb.name"),
        ({"code": 7}, "exit code 7"),
    ],
)  # fmt: skip
def test_refused_creations_are_not_repeated(submit, beaker, answer, expected) -> None:
    beaker.answer("experiment create", **answer)
    code, _, err = submit()
    assert code == 3
    assert err.count("\n") == 1
    assert expected in err
    assert len(beaker.called("experiment")) == 1


def test_an_answer_in_json_and_one_that_is_not_recognised(submit, beaker) -> None:
    beaker.answer("experiment create", 'progress…\n[{"id": "01X", "name": "n"}]')
    assert submit(launch_id="a")[1]["experiment_id"] == "01X"
    beaker.answer("experiment create", "done.")
    code, receipt, err = submit(launch_id="b")
    assert code == 0
    assert (receipt["experiment_id"], receipt["experiment_url"], receipt["stdout"]) == (None, None, "done.")
    assert "names no experiment" in err


def test_a_creation_that_hangs_is_ended_and_its_outcome_called_unclear(submit, beaker, monkeypatch) -> None:
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_TIMEOUT_SECONDS", "0.5")
    beaker.answer("experiment create", sleep=600, child=True)
    code, _, err = submit()
    assert code == 3
    assert (
        "beaker did not answer within 0.5 s: the experiment tiny-rl may exist; look with 'beaker workspace experiments"
        in err
    )
    assert len(beaker.called("experiment")) == 1


def test_a_creation_that_is_killed_may_have_created(submit, beaker) -> None:
    beaker.path.write_text("#!/bin/sh\nkill -KILL $$\n")
    code, _, err = submit("--skip-preflight")
    assert code == 3
    assert "beaker was killed by signal 9: the experiment tiny-rl may exist; look with" in err


def test_beaker_is_missing(submit, mount, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("PRIMEBEAKER_BEAKER_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = submit()
    assert code == 3
    assert "beaker is not installed or not on PATH; install it" in err and "'preview'" in err
    assert not (mount / "primebeaker").exists()


def test_a_named_program_that_is_none(submit, monkeypatch) -> None:
    monkeypatch.setenv("PRIMEBEAKER_BEAKER_BINARY", "/not/there")
    code, _, err = submit()
    assert code == 3
    assert "PRIMEBEAKER_BEAKER_BINARY = /not/there is no program" in err


def test_a_launch_id_is_used_once(submit, beaker, mount) -> None:
    assert submit()[0] == 0
    code, _, err = submit()
    assert code == 2
    assert "--launch-id = l1: this launch was submitted before" in err
    (mount / "primebeaker/beaker_experiments/tiny-rl-l1.receipt.json").unlink()
    code, _, err = submit("--priority=low")
    assert code == 2
    assert "tiny-rl-l1.json exists with other content: a launch id is used once" in err
    assert submit()[0] == 0, "the same launch again, after its receipt was lost"
    assert len(beaker.called("experiment")) == 2


@pytest.fixture
def as_somebody_else(tmp_path):
    """Work as a user whom mode bits bind: root would ignore them."""
    for directory in [tmp_path, *tmp_path.parents]:
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(directory.stat().st_mode | 0o055)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_a_directory_that_refuses_us(beaker, submit, run_cli, toml, mount, request) -> None:
    path = toml("rl")
    scratch = mount / "scratch"
    scratch.mkdir(mode=0o555)
    # Loads every module of a submit while their files can still be read.
    run_cli("rl", "submit", f"--toml={path}", f"--mount-path={mount}", f"--scratch-dir={mount}/other")
    request.getfixturevalue("as_somebody_else")
    code, _, err = run_cli(
        "rl", "submit", f"--toml={path}", f"--mount-path={mount}", f"--scratch-dir={scratch}", "--skip-preflight"
    )
    assert code == 2
    assert f"{scratch}/primebeaker/beaker_experiments: the launch files cannot be written: Permission denied" in err
    assert "--scratch-dir" in err
    assert list(scratch.iterdir()) == []
    assert len(beaker.called("experiment")) == 1


def test_a_target_that_cannot_be_a_directory(submit, beaker, mount) -> None:
    (mount / "file").write_text("")
    code, _, err = submit(f"--scratch-dir={mount}/file")
    assert code == 2
    assert "the launch files cannot be written: Not a directory; make room or choose another --scratch-dir" in err
    assert beaker.called("experiment") == []


def test_a_full_disk_leaves_no_half_written_file(beaker, toml, mount) -> None:
    """A write that stops in the middle, as on a full disk."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192));"
        "from primebeaker.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "rl", "submit", f"--toml={toml('rl')}", f"--mount-path={mount}", "--skip-preflight",
         f"--description={'x' * 40_000}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "the launch files cannot be written: File too large; make room" in result.stderr
    assert [Path(name).suffix for name in files(mount)] == [".toml"], (
        "the snapshot is whole, the spec file is not there"
    )
    assert beaker.called("experiment") == []


def test_two_submits_at_once_keep_to_their_own_files(beaker, toml, mount) -> None:
    path = toml("rl")
    command = [
        sys.executable,
        "-m",
        "primebeaker",
        "rl",
        "submit",
        f"--toml={path}",
        f"--mount-path={mount}",
        "--skip-preflight",
    ]
    outcomes: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(
            target=lambda: outcomes.append(subprocess.run(command, capture_output=True, text=True, check=False))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receipts = [json.loads(outcome.stdout) for outcome in outcomes]
    assert len({receipt["spec_path"] for receipt in receipts}) == 2
    assert len(files(mount)) == 6
    for receipt in receipts:
        spec = json.loads(Path(receipt["spec_path"]).read_text())
        assert receipt["launch_id"] in str(spec)


@pytest.mark.parametrize("folder", ["checkpoints/step_5", "run_default/checkpoints/step_5"])
def test_checkpoints_of_another_launch_are_in_the_way(submit, run_cli, beaker, mount, toml, folder) -> None:
    (mount / "runs/rl" / folder).mkdir(parents=True)
    code, _, err = submit(changes={"ckpt.resume_step": None})
    assert code == 2
    where = folder.rpartition("/")[0]
    assert f'output_dir = "runs/rl": {mount}/runs/rl/{where} already holds checkpoints' in err.replace(
        "/weka", str(mount)
    )
    for way_out in ("ckpt.resume_step = -1", "primebeaker rl resume", "another output_dir"):
        assert way_out in err
    assert beaker.calls == []
    assert (mount / "runs/rl" / folder).is_dir()
    assert submit()[0] == 0, "with a resume setting"


def test_preview_only_warns_about_checkpoints(preview_cli, toml, mount) -> None:
    (mount / "runs/rl/checkpoints/step_5").mkdir(parents=True)
    document = preview_cli("rl", toml("rl", {"ckpt.resume_step": None}))
    assert any("already holds checkpoints" in warning for warning in document["warnings"])


def test_placeholders_are_refused(submit, beaker) -> None:
    code, _, err = submit(
        "--image=beaker://IMMUTABLE_PRIMEBEAKER_IMAGE", changes={"trainer.model.name": "/weka/YOUR_TEAM/m"}
    )
    assert code == 2
    assert "--image = beaker://IMMUTABLE_PRIMEBEAKER_IMAGE: this is a placeholder" in err
    assert 'trainer.model.name = "/weka/YOUR_TEAM/m": this is a placeholder' in err
    assert beaker.calls == []


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("beaker://me/name", True),
        (f"beaker://{IMAGE_ID}", False),
        ("ubuntu:22.04", True),
        ("docker://x@sha256:" + "0" * 64, False),
    ],
)
def test_images_that_may_change_are_warned_about(submit, beaker, image, warned) -> None:
    _, receipt, _ = submit(f"--image={image}")
    assert any("may mean other bytes tomorrow" in warning for warning in receipt["warnings"]) is warned


def test_errors_stop_before_anything_is_written(submit, beaker, mount) -> None:
    code, _, err = submit("--priority=hgih", changes={"dry_run": True})
    assert code == 2
    assert "--priority = 'hgih'" in err
    code, _, err = submit(changes={"dry_run": True})
    assert code == 2
    assert "dry_run = true: the job would end at once" in err
    assert beaker.calls == []
    assert not (mount / "primebeaker").exists()


def test_write_spec_writes_what_submit_would(run_cli, submit, beaker, toml, mount) -> None:
    words = [f"--toml={toml('rl')}", f"--mount-path={mount}", "--launch-id=l1", "--wandb-run-id=w1"]
    code, _, _ = run_cli("rl", "preview", "--write-spec", *words)
    assert code == 0
    written = {name: (mount / "primebeaker/beaker_experiments" / name).read_bytes() for name in files(mount)}
    assert set(written) == {"tiny-rl-l1.json", "tiny-rl-l1.toml"}
    assert submit()[0] == 0
    for name, data in written.items():
        assert (mount / "primebeaker/beaker_experiments" / name).read_bytes() == data


def test_run_name_that_climbs(submit, beaker, mount) -> None:
    code, receipt, _ = submit(changes={"wandb.name": "../../x"})
    assert code == 0
    assert receipt["experiment_name"] == "x"
    assert receipt["wandb_run"]["name"] == "../../x"
    assert files(mount) == ["x-l1.json", "x-l1.receipt.json", "x-l1.toml"]


def test_secrets_missing_on_this_machine_are_a_warning_with_the_command_that_adds_them(plan, tmp_path) -> None:
    checked = preflight(plan("rl", {}), LocalEngine(tmp_path / "home"))
    mend = "'primebeaker local secret write --workspace ai2/oe-agents NAME'"
    assert f"lacks the secrets HF_TOKEN, WANDB_API_KEY; add each with {mend}" in " ".join(checked.warnings)
