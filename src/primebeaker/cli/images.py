"""``primebeaker-images``: list, inspect, pull, build and publish training images."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from primebeaker.cli.flags import boolean, choice, path, text
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.run import run
from primebeaker.errors import ExternalError, UserError
from primebeaker.images import default_image_uri, load_catalog

__all__ = ["app", "main"]

app = App(
    name="primebeaker-images",
    help="List, inspect, pull, build and publish training images.",
    version_flags=(),
    result_action="return_value",
    help_format="plaintext",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run(app, sys.argv[1:] if words is None else words)


@dataclass(kw_only=True)
class ListOptions(OutputOptions):
    """The flags of ``list``."""

    role: Annotated[str | None, text("Only this role.", default="the training base")] = None
    workspace: Annotated[str | None, text("Only this workspace.", default="all")] = None
    all: Annotated[bool, boolean("Every role.", name="all")] = False


@app.command(name="list")
def list_(options: Annotated[ListOptions | None, Parameter(name="*")] = None) -> Result:
    """List the catalogued images."""
    options = options or ListOptions()
    catalog = load_catalog()
    if options.all and options.role is not None:
        raise UserError("--all and --role contradict each other", hint="keep one of them")
    found = (
        [location for role in catalog.roles for location in catalog.locations(role)]
        if options.all
        else catalog.locations(options.role)
    )
    rows = [one.as_dict() for one in found if options.workspace in (None, one.workspace)]
    return Result(
        rows, text=lambda: "\n".join(f"{row['immutable_uri']}  {row['workspace']}  {row['name']}" for row in rows)
    )


@dataclass(kw_only=True)
class ImageOptions(OutputOptions):
    """Which image."""

    workspace: Annotated[str | None, text("The image this workspace trains on.", default="the first of all")] = None
    image: Annotated[str | None, text("This image, beaker://ID.", default="catalogued")] = None

    def identifier(self) -> str:
        """What ``beaker image`` calls it."""
        if self.image is not None and self.workspace is not None:
            raise UserError("--image and --workspace contradict each other", hint="keep one of them")
        image = default_image_uri(self.workspace) if self.image is None else self.image
        if not image.startswith("beaker://") or not image.removeprefix("beaker://"):
            raise UserError(f"--image = {image!r}: expected a Beaker image, beaker://ID")
        return image.removeprefix("beaker://")


@app.command
def inspect(options: Annotated[ImageOptions | None, Parameter(name="*")] = None) -> int:
    """Show what Beaker knows about an image."""
    from primebeaker.beaker.executable import find_beaker

    identifier = (options or ImageOptions()).identifier()
    return _pass_through([find_beaker(), "image", "inspect", identifier, "--format", "json"])


@dataclass(kw_only=True)
class PullOptions(ImageOptions):
    """The flags of ``pull``."""

    tag: Annotated[str | None, text("Local tag of the pulled image (required).")] = None


@app.command
def pull(options: Annotated[PullOptions | None, Parameter(name="*")] = None) -> int:
    """Pull an image from Beaker into Docker."""
    from primebeaker.beaker.executable import find_beaker

    options = options or PullOptions()
    tag = _needed("--tag", options.tag)
    identifier = options.identifier()
    program = find_beaker()
    _check_docker("docker")
    return _pass_through([program, "image", "pull", identifier, tag])


@dataclass(kw_only=True)
class BuildOptions(OutputOptions):
    """The flags of ``build``."""

    kind: Annotated[str | None, choice("What to build (required).", ("runtime", "full"))] = None
    base_image: Annotated[str | None, text("Docker reference of the base image (required).")] = None
    tag: Annotated[str | None, text("Tag of the result (required).")] = None
    source: Annotated[Path | None, path("Checkout of this project.", default=".")] = None
    prime_rl: Annotated[Path | None, path("Checkout of Prime-RL, for --kind=full.")] = None
    docker_bin: Annotated[str, text("Docker-compatible executable.", default="docker")] = "docker"
    platform: Annotated[str | None, text("Docker platform.", default="Docker's own")] = None
    allow_dirty: Annotated[bool, boolean("Build with uncommitted changes.", name="allow-dirty")] = False


@app.command
def build(options: Annotated[BuildOptions | None, Parameter(name="*")] = None) -> Result:
    """Build an image from the tracked files of a checkout."""
    from primebeaker.images.build import BuildRequest, build_image
    from primebeaker.services.detached import ending_on_signals
    from primebeaker.services.images.tools import stream

    options = options or BuildOptions()
    kind: Any = _needed("--kind", options.kind)
    request = BuildRequest(
        kind=kind,
        base_image=_needed("--base-image", options.base_image),
        tag=_needed("--tag", options.tag),
        source=options.source or Path.cwd(),
        prime_rl=options.prime_rl,
        docker=options.docker_bin,
        platform=options.platform,
        allow_dirty=options.allow_dirty,
    )
    with ending_on_signals():
        return Result(build_image(request, stream, lambda warning: warn([warning])))


@dataclass(kw_only=True)
class PublishOptions(OutputOptions):
    """The flags of ``publish``."""

    tag: Annotated[str | None, text("Local image (required).")] = None
    name: Annotated[str | None, text("Name on Beaker (required).")] = None
    workspace: Annotated[str | None, text("Beaker workspace, owner/name (required).")] = None
    role: Annotated[str | None, text("Role in the catalogue.", default="the catalogue's default")] = None
    catalog: Annotated[Path | None, path("Catalogue file to add the entry to.", default="none")] = None
    make_default: Annotated[bool, boolean("Make it the workspace's default in the catalogue.", name="make-default")] = (
        False
    )
    docker_bin: Annotated[str, text("Docker-compatible executable.", default="docker")] = "docker"


@app.command
def publish(options: Annotated[PublishOptions | None, Parameter(name="*")] = None) -> Result:
    """Import a local image into Beaker and print its catalogue entry."""
    from primebeaker.beaker.executable import BeakerExecutable, find_beaker
    from primebeaker.images.build import docker_id
    from primebeaker.images.publish import add_location, check_catalog, publish_image
    from primebeaker.services.detached import ending_on_signals
    from primebeaker.services.images.remote import BeakerImages
    from primebeaker.services.images.tools import stream

    options = options or PublishOptions()
    tag, name = _needed("--tag", options.tag), _needed("--name", options.name)
    workspace = _needed("--workspace", options.workspace)
    if options.make_default and options.catalog is None:
        raise UserError("--make-default has no meaning without --catalog", hint="pass --catalog")
    if options.catalog is not None:
        # Before anything is uploaded.
        check_catalog(options.catalog, options.role)
    remote = BeakerImages(find_beaker(), BeakerExecutable().whoami().name, workspace)
    with ending_on_signals():
        local = docker_id(options.docker_bin, tag, stream)
        location = publish_image(lambda: remote.upload(local, name).id, remote.record)
    if options.catalog is not None and not add_location(
        options.catalog, location, role=options.role, make_default=options.make_default
    ):
        warn([f"{options.catalog}: {location['immutable_uri']} is listed already; nothing was changed"])
    return Result(location)


def _needed(flag: str, value: str | None) -> str:
    if not value:
        raise UserError(f"{flag} is missing")
    return value


def _check_docker(program: str) -> None:
    from primebeaker.beaker.process import run as run_program

    result = run_program([program, "version"], timeout=60)
    if result.code != 0:
        raise ExternalError(f"{program} version failed: {result.message}", hint="start the Docker daemon")


def _pass_through(argv: Sequence[str]) -> int:
    """Run a program whose output is the result; a failure of it is one more line."""
    from primebeaker.beaker.process import run_attached

    code = run_attached(argv)
    if code:
        raise ExternalError(f"{' '.join(argv)} ended with {code}")
    return 0
