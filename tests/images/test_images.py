"""The image catalogue, its commands, and the Dockerfiles as far as they can be judged without Docker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from primebeaker.cli.images import main
from primebeaker.errors import UserError
from primebeaker.images import default_image_uri, image_locations, load_catalog, parse_catalog
from primebeaker.images.in_image import gpu_versions, merge_constraints
from primebeaker.images.in_image import main as in_image

PACKAGE = files("primebeaker.images")
ROOT = Path(__file__).parents[2]
DOCKERFILES = ("Dockerfile.runtime", "Dockerfile.full")
IMAGE = "01KZVDND2PYP538F5JSGJ469EC"
DOCKER_ID = "sha256:" + "ab" * 32
RECORD = {
    "id": "01K00000000000000000000000", "fullName": "me/new", "workspaceRef": {"fullName": "ai2/oe-agents"},
    "created": "2026-01-01T00:00:00Z", "committed": "2026-01-01T00:00:01Z", "size": 5,
}  # fmt: skip


@pytest.fixture
def images(capfd):
    """Run one command line: exit code, stdout, stderr (of child programs too)."""

    def run(*words: str):
        code = main(list(words))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def docker(recorder, monkeypatch):
    program = recorder("docker")
    program.answer("version", "27")
    program.answer("image inspect --format {{.Id}}", DOCKER_ID + "\n")
    program.answer("build", "done\n")
    monkeypatch.setenv("PATH", f"{program.path.parent}:/usr/bin:/bin")
    return program


def test_defaults_by_workspace() -> None:
    assert default_image_uri() == default_image_uri("ai2/oe-agents") == f"beaker://{IMAGE}"
    assert default_image_uri("ai2/oe-agents-holmes") == "beaker://01M0E15WYCV7T0J1CMCFPBQ21P"
    with pytest.raises(UserError, match="catalogued: ai2/oe-agents, ai2/oe-agents-holmes"):
        default_image_uri("ai2/other")
    assert [location.size_bytes for location in image_locations("legacy_sft_root")] == [21654512941]
    with pytest.raises(UserError, match="did you mean 'legacy_sft_root'"):
        image_locations("legacy_sft")


def test_the_note_says_what_fixes_the_bytes() -> None:
    role = load_catalog().roles["prime_rl_training_base"]
    assert role.rebuild_source["revision"] == "dc1972200bb4354ab06007bc8541bfe2cf13435a"
    assert "ids fix the deployed bytes" in role.provenance_note


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"schema_version": 1', '"schema_version": 2', "schema_version = 2: expected 1"),
        ("01M0E15WYCV7T0J1CMCFPBQ21P", IMAGE, "is listed twice"),
        (IMAGE, "01KZVDND2PYP538F5JSGJ469E", "expected beaker:// and an id of 26 characters"),
        ('"default_base_role": "prime_rl_training_base"', '"default_base_role": "x"', "default_base_role = 'x': no such role"),
        ('"size_bytes": 21654512941', '"size_bytes": "1"', "size_bytes: expected a number of bytes"),
        ("{", "", "not JSON"),
    ],
)  # fmt: skip
def test_malformed_catalogues(old, new, expected) -> None:
    text = PACKAGE.joinpath("catalog.json").read_text()
    with pytest.raises(UserError, match=re.escape(expected)) as caught:
        parse_catalog(text.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_list(images) -> None:
    rows = json.loads(images("list")[1])
    assert len(rows) == 3
    assert list(rows[0]) == ["role", "immutable_uri", "name", "workspace", "size_bytes", "created", "committed"]
    assert len(json.loads(images("list", "--all")[1])) == 4
    assert len(json.loads(images("list", "--workspace=ai2/oe-agents-holmes")[1])) == 2
    assert len(json.loads(images("list", "--role", "legacy_sft_root")[1])) == 1
    assert images("list", "--role=x")[0] == 2


def test_inspect_and_pull_pass_the_output_through(images, beaker, docker) -> None:
    beaker.answer("image inspect", '[{"id": "x"}]\n')
    assert images("inspect", "--workspace=ai2/oe-agents")[:2] == (0, '[{"id": "x"}]\n')
    beaker.answer("image pull", "layer 1\n", stderr="progress\n")
    code, out, err = images("pull", "--image", "beaker://01X", "--tag=base:1")
    assert (code, out, err) == (0, "layer 1\n", "progress\n")
    assert beaker.calls == [["image", "inspect", IMAGE, "--format", "json"], ["image", "pull", "01X", "base:1"]]
    assert docker.calls == [["version"]]


@pytest.mark.parametrize("command", ["inspect", "pull"])
def test_other_images_than_beakers_are_refused(images, beaker, command) -> None:
    code, _, err = images(command, "--image=ubuntu:22.04", *(["--tag=x"] if command == "pull" else []))
    assert code == 2
    assert "--image = 'ubuntu:22.04': expected a Beaker image" in err
    assert beaker.calls == []


def test_failing_children(images, beaker, docker) -> None:
    beaker.answer("image inspect", stderr="nope\n", code=4)
    code, _, err = images("inspect")
    assert code == 3
    assert err.splitlines()[0] == "nope"
    assert err.splitlines()[1].endswith(f"image inspect {IMAGE} --format json ended with 4")
    docker.answer("version", stderr="Cannot connect to the Docker daemon", code=1)
    code, _, err = images("pull", "--tag=x")
    assert code == 3
    assert "Cannot connect to the Docker daemon; start the Docker daemon" in err
    assert beaker.called("image", "pull") == []


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles(name) -> None:
    text = PACKAGE.joinpath(name).read_text()
    pins = dict(re.findall(r"^ARG (\w+_VERSION)=(\S+)$", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = " ".join(project["optional-dependencies"]["runtime"])
    assert f"literegistry[base_deployment,podman_beaker]=={pins['LITEREGISTRY_VERSION']}" in runtime
    assert pins["PRIMEBEAKER_VERSION"] == project["version"]
    lock = (ROOT / "requirements.lock").read_text()
    assert f"\nuvicorn=={pins['UVICORN_VERSION']} " in lock
    assert f"\nliteregistry-tool-client=={pins['LITEREGISTRY_TOOL_CLIENT_VERSION']} " in lock
    assert text.startswith("# ")
    assert f"ARG BASE_IMAGE=prime-rl-base:{IMAGE}\nFROM ${{BASE_IMAGE}}\n" in text
    for line in (
        "USER root", "WORKDIR /weka", "ENTRYPOINT []", 'CMD ["/bin/bash"]',
        "ENV PRIMEBEAKER_IMAGE_PROVENANCE=/opt/primebeaker/catalog.json",
    ):  # fmt: skip
        assert f"\n{line}\n" in text
    assert "--no-cache-dir --no-deps /opt/primebeaker" in text
    assert "in_image.py verify" in text
    assert re.search(r"latest|ADD http|torch|vllm(?!-router)", text) is None
    for label in ("title", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text
    assert ("--adamw-eps" in text) is (name == "Dockerfile.full")


def test_the_full_image_copies_the_checkouts_sources() -> None:
    text = PACKAGE.joinpath("Dockerfile.full").read_text()
    for folder in ("packages/prime-rl-configs", "src/prime_rl", "deps/renderers/renderers"):
        assert f"COPY prime-rl/{folder} /app/{folder}\n" in text


def test_pins_keep_what_the_base_has() -> None:
    lock = "redis==5.0.0 \\\n    --hash=sha256:00\nuvicorn==0.1\nTorch==1.0\n"
    assert merge_constraints({"torch": "2.9", "numpy": "2"}, lock) == [
        "numpy==2",
        "redis==5.0.0",
        "torch==2.9",
        "uvicorn==0.1",
    ]
    installed = {
        "torch": "2",
        "nvidia-nccl-cu12": "2",
        "flash-attn": "1",
        "vllm": "1",
        "transformers": "4",
        "redis": "5",
    }
    assert set(gpu_versions(installed)) == set(installed) - {"redis"}


def test_an_image_that_misses_something_is_refused(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nversion = "9.9.9"\n')
    versions = tmp_path / "versions.json"
    versions.write_text('{"torch": "0.0.1"}')
    assert in_image(["verify", str(project), str(versions), str(tmp_path / "no.json")]) == 1
    faults = capsys.readouterr().err
    assert "primebeaker 0.4.0 is installed, the source is 9.9.9" in faults
    assert "torch changed from 0.0.1 to" in faults
    assert "rl is not on PATH" in faults
    assert "no.json: the catalogue is not in the image" in faults
    assert "multinode --help ended" not in faults


def test_readme_lists_the_catalogue() -> None:
    text = PACKAGE.joinpath("README.md").read_text()
    rows = re.findall(r"^\| (\w+) \| `(beaker://\w+)` \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    expected = [
        (role, one.immutable_uri, one.workspace, one.name)
        for role in load_catalog().roles
        for one in load_catalog().locations(role)
    ]
    assert rows == expected
    assert load_catalog().roles["prime_rl_training_base"].rebuild_source["revision"] in text


@pytest.fixture
def checkout(tmp_path):
    """A Git checkout of a small project with an untracked secret."""

    def make(name: str, names: list[str]) -> Path:
        path = tmp_path / name
        for relative in names:
            (path / relative).parent.mkdir(parents=True, exist_ok=True)
            (path / relative).write_text('[project]\nversion = "1.2.3"\n' if relative == "pyproject.toml" else "x")
        git = ["git", "-C", str(path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "init", "-q", str(path)], check=True)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
        (path / "secret.env").write_text("TOKEN=x")
        return path

    return make


OURS = ["pyproject.toml", "src/primebeaker/images/Dockerfile.runtime", "src/primebeaker/images/Dockerfile.full"]
LISTING = """#!/bin/sh
for last; do :; done
if [ "$1" = build ]; then (cd "$last" && find . -type f | sort) > {out}; echo "$@" > {out}.argv; fi
if [ "$1" = image ]; then echo {docker_id}; fi
"""


@pytest.mark.parametrize("kind", ["runtime", "full"])
def test_only_tracked_files_reach_docker(images, checkout, tmp_path, kind) -> None:
    source = checkout("ours", OURS)
    upstream = checkout("prime-rl", ["src/prime_rl/x.py"])
    program = tmp_path / "docker"
    program.write_text(LISTING.format(out=tmp_path / "seen", docker_id=DOCKER_ID))
    program.chmod(0o755)
    more = [f"--prime-rl={upstream}"] if kind == "full" else []
    code, out, err = images(
        "build", f"--kind={kind}", f"--source={source}", "--base-image=base:1", "--tag=t:1", f"--docker-bin={program}",
        "--platform=linux/amd64", *more,
    )  # fmt: skip
    assert code == 0, err
    seen = (tmp_path / "seen").read_text().split()
    assert not any("secret" in name or ".git/" in name for name in seen)
    place = "./primebeaker" if kind == "full" else "."
    assert f"{place}/pyproject.toml" in seen
    assert ("./prime-rl/src/prime_rl/x.py" in seen) is (kind == "full")
    argv = (tmp_path / "seen.argv").read_text().split()
    assert argv[:3] == ["build", "--build-arg", "BASE_IMAGE=base:1"]
    assert "PRIMEBEAKER_VERSION=1.2.3" in argv
    assert argv[argv.index("--platform") + 1] == "linux/amd64"
    context = Path(argv[-1])
    assert argv[argv.index("--file") + 1].endswith(f"src/primebeaker/images/Dockerfile.{kind}")
    assert not context.exists()
    document = json.loads(out)
    assert list(document) == ["tag", "docker_id", "kind", "base_image", "revisions"]
    assert document["docker_id"] == DOCKER_ID
    assert set(document["revisions"]) == ({"primebeaker", "prime-rl"} if kind == "full" else {"primebeaker"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--kind=full"], "--kind=full needs --prime-rl"),
        (["--kind=runtime", "--prime-rl=/x"], "--prime-rl has no meaning with --kind=runtime"),
        (["--kind=runtime", "--source=/"], "--source = /: expected a Git checkout"),
        ([], "--kind is missing"),
    ],
)
def test_builds_that_cannot_be(images, docker, words, expected) -> None:
    code, _, err = images("build", "--base-image=b:1", "--tag=t", *words)
    assert code == 2
    assert expected in err
    assert docker.calls == []


def test_uncommitted_changes_are_refused(images, docker, checkout) -> None:
    source = checkout("ours", OURS)
    (source / "pyproject.toml").write_text('[project]\nversion = "1.2.4"\n')
    words = ["build", "--kind=runtime", f"--source={source}", "--base-image=b:latest", "--tag=t"]
    code, _, err = images(*words)
    assert code == 2
    assert "has uncommitted changes: pyproject.toml; commit them, or pass --allow-dirty" in err
    code, _, err = images(*words, "--allow-dirty")
    assert code == 0
    assert "--base-image = b:latest: b without a fixed tag may be another image tomorrow" in err
    docker.answer("build", stderr="step 3 failed", code=1)
    code, _, err = images(*words, "--allow-dirty")
    assert code == 3
    assert "build failed with 1: " in err


@pytest.fixture
def publish(images, beaker, docker, tmp_path):
    beaker.answer("image create", 'progress\n[{"id": "01K00000000000000000000000"}]')
    beaker.answer("image get", [RECORD])
    catalog = tmp_path / "catalog.json"
    catalog.write_text(PACKAGE.joinpath("catalog.json").read_text())

    def run(*words: str):
        code, out, err = images("publish", "--tag=t:1", "--name=new", "--workspace=ai2/oe-agents", *words)
        return code, json.loads(out) if out else None, err

    run.catalog = catalog
    return run


def test_publish_prints_the_entry(publish, beaker) -> None:
    code, entry, err = publish()
    assert code == 0, err
    assert entry == {
        "immutable_uri": "beaker://01K00000000000000000000000", "name": "me/new", "workspace": "ai2/oe-agents",
        "created": "2026-01-01T00:00:00Z", "committed": "2026-01-01T00:00:01Z", "size_bytes": 5,
    }  # fmt: skip
    assert beaker.called("image", "create") == [
        ["image", "create", DOCKER_ID, "--name", "new", "--workspace", "ai2/oe-agents", "--format", "json"]
    ]


@pytest.mark.parametrize("make_default", [False, True])
def test_publish_into_a_catalogue(publish, make_default) -> None:
    before = json.loads(publish.catalog.read_text())["roles"]["prime_rl_training_base"]["locations"]
    words = [f"--catalog={publish.catalog}", *(["--make-default"] if make_default else [])]
    code, entry, _ = publish(*words)
    assert code == 0
    text = publish.catalog.read_text()
    assert text.endswith("}\n")
    after = json.loads(text)["roles"]["prime_rl_training_base"]["locations"]
    place = 0 if make_default else 3
    assert after.pop(place) == entry
    assert after == before
    code, _, err = publish(*words)
    assert code == 0
    assert "is listed already; nothing was changed" in err
    assert publish.catalog.read_text() == text


def test_publish_what_is_not_finished(publish, beaker) -> None:
    before = publish.catalog.read_bytes()
    beaker.answer("image get", [{**RECORD, "committed": "0001-01-01T00:00:00Z"}])
    code, _, err = publish(f"--catalog={publish.catalog}")
    assert code == 3
    assert "is not committed" in err
    beaker.answer("image get", [RECORD])
    code, _, err = publish(f"--catalog={publish.catalog}", "--role=x")
    assert code == 2
    assert "unknown image role 'x'" in err
    assert len(beaker.called("image", "create")) == 1, "the second one was refused before its upload"
    assert publish.catalog.read_bytes() == before


def test_publish_under_a_name_that_is_taken(publish, beaker) -> None:
    beaker.answer("image create", stderr="name already exists", code=1)
    beaker.answer("image get", [{**RECORD, "originalTag": DOCKER_ID}])
    assert publish()[1]["immutable_uri"] == "beaker://01K00000000000000000000000"
