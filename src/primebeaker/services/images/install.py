"""The installation: plan, download, build, identify, upload; what has succeeded is never lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primebeaker.beaker.executable import BINARY_VARIABLE
from primebeaker.beaker.parse import parse_json, single
from primebeaker.beaker.process import run
from primebeaker.errors import ExternalError, Mistakes, UserError
from primebeaker.services.detached import ending_on_signals
from primebeaker.services.images.remote import BeakerImages
from primebeaker.services.images.sources import Source, checkout_source, download_source, version_notes
from primebeaker.services.images.state import locked_state, write_state
from primebeaker.services.images.table import StackImage, stack_images
from primebeaker.services.images.tools import stream
from primebeaker.services.stacks import STACKS, Stack, installed_version

__all__ = [
    "InstallRequest",
    "Installation",
    "StepFailed",
    "check_request",
    "check_workspace",
    "install_images",
    "open_images",
]

_READ_SECONDS = 60.0
_DOCKER_ID = re.compile(r"sha256:[0-9a-f]{64}")
# With an empty first argument the build script falls back to these, and an old local image would be uploaded.
_REMOVED = ("IMAGE_REPOSITORY", "IMAGE_TAG")


@dataclass(frozen=True)
class InstallRequest:
    """What to install.

    Args:
        workspace: Beaker workspace, ``owner/name``.
        stack: ``all``, ``base`` or ``podman``.
        docker: Docker-compatible executable, a name or a path.
        pull_bases: Refresh the base images.
        source_root: A LiteRegistry checkout to build from instead of downloading.
        build_local_search: Also build the BM25 image (base stack).
        jtc_build_context: The JTC checkout for it.
        force: Build and upload even what the workspace already has.
        dry_run: Only say what would be done.
        keep_work: Keep the temporary folder.
    """

    workspace: str
    stack: str = "all"
    docker: str = "docker"
    pull_bases: bool = True
    source_root: Path | None = None
    build_local_search: bool = False
    jtc_build_context: Path | None = None
    force: bool = False
    dry_run: bool = False
    keep_work: bool = False

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks chosen."""
        return tuple(STACKS.values()) if self.stack == "all" else (STACKS[self.stack],)


class StepFailed(ExternalError):
    """One step of one stack failed; what had succeeded before stays."""

    def __init__(self, stack: str, image: str | None, step: str, message: str) -> None:
        self.failure = {"stack": stack, "image": image, "step": step, "message": message}
        place = f"{stack}: {image}" if image else stack
        super().__init__(f"{place}: {step} failed: {message}")


@dataclass
class Installation:
    """The result, complete or not."""

    document: dict[str, Any]
    failures: list[StepFailed] = field(default_factory=list)


@dataclass(frozen=True)
class _Plan:
    """One stack's part."""

    stack: Stack
    version: str
    images: tuple[StackImage, ...]
    checkout: Source | None
    #: Launcher argument -> ID of an image the workspace already has.
    present: dict[str, str]

    @property
    def complete(self) -> bool:
        """Whether nothing has to be built."""
        return self.checkout is None and len(self.present) == len(self.images)


def check_request(request: InstallRequest) -> None:
    """Check the arguments before anything runs.

    Raises:
        UserError: Independent mistakes are reported together.
    """
    mistakes = Mistakes()
    with mistakes.collect():
        check_workspace(request.workspace)
    if request.stack not in ("all", *STACKS):
        mistakes.add(UserError(f"--stack = {request.stack!r}: expected all, {' or '.join(STACKS)}"))
    context = request.jtc_build_context
    if request.build_local_search and request.stack == "podman":
        mistakes.add(UserError("--build-local-search: only the base stack has a local search image"))
    if request.build_local_search and context is None:
        mistakes.add(UserError("--build-local-search needs --jtc-build-context", hint="give a JTC checkout"))
    if not request.build_local_search and context is not None:
        mistakes.add(UserError("--jtc-build-context has no meaning without --build-local-search"))
    if request.build_local_search and context is not None and not (context / "search").is_dir():
        mistakes.add(UserError(f"--jtc-build-context = {context}: expected a JTC checkout with search/"))
    if request.source_root is not None and not request.source_root.is_dir():
        mistakes.add(UserError(f"--source-root = {request.source_root}: no such directory"))
    mistakes.raise_if_any()


def check_workspace(workspace: str) -> None:
    """Check the form of a workspace's name.

    Raises:
        UserError: It is not ``owner/name``.
    """
    if not re.fullmatch(r"[^\s/]+/[^\s/]+", workspace):
        raise UserError(f"--workspace = {workspace!r}: expected owner/name")


def open_images(workspace: str, docker: str | None = None) -> BeakerImages:
    """The workspace's images, once ``beaker`` (and ``docker``) are there and answer.

    Raises:
        ExternalError: A tool is missing, the daemon does not run, or nobody is logged in.
    """
    beaker = os.environ.get(BINARY_VARIABLE) or "beaker"
    missing = [tool for tool in (docker, beaker) if tool and shutil.which(tool) is None]
    if missing:
        raise ExternalError(f"not on PATH: {', '.join(missing)}", hint="install what is missing and try again")
    if docker is not None:
        version = run([docker, "version"], timeout=_READ_SECONDS)
        if version.code != 0:
            raise ExternalError(f"{docker} version: {version.message}", hint="start the Docker daemon")
    account = run([beaker, "account", "whoami", "--format", "json"], timeout=_READ_SECONDS)
    try:
        name = single(parse_json(account.stdout)).get("name") if account.code == 0 else None
    except ValueError:
        name = None
    if not isinstance(name, str) or not name:
        raise ExternalError(
            f"beaker account whoami: {account.message or 'no account name'}", hint="log in with `beaker account login`"
        )
    return BeakerImages(beaker, name, workspace)


def install_images(
    request: InstallRequest,
    say: Callable[[str], None],
    *,
    images: BeakerImages | None = None,
) -> Installation:
    """Install the images of the chosen stacks.

    Args:
        request: What to install.
        say: Told about progress, one line at a time.
        images: The workspace's images; by default looked up with the ``beaker`` program.

    Returns:
        The result; a stack that failed is in its ``failures``.

    Raises:
        UserError: An argument is wrong or a distribution is not installed; nothing has run.
        ExternalError: A tool is missing or does not answer.
    """
    check_request(request)
    remote = images or open_images(request.workspace, request.docker)
    notes: list[str] = []
    plans = [_plan(stack, request, remote, notes) for stack in request.stacks]
    result = Installation({"workspace": request.workspace, "stacks": {}, "notes": notes})
    if request.dry_run:
        result.document["dry_run"] = True
        result.document["stacks"] = {plan.stack.name: _planned(plan) for plan in plans}
        return result
    with ending_on_signals(), locked_state(request.workspace, say) as state, _work_folder(request, say) as work:
        for plan in plans:
            try:
                _install_stack(plan, request, remote, work / plan.stack.name, result, state, say)
            except StepFailed as failed:
                result.failures.append(failed)
    failures = [failed.failure for failed in result.failures]
    if failures:
        result.document["failed"] = failures if request.stack == "all" else failures[0]
        write_state(state, result.document, say)
    return result


def _plan(stack: Stack, request: InstallRequest, remote: BeakerImages, notes: list[str]) -> _Plan:
    checkout = None
    try:
        version = installed_version(stack)
    except UserError:
        if request.source_root is None:
            raise
        version = ""
    if request.source_root is not None:
        checkout = checkout_source(stack, request.source_root)
        if version != checkout.version:
            notes.append(
                f"{stack.name}: the checkout is {checkout.version}, installed is {version or 'none'}; "
                "the launcher and its images may not match"
            )
        version = checkout.version
    wanted = stack_images(stack.name, local_search=request.build_local_search)
    present = {}
    if not request.force:
        found = {image.argument: remote.present(image.name(version)) for image in wanted}
        present = {argument: identifier for argument, identifier in found.items() if identifier is not None}
    return _Plan(stack, version, wanted, checkout, present)


def _planned(plan: _Plan) -> dict[str, Any]:
    source = plan.checkout.document() if plan.checkout else {"kind": "none" if plan.complete else "sdist"}
    reusable = plan.present if plan.checkout is None else {}
    return {
        "distribution": plan.stack.distribution,
        "version": plan.version,
        "source": source,
        "images": {
            image.argument: {"name": image.name(plan.version), "reused": reusable.get(image.argument)}
            for image in plan.images
        },
    }


def _install_stack(
    plan: _Plan,
    request: InstallRequest,
    remote: BeakerImages,
    work: Path,
    result: Installation,
    state: Path,
    say: Callable[[str], None],
) -> None:
    ids: dict[str, str] = {}
    reused: list[str] = []
    entry: dict[str, Any] = {
        "distribution": plan.stack.distribution,
        "version": plan.version,
        "source": {"kind": "none"},
        "launcher_args": ids,
        "reused": reused,
    }
    result.document["stacks"][plan.stack.name] = entry

    def keep(image: StackImage, identifier: str, *, known: bool) -> None:
        ids[image.argument] = identifier
        if known:
            reused.append(image.argument)
        say(f"{image.argument}={identifier}{' (reused)' if known else ''}")
        write_state(state, result.document, say)

    if plan.complete:
        for image in plan.images:
            keep(image, plan.present[image.argument], known=True)
        return
    source = _source(plan, work)
    entry["source"] = source.document()
    result.document["notes"] += version_notes(plan.stack, source)
    _build(plan, request, source)
    for image in plan.images:
        if plan.checkout is None and image.argument in plan.present:
            keep(image, plan.present[image.argument], known=True)
            continue
        docker_id = _identify(plan, request, image)
        try:
            uploaded = remote.upload(docker_id, image.name(plan.version))
        except ExternalError as error:
            raise StepFailed(plan.stack.name, image.argument, "upload", error.message) from error
        keep(image, uploaded.id, known=uploaded.reused)


def _source(plan: _Plan, work: Path) -> Source:
    if plan.checkout is not None:
        return plan.checkout
    work.mkdir(parents=True)
    try:
        return download_source(plan.stack, plan.version, work)
    except ExternalError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise StepFailed(plan.stack.name, None, "download", f"{error.message}{hint}") from error


def _build(plan: _Plan, request: InstallRequest, source: Source) -> None:
    local_search = request.build_local_search and plan.stack.name == "base"
    environment = {name: value for name, value in os.environ.items() if name not in _REMOVED}
    environment |= {
        # The script runs in another folder.
        "DOCKER_BIN": str(Path(request.docker).absolute()) if os.sep in request.docker else request.docker,
        "PULL_BASES": "1" if request.pull_bases else "0",
        # Nothing may be pushed to a Docker registry.
        "PUSH_IMAGES": "0",
        "BUILD_LOCAL_SEARCH": "1" if local_search else "0",
    }
    if local_search and request.jtc_build_context is not None:
        environment["JTC_BUILD_CONTEXT"] = str(request.jtc_build_context.absolute())
    ended = stream(["bash", str(source.script), "", plan.version], directory=source.folder, environment=environment)
    if ended.code != 0:
        raise StepFailed(plan.stack.name, None, "build", ended.message)


def _identify(plan: _Plan, request: InstallRequest, image: StackImage) -> str:
    tag = image.local_tag(plan.version)
    answer = run([request.docker, "image", "inspect", "--format", "{{.Id}}", tag], timeout=_READ_SECONDS)
    identifier = answer.stdout.strip()
    if answer.code != 0 or not _DOCKER_ID.fullmatch(identifier):
        detail = answer.message or "no answer"
        raise StepFailed(plan.stack.name, image.argument, "inspect", f"{tag}: {detail}")
    return identifier


@contextlib.contextmanager
def _work_folder(request: InstallRequest, say: Callable[[str], None]) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="primebeaker-images-"))
    try:
        yield work
    finally:
        if request.keep_work:
            say(f"work folder kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
