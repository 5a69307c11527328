"""``primebeaker services images``: build the stacks' images and import them into a Beaker workspace."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean, choice, path, text
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.run import report
from primebeaker.errors import ExternalError, UserError
from primebeaker.services.images.install import (
    Installation,
    InstallRequest,
    check_workspace,
    install_images,
    open_images,
)
from primebeaker.services.images.listing import list_images

__all__ = ["app"]

app = new_app("images", "Build the stacks' images and import them into Beaker.")


@dataclass(kw_only=True)
class InstallOptions(OutputOptions):
    """The flags of ``images install``."""

    workspace: Annotated[str | None, text("Beaker workspace, owner/name.", default="required")] = None
    stack: Annotated[str, choice("Which images.", ("all", "base", "podman"), default="all")] = "all"
    docker_bin: Annotated[str, text("Docker-compatible executable.", default="docker")] = "docker"
    pull_bases: Annotated[bool, boolean("Refresh the base images.", name="pull-bases")] = True
    source_root: Annotated[Path | None, path("LiteRegistry checkout to build from instead of downloading.")] = None
    build_local_search: Annotated[bool, boolean("Also build the BM25 image.", name="build-local-search")] = False
    jtc_build_context: Annotated[Path | None, path("JTC checkout with search/, for the BM25 image.")] = None
    force: Annotated[bool, boolean("Build and upload what the workspace already has.", name="force")] = False
    dry_run: Annotated[bool, boolean("Only print the plan.", name="dry-run")] = False
    keep_work: Annotated[bool, boolean("Keep the temporary folder.", name="keep-work")] = False


@app.command
def install(options: Annotated[InstallOptions | None, Parameter(name="*")] = None) -> Result:
    """Build the official images of the installed companions and upload them; run again to continue."""
    options = options or InstallOptions()
    if options.workspace is None:
        raise UserError("--workspace is required", hint="give owner/name")
    request = InstallRequest(
        workspace=options.workspace,
        stack=options.stack,
        docker=options.docker_bin,
        pull_bases=options.pull_bases,
        source_root=options.source_root,
        build_local_search=options.build_local_search,
        jtc_build_context=options.jtc_build_context,
        force=options.force,
        dry_run=options.dry_run,
        keep_work=options.keep_work,
    )
    installed = install_images(request, _say)
    warn(installed.document["notes"])
    for failure in installed.failures:
        report(failure)
    code = ExternalError.exit_code if installed.failures else 0
    return Result(installed.document, text=lambda: _text(installed), exit_code=code)


@dataclass(kw_only=True)
class ListOptions(OutputOptions):
    """The flags of ``images list``."""

    workspace: Annotated[str | None, text("Also look the IDs up in this workspace.")] = None


@app.command(name="list")
def list_command(options: Annotated[ListOptions | None, Parameter(name="*")] = None) -> Result:
    """Print the images of the installed companions. Builds nothing."""
    options = options or ListOptions()
    images = None
    if options.workspace is not None:
        check_workspace(options.workspace)
        try:
            images = open_images(options.workspace)
        except ExternalError as error:
            warn([f"image IDs are left out: {error}"])
    rows = list_images(images)
    return Result(rows, text=lambda: "\n".join("  ".join(str(value) for value in row.values()) for row in rows))


def _say(line: str) -> None:
    sys.stderr.write(f"primebeaker: {line}\n")
    sys.stderr.flush()


def _text(installed: Installation) -> str:
    stacks: dict[str, Any] = installed.document["stacks"]
    lines = [json.dumps(installed.document, indent=2, ensure_ascii=False)]
    for name, stack in stacks.items():
        flags = [
            f"--{argument.replace('_', '-')}={value}" for argument, value in stack.get("launcher_args", {}).items()
        ]
        lines += [f"{name}: {' '.join(flags)}"] if flags else []
    return "\n".join(lines)
