"""Build a training image from this checkout: a Docker context of tracked files only, and one ``docker build``."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from primebeaker.errors import ExternalError, UserError

__all__ = ["BuildRequest", "Ended", "build_image", "docker_id"]

_DOCKER_ID = re.compile(r"sha256:[0-9a-f]{64}")


class Ended(Protocol):
    """How a program ended, as the caller's way of running one reports it."""

    @property
    def code(self) -> int:
        """Its exit code."""
        ...

    @property
    def stdout(self) -> str:
        """All of its stdout."""
        ...

    @property
    def message(self) -> str:
        """What it had to say at its end."""
        ...


#: Runs a program to its end with its output passed on.
Run = Callable[[Sequence[str]], Ended]


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build.

    Args:
        kind: ``runtime`` (this checkout on a base image) or ``full`` (also the sources of a Prime-RL checkout).
        base_image: Docker reference of the base.
        tag: Tag of the result.
        source: A checkout of this project.
        prime_rl: A checkout of Prime-RL, for ``full``.
        docker: Docker-compatible executable.
        platform: Docker platform.
        allow_dirty: Build with uncommitted changes (of tracked files).
    """

    kind: Literal["runtime", "full"]
    base_image: str
    tag: str
    source: Path
    prime_rl: Path | None = None
    docker: str = "docker"
    platform: str | None = None
    allow_dirty: bool = False


def build_image(request: BuildRequest, run: Run, warn: Callable[[str], None]) -> dict[str, Any]:
    """Build the image and return its description.

    Args:
        request: What to build.
        run: Runs a program and passes its output on.
        warn: Takes one warning.

    Raises:
        UserError: A checkout is missing or has uncommitted changes, or flags contradict each other.
        ExternalError: Docker is missing or the build failed.
    """
    sources = _sources(request)
    revisions = {name: _revision(path, allow_dirty=request.allow_dirty) for name, path in sources.items()}
    name, _, version = request.base_image.rpartition("/")[2].partition(":")
    if "@sha256:" not in request.base_image and version in ("", "latest"):
        warn(f"--base-image = {request.base_image}: {name} without a fixed tag may be another image tomorrow")
    with tempfile.TemporaryDirectory(prefix="primebeaker-image-") as work:
        context = Path(work)
        for label, path in sources.items():
            _copy_tracked(path, context / label if request.kind == "full" else context)
        package = context / "primebeaker" if request.kind == "full" else context
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        arguments = {
            "BASE_IMAGE": request.base_image,
            "PRIMEBEAKER_VERSION": project["version"],
            "PRIMEBEAKER_REVISION": revisions["primebeaker"],
            **({"PRIME_RL_REVISION": revisions["prime-rl"]} if "prime-rl" in revisions else {}),
        }
        words = [
            request.docker,
            "build",
            *(word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")),
            *(["--platform", request.platform] if request.platform else []),
            "--file",
            str(package / "src" / "primebeaker" / "images" / f"Dockerfile.{request.kind}"),
            "--tag",
            request.tag,
            str(context),
        ]
        ended = run(words)
        if ended.code:
            raise ExternalError(f"{request.docker} build failed with {ended.code}: {ended.message}")
    return {
        "tag": request.tag,
        "docker_id": docker_id(request.docker, request.tag, run),
        "kind": request.kind,
        "base_image": request.base_image,
        "revisions": revisions,
    }


def docker_id(docker: str, tag: str, run: Run) -> str:
    """The id of a local image.

    Raises:
        ExternalError: There is none of this tag, or Docker's answer is no id.
    """
    ended = run([docker, "image", "inspect", "--format", "{{.Id}}", tag])
    found = ended.stdout.strip()
    if ended.code or not _DOCKER_ID.fullmatch(found):
        raise ExternalError(f"{docker} knows no image {tag}: {ended.message}")
    return found


def _sources(request: BuildRequest) -> dict[str, Path]:
    if (request.kind == "full") != (request.prime_rl is not None):
        if request.kind == "full":
            raise UserError("--kind=full needs --prime-rl", hint="pass a checkout of Prime-RL")
        raise UserError("--prime-rl has no meaning with --kind=runtime", hint="leave it out, or use --kind=full")
    sources = {"primebeaker": request.source, **({"prime-rl": request.prime_rl} if request.prime_rl else {})}
    for name, path in sources.items():
        flag = "--source" if name == "primebeaker" else "--prime-rl"
        if not (path / ".git").exists():
            raise UserError(f"{flag} = {path}: expected a Git checkout")
    return sources


def _git(path: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(path), *words], capture_output=True, check=True, timeout=120, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise ExternalError("git is not on PATH") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        message = " ".join((error.stderr or b"").decode(errors="replace").split())
        raise ExternalError(f"git {words[0]} failed in {path}: {message or error}") from error
    return done.stdout.decode(errors="surrogateescape")


def _revision(path: Path, *, allow_dirty: bool) -> str:
    if not allow_dirty:
        changed = _git(path, "status", "--porcelain", "--untracked-files=no").splitlines()
        if changed:
            raise UserError(
                f"{path} has uncommitted changes: {', '.join(line[3:] for line in changed[:5])}",
                hint="commit them, or pass --allow-dirty",
            )
    return _git(path, "rev-parse", "HEAD").strip()


def _copy_tracked(path: Path, target: Path) -> None:
    """Copy only what Git tracks, submodules included: no untracked key or data file can enter a layer."""
    for name in _git(path, "ls-files", "-z", "--recurse-submodules").split("\0"):
        source = path / name
        if not name or not (source.is_file() or source.is_symlink()):
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place, follow_symlinks=False)
