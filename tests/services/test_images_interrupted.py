"""An installation that fails anywhere loses no ID, and the next one continues without importing anything twice."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.services.images import install
from primebeaker.services.images.sources import Source
from primebeaker.services.images.state import state_file
from primebeaker.services.images.table import STACK_IMAGES

from ..waiting import alive, until

NAMES = [image.name("0.2.21") for image in STACK_IMAGES["podman"]]
IDS = {
    image.argument: "01" + hashlib.sha256(name.encode()).hexdigest()[:8]
    for image, name in zip(STACK_IMAGES["podman"], NAMES, strict=True)
}
#: The third of the five images: two are done when it fails.
SERVER = "literegistry-podman-server"


@pytest.fixture
def beaker(recorder, state_home: Path, monkeypatch: pytest.MonkeyPatch):
    """Recorders of a Beaker that remembers the images it was given."""
    monkeypatch.setenv("RECORDER_IMAGES", "ai2/test")
    return recorder


@pytest.fixture
def podman_images(primebeaker, beaker, checkout: Path, monkeypatch: pytest.MonkeyPatch):
    """Install the Podman stack; the download is replaced, everything after it is real."""
    folder = checkout / "literegistry_podman_beaker"
    monkeypatch.setattr(install, "download_source", lambda stack, version, work: Source(folder, version, "0" * 64))
    monkeypatch.setattr("primebeaker.services.images.remote._PAUSES", (0.0, 0.0, 0.0))
    return lambda: primebeaker("services", "images", "install", "--workspace=ai2/test", "--stack=podman")


def _imports(recorder) -> list[str]:
    """The names under which Beaker got an image, in order."""
    calls = [call for call in recorder.calls if call["program"] == "beaker" and call["argv"][1] == "create"]
    return [call["argv"][call["argv"].index("--name") + 1] for call in calls if call["made"]]


INSPECT = {"program": "docker", "match": ["image", "inspect", f"{SERVER}:0.2.21"]}
CREATE = {"program": "beaker", "match": ["image", "create", "--name", f"{SERVER}-0-2-21"]}
BUILD = {"program": "docker", "match": ["build", f"{SERVER}:0.2.21"]}


@pytest.mark.parametrize(
    ("rule", "step", "done"),
    [
        ({**BUILD, "code": 1, "stderr": "no space left"}, "build", 0),
        ({**BUILD, "kill": signal.SIGKILL}, "build", 0),
        ({**INSPECT, "code": 1, "stderr": "no such image"}, "inspect", 2),
        ({**INSPECT, "stdout": "sha256:junk"}, "inspect", 2),
        ({**INSPECT, "kill": signal.SIGKILL}, "inspect", 2),
        ({**CREATE, "code": 1, "stderr": "disk full"}, "upload", 2),
        ({**CREATE, "stdout": "Pushing 10%\n", "kill": signal.SIGKILL}, "upload", 2),
        ({**CREATE, "made": True, "kill": signal.SIGKILL}, "upload", 2),
        ({**CREATE, "stdout": "Pushing 10%\njunk"}, "upload", 2),
        ({**CREATE, "code": 1, "stderr": "HTTP 503"}, "upload", 2),
    ],
    ids=lambda value: (
        json.dumps({key: value[key] for key in value if key != "match"}) if isinstance(value, dict) else ""
    ),
)
def test_a_second_run_continues_where_the_first_one_failed(
    rule: dict, step: str, done: int, podman_images, beaker
) -> None:
    beaker.answer(rule)
    first = podman_images()
    assert first.code == 3, first.err
    assert (first.data["failed"]["step"], len(first.errors)) == (step, 1)
    known = first.data["stacks"]["podman"]["launcher_args"]
    assert known == dict(list(IDS.items())[:done])
    assert json.loads(state_file("ai2/test").read_text()) == first.data
    beaker.answer()
    second = podman_images()
    assert second.code == 0, second.err
    assert second.data["stacks"]["podman"]["launcher_args"] == IDS
    assert set(second.data["stacks"]["podman"]["reused"]) >= set(known)
    assert sorted(_imports(beaker)) == sorted(NAMES), "each image exactly once"


@pytest.mark.parametrize(
    "rule",
    [
        {**CREATE, "made": True, "stdout": "Pushing 10%\nno JSON at all"},
        {**CREATE, "code": 1, "stderr": "connection reset by peer", "times": 2},
        {**CREATE, "made": True, "code": 1, "stderr": "gateway timeout", "times": 1},
    ],
    ids=["junk after the import", "two lost connections", "an answer lost after the import"],
)
def test_an_unclear_answer_is_looked_into_and_imports_nothing_twice(rule: dict, podman_images, beaker) -> None:
    beaker.answer(rule)
    outcome = podman_images()
    assert outcome.code == 0, outcome.err
    assert outcome.data["stacks"]["podman"]["launcher_args"] == IDS
    assert sorted(_imports(beaker)) == sorted(NAMES)


@pytest.mark.parametrize("rule", [BUILD, {**CREATE, "made": True}], ids=["while building", "while uploading"])
def test_a_killed_installation_is_continued(rule: dict, beaker, checkout: Path, primebeaker) -> None:
    words = ["services", "images", "install", "--workspace=ai2/test", "--stack=podman", f"--source-root={checkout}"]
    beaker.answer({**rule, "hang": 600})
    command = [sys.executable, "-m", "primebeaker", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        until(lambda: any(call["rule"] == 0 for call in beaker.calls), 60)
        process.kill()
        assert process.communicate(timeout=60)[0] == b""
    (hanging,) = [call["pid"] for call in beaker.calls if call["rule"] == 0]
    if rule is BUILD:
        # The script that started it is gone; what Docker had begun goes on.
        os.kill(hanging, signal.SIGKILL)
    else:
        until(lambda: not alive(hanging), 60)
        partial = json.loads(state_file("ai2/test").read_text())["stacks"]["podman"]["launcher_args"]
        assert partial == dict(list(IDS.items())[:2])
    beaker.answer()
    outcome = primebeaker(*words)
    assert outcome.code == 0, outcome.err
    assert outcome.data["stacks"]["podman"]["launcher_args"] == IDS
    assert sorted(_imports(beaker)) == sorted(NAMES)


def test_a_result_that_cannot_be_kept_is_still_printed(podman_images, beaker) -> None:
    state_file("ai2/test").mkdir(parents=True)
    outcome = podman_images()
    assert outcome.code == 0, outcome.err
    assert outcome.data["stacks"]["podman"]["launcher_args"] == IDS
    assert f"{state_file('ai2/test')} cannot be written" in outcome.err


def test_a_state_folder_that_cannot_be_made_stops_before_any_build(
    podman_images, beaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    outcome = podman_images()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.errors[0].startswith(f"{tmp_path / 'file'}/primebeaker/service-images: cannot be made or written")
    assert [words[0] for words in beaker.words("docker")] == ["version"]
    assert _imports(beaker) == []


@pytest.mark.network
@pytest.mark.parametrize(
    ("stack", "failing", "files"),
    [
        ("podman", SERVER, ["redis", "gateway", "podman", "mirror", "warmup", "live-fire"]),
        pytest.param("base", None, ["redis", "services", "terminal", "vllm"], marks=pytest.mark.soak),
    ],
)
def test_the_really_downloaded_source_is_built_and_an_interrupted_import_goes_on(
    stack: str, failing: str | None, files: list[str], primebeaker, beaker
) -> None:
    index = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(beaker.directory)]
    if subprocess.run([*index, "literegistry-tool-client==0.1.0"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no package index")
    words = ["services", "images", "install", "--workspace=ai2/test", f"--stack={stack}"]
    if failing is not None:
        rule = {"program": "beaker", "match": ["image", "create", "--name"], "code": 1, "stderr": "disk full"}
        beaker.answer({**rule, "match": [*rule["match"], f"{failing}-0-2-21"]})
        first = primebeaker(*words)
        assert (first.code, first.data["failed"]["step"]) == (3, "upload"), first.err
        assert first.data["stacks"][stack]["launcher_args"] == dict(list(IDS.items())[:2])
        beaker.answer()
    outcome = primebeaker(*words)
    assert outcome.code == 0, outcome.err
    entry = outcome.data["stacks"][stack]
    wanted = [image.name(entry["version"]) for image in STACK_IMAGES[stack]]
    assert sorted(_imports(beaker)) == sorted(wanted)
    assert len(set(entry["launcher_args"].values())) == len(wanted)
    assert (entry["source"]["kind"], len(entry["source"]["sha256"])) == ("sdist", 64)
    built = [Path(words[words.index("--file") + 1]).name for words in beaker.words("docker") if words[0] == "build"]
    assert built[-len(files) :] == [f"Dockerfile.{name}" for name in files]
    assert len(built) == len(files) * (2 if failing else 1)
    assert os.listdir(os.environ["TMPDIR"]) == []
