"""Installing images: official build scripts, immutable IDs, nothing built or uploaded twice, nothing lost."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from primebeaker.errors import ExternalError
from primebeaker.services.images.remote import BeakerImages, committed_in
from primebeaker.services.images.sources import unpack
from primebeaker.services.images.state import locked_state, state_file
from primebeaker.services.images.table import STACK_IMAGES

PODMAN = [image.repository for image in STACK_IMAGES["podman"]]


@pytest.fixture
def install(primebeaker, recorder, checkout: Path, state_home: Path):
    def call(*words: str, stack: str = "podman"):
        return primebeaker(
            "services",
            "images",
            "install",
            "--workspace=ai2/test",
            f"--stack={stack}",
            f"--source-root={checkout}",
            *words,
        )

    return call


def _created(name: str, answer: str) -> dict:
    return {"program": "beaker", "match": ["image", "create", name], "stdout": answer}


def _record(identifier: str, **more: object) -> str:
    return json.dumps(
        {"id": identifier, "workspaceRef": {"fullName": "ai2/test"}, "committed": "2026-01-02T00:00:00Z", **more}
    )


def _docker_id(repository: str, version: str = "0.2.21") -> str:
    return "sha256:" + hashlib.sha256(f"{repository}:{version}".encode()).hexdigest()


def _uploads(*failing: str) -> list[dict]:
    rules = [
        {"program": "beaker", "match": ["image", "create", "--name", name], "code": 1, "stderr": "Error: disk full"}
        for name in failing
    ]
    names = [image.name("0.2.21") for image in STACK_IMAGES["podman"]]
    return rules + [
        {"program": "beaker", "match": ["image", "create", "--name", name], "stdout": f'{{"id": "01{index}"}}'}
        for index, name in enumerate(names)
    ]


def test_every_image_is_built_identified_and_uploaded_in_order(install, recorder, checkout: Path) -> None:
    recorder.answer(*_uploads())
    outcome = install()
    assert outcome.code == 0, outcome.err
    stack = outcome.data["stacks"]["podman"]
    assert stack["launcher_args"] == {
        "redis_image": "010",
        "gateway_image": "011",
        "podman_image": "012",
        "docker_mirror_image": "013",
        "warmup_image": "014",
    }
    assert list(stack["launcher_args"]) == [image.argument for image in STACK_IMAGES["podman"]]
    assert stack["source"] == {"kind": "checkout", "path": str(checkout / "literegistry_podman_beaker")}
    assert stack["reused"] == []
    assert [words[2] for words in recorder.words("docker") if words[0] == "build"] == [
        f"{repository}:0.2.21" for repository in PODMAN
    ]
    uploads = [words for words in recorder.words("beaker") if words[:2] == ["image", "create"]]
    assert [words[2] for words in uploads] == [_docker_id(repository) for repository in PODMAN]
    assert uploads[0][3:] == [
        "--name",
        "literegistry-redis-podman-0-2-21",
        "--workspace",
        "ai2/test",
        "--format",
        "json",
    ]
    assert "redis_image=010" in outcome.err
    assert "built on stdout" in outcome.err
    # The checkout's Dockerfiles install another LiteRegistry than the one here.
    assert any("literegistry 9.9.9" in note for note in outcome.data["notes"])


def test_the_build_script_sees_the_forced_environment(install, recorder, monkeypatch) -> None:
    for name, value in {
        "IMAGE_REPOSITORY": "elsewhere",
        "IMAGE_TAG": "old",
        "PUSH_IMAGES": "1",
        "PLATFORM": "linux/amd64",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST"):
        monkeypatch.delenv(name, raising=False)
    recorder.answer(*_uploads())
    assert install("--no-pull-bases").code == 0
    (build, *_) = [call for call in recorder.calls if call["argv"][0] == "build"]
    assert build["env"] == {
        "DOCKER_BIN": "docker",
        "PULL_BASES": "0",
        "PUSH_IMAGES": "0",
        "BUILD_LOCAL_SEARCH": "0",
        "PLATFORM": "linux/amd64",
    }
    assert build["cwd"].endswith("literegistry_podman_beaker")


def test_local_search_is_built_from_the_jtc_checkout(install, recorder, tmp_path: Path) -> None:
    (tmp_path / "jtc" / "search").mkdir(parents=True)
    outcome = install("--build-local-search", f"--jtc-build-context={tmp_path / 'jtc'}", stack="base")
    assert outcome.code == 3, "the recorder's default answer has no image ID"
    (build, *_) = [call for call in recorder.calls if call["argv"][0] == "build"]
    assert build["env"]["BUILD_LOCAL_SEARCH"] == "1"
    assert build["env"]["JTC_BUILD_CONTEXT"] == str(tmp_path / "jtc")


def test_an_upload_that_fails_keeps_what_succeeded_and_a_second_run_continues(
    install, recorder, state_home: Path
) -> None:
    mirror = "literegistry-podman-server-0-2-21"
    recorder.answer(*_uploads(mirror))
    first = install()
    assert first.code == 3
    assert first.data["stacks"]["podman"]["launcher_args"] == {"redis_image": "010", "gateway_image": "011"}
    assert first.data["failed"] == {
        "stack": "podman",
        "image": "podman_image",
        "step": "upload",
        "message": "Error: disk full",
    }
    assert first.errors == ["podman: podman_image: upload failed: Error: disk full"]
    assert json.loads(state_file("ai2/test").read_text()) == first.data
    taken = [
        {"program": "beaker", "match": ["image", "create", "--name", name], "code": 1, "stderr": "name already in use"}
        for name in ("literegistry-redis-podman-0-2-21", "literegistry-podman-gateway-0-2-21")
    ]
    records = [
        {
            "program": "beaker",
            "match": ["image", "get", f"me/{name}"],
            "stdout": _record(f"old{index}", originalTag=_docker_id(repository)),
        }
        for index, (name, repository) in enumerate(
            [
                ("literegistry-redis-podman-0-2-21", "literegistry-redis"),
                ("literegistry-podman-gateway-0-2-21", "literegistry-podman-gateway"),
            ]
        )
    ]
    recorder.answer(*taken, *records, *_uploads())
    second = install()
    assert second.code == 0, second.err
    assert second.data["stacks"]["podman"]["launcher_args"] == {
        "redis_image": "old0",
        "gateway_image": "old1",
        "podman_image": "012",
        "docker_mirror_image": "013",
        "warmup_image": "014",
    }
    assert second.data["stacks"]["podman"]["reused"] == ["redis_image", "gateway_image"]


def test_a_failed_stack_does_not_stop_the_other(install, recorder) -> None:
    recorder.answer(
        {"program": "docker", "match": ["build", "literegistry-base-services:0.1.7"], "code": 1, "stderr": "no space"},
        *_uploads(),
    )
    outcome = install(stack="all")
    assert outcome.code == 3
    assert [(failed["stack"], failed["step"]) for failed in outcome.data["failed"]] == [("base", "build")]
    assert "no space" in outcome.data["failed"][0]["message"]
    assert len(outcome.data["stacks"]["podman"]["launcher_args"]) == 5


@pytest.mark.parametrize("answer", ["", "sha256:short\n"])
def test_an_image_that_cannot_be_identified_is_named(install, recorder, answer: str) -> None:
    recorder.answer({"program": "docker", "match": ["image", "inspect"], "stdout": answer})
    outcome = install()
    assert outcome.code == 3
    assert (outcome.data["failed"]["image"], outcome.data["failed"]["step"]) == ("redis_image", "inspect")


def test_a_complete_workspace_is_reused_without_download_or_build(primebeaker, recorder, state_home: Path) -> None:
    recorder.answer({"program": "beaker", "match": ["image", "get"], "stdout": _record("01A")})
    outcome = primebeaker("services", "images", "install", "--workspace=ai2/test", "--stack=podman")
    assert outcome.code == 0, outcome.err
    stack = outcome.data["stacks"]["podman"]
    assert set(stack["launcher_args"].values()) == {"01A"}
    assert len(stack["reused"]) == 5
    assert [words for words in recorder.words("docker") if words != ["version"]] == []
    assert not any(words[:2] == ["image", "create"] for words in recorder.words("beaker"))


def test_a_dry_run_builds_and_uploads_nothing(install, recorder, state_home: Path) -> None:
    outcome = install("--dry-run")
    assert outcome.code == 0
    assert outcome.data["stacks"]["podman"]["images"]["warmup_image"] == {
        "name": "literegistry-podman-warmup-0-2-21",
        "reused": None,
    }
    assert [words[0] for words in recorder.words("docker")] == ["version"]
    assert not state_home.exists()


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (["--workspace=nowhere"], ["--workspace = 'nowhere': expected owner/name"]),
        ([], ["--workspace is required; give owner/name"]),
        (
            ["--workspace=a/b", "--stack=podman", "--build-local-search"],
            [
                "--build-local-search: only the base stack has a local search image",
                "--build-local-search needs --jtc-build-context; give a JTC checkout",
            ],
        ),
        (
            ["--workspace=a/b", "--jtc-build-context=/tmp"],
            ["--jtc-build-context has no meaning without --build-local-search"],
        ),
        (["--workspace=a/b", "--source-root=/no/such"], ["--source-root = /no/such: no such directory"]),
    ],
)
def test_wrong_arguments_run_nothing(words: list[str], errors: list[str], primebeaker, recorder) -> None:
    outcome = primebeaker("services", "images", "install", *words)
    assert (outcome.code, outcome.out, outcome.errors) == (2, "", errors)
    assert recorder.calls == []


def test_a_listing_checks_its_workspace_too(primebeaker, recorder) -> None:
    outcome = primebeaker("services", "images", "list", "--workspace=nowhere")
    assert (outcome.code, outcome.errors) == (2, ["--workspace = 'nowhere': expected owner/name"])
    assert recorder.calls == []


def test_missing_tools_are_named_together(primebeaker, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = primebeaker("services", "images", "install", "--workspace=a/b")
    assert outcome.code == 3
    assert outcome.errors == ["not on PATH: docker, beaker; install what is missing and try again"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"program": "docker", "match": ["version"], "code": 1, "stderr": "no daemon"}, "docker version: no daemon"),
        ({"match": ["account", "whoami"], "code": 1, "stderr": "no token"}, "beaker account whoami: no token"),
        ({"match": ["account", "whoami"], "stdout": "[]"}, "beaker account whoami: []"),
    ],
)
def test_a_tool_that_does_not_answer_is_shown_with_what_it_said(rule: dict, words: str, primebeaker, recorder) -> None:
    recorder.answer(rule)
    outcome = primebeaker("services", "images", "install", "--workspace=a/b")
    assert outcome.code == 3
    assert words in outcome.errors[0]


@pytest.fixture
def remote(recorder) -> BeakerImages:
    return BeakerImages("beaker", "me", "ai2/test", sleep=lambda _seconds: None)


DOCKER = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("printed", "identifier"),
    [
        ('{"id": "01A"}', "01A"),
        ('[{"image_id": "01A"}]', "01A"),
        ('Pushing 50%\nPushing 100%\n{"imageId": "01A", "owner": {"id": "01U"}}', "01A"),
    ],
)
def test_the_id_is_the_record_s_own_after_any_progress(printed: str, identifier: str, remote, recorder) -> None:
    recorder.answer({"match": ["image", "create"], "stdout": printed})
    assert remote.upload(DOCKER, "n").id == identifier


def test_an_upload_without_an_answer_is_looked_up(remote, recorder) -> None:
    recorder.answer(
        {"match": ["image", "create"], "stdout": "done"}, {"match": ["image", "get", "me/n"], "stdout": _record("01A")}
    )
    assert remote.upload(DOCKER, "n").id == "01A"


def test_a_name_taken_by_another_image_gets_the_digest_added(remote, recorder) -> None:
    recorder.answer(
        {"match": ["image", "create", "--name", "n"], "code": 1, "stderr": "name conflict"},
        {"match": ["image", "get", "me/n"], "stdout": _record("01OTHER", originalTag="sha256:other")},
        {"match": ["image", "create", "--name", "n-abababababab"], "stdout": '{"id": "01B"}'},
    )
    assert remote.upload(DOCKER, "n").id == "01B"


def test_a_taken_longer_name_is_reused(remote, recorder) -> None:
    recorder.answer(
        {"match": ["image", "create"], "code": 1, "stderr": "name conflict"},
        {"match": ["image", "get", "me/n-abababababab"], "stdout": _record("01C")},
    )
    uploaded = remote.upload(DOCKER, "n")
    assert (uploaded.id, uploaded.reused) == ("01C", True)


def test_transient_failures_are_tried_again(remote, recorder) -> None:
    recorder.answer(
        {"match": ["image", "create"], "code": 1, "stderr": "HTTP 503", "times": 2},
        {"match": ["image", "create"], "stdout": '{"id": "01A"}'},
    )
    assert remote.upload(DOCKER, "n").id == "01A"
    assert len(recorder.calls) == 3


def test_a_permanent_failure_is_not_tried_again(remote, recorder) -> None:
    recorder.answer({"match": ["image", "create"], "code": 1, "stderr": "no permission"})
    with pytest.raises(ExternalError, match="no permission"):
        remote.upload(DOCKER, "n")
    assert len(recorder.calls) == 1


@pytest.mark.parametrize(
    "record",
    [
        {"id": "01A", "workspaceRef": {"fullName": "ai2/test"}, "committed": "0001-01-01T00:00:00Z"},
        {"id": "01A", "workspaceRef": {"fullName": "ai2/test"}},
        {"id": "01A", "workspaceRef": {"fullName": "ai2/other"}, "committed": "2026-01-02T00:00:00Z"},
        {"owner": {"id": "01U"}, "workspaceRef": {"fullName": "ai2/test"}, "committed": "2026-01-02T00:00:00Z"},
        None,
    ],
)
def test_only_a_finished_image_of_the_workspace_counts(record: dict | None) -> None:
    assert committed_in(record, "ai2/test") is None


def _archive(path: Path, members: list[tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../evil"),
        _member("root/../../evil"),
        _member("/evil"),
        _member("root/link", tarfile.SYMTYPE, "../../evil"),
        _member("root/link", tarfile.SYMTYPE, "/etc/passwd"),
        _member("root/device", tarfile.CHRTYPE),
        _member("second/file"),
    ],
    ids=lambda member: member.name,
)
def test_a_hostile_archive_is_refused(member: tarfile.TarInfo, tmp_path: Path) -> None:
    archive = _archive(tmp_path / "a.tar.gz", [_member("root/file"), member])
    with pytest.raises(ExternalError, match=r"a\.tar\.gz is refused"):
        unpack(archive, tmp_path / "in" if (tmp_path / "in").mkdir() else tmp_path / "in" / "target")
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "in" / "evil").exists()
    assert not Path("/evil").exists()


def test_an_ordinary_archive_is_unpacked_into_a_private_folder(tmp_path: Path) -> None:
    folder = unpack(_archive(tmp_path / "a.tar.gz", [_member("root/file")]), tmp_path / "target")
    assert (folder / "file").read_bytes() == b"x"
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o700


def test_an_archive_of_too_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primebeaker.services.images.sources._MOST_MEMBERS", 2)
    archive = _archive(tmp_path / "a.tar.gz", [_member(f"root/{number}") for number in range(3)])
    with pytest.raises(ExternalError, match="more than 2 members"):
        unpack(archive, tmp_path / "target")


def test_a_python_without_pip_is_told_the_way_out(
    primebeaker, recorder, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    outcome = primebeaker("services", "images", "install", "--workspace=ai2/test", "--stack=podman")
    assert outcome.code == 3
    assert outcome.data["failed"]["step"] == "download"
    assert "has no pip" in outcome.errors[0]
    assert "--source-root" in outcome.errors[0]
    assert os.listdir(os.environ["TMPDIR"]) == []


def test_a_person_gets_the_flags_to_paste(install, recorder) -> None:
    recorder.answer(*_uploads())
    shown = install("--format=text").out
    assert "--redis-image=010" in shown
    assert "--warmup-image=014" in shown


def test_a_second_installation_waits_and_says_so(state_home: Path) -> None:
    said: list[str] = []
    code = (
        "import sys, time\n"
        "from primebeaker.services.images.state import locked_state\n"
        "with locked_state('a/b', print):\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"

        def say(line: str) -> None:
            said.append(line)
            other.stdin.close()

        with locked_state("a/b", say):
            assert len(said) == 1
            assert "another installation into a/b is running" in said[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_build_and_removes_the_work_folder(
    number: int, recorder, checkout: Path, state_home: Path, tmp_path: Path
) -> None:
    recorder.answer({"program": "docker", "match": ["build"], "hang": 600})
    words = ["services", "images", "install", "--workspace=ai2/test", "--stack=podman", f"--source-root={checkout}"]
    with subprocess.Popen(
        [sys.executable, "-m", "primebeaker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        while not any(call["argv"][0] == "build" for call in recorder.calls):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == b""
    assert list((tmp_path / "tmp").iterdir()) == []


def test_listing_builds_nothing_and_shows_ids_where_asked(primebeaker, recorder) -> None:
    rows = primebeaker("services", "images", "list").data
    assert len(rows) == 10
    assert recorder.calls == []
    assert rows[0] == {
        "stack": "base",
        "distribution": "literegistry-base-deployment",
        "version": rows[0]["version"],
        "argument": "redis_image",
        "image": f"literegistry-redis-base-{rows[0]['version'].replace('.', '-')}",
    }
    recorder.answer({"match": ["image", "get", f"me/{rows[0]['image']}"], "stdout": _record("01A")})
    with_ids = primebeaker("services", "images", "list", "--workspace=ai2/test").data
    assert [row["id"] for row in with_ids[:2]] == ["01A", None]
