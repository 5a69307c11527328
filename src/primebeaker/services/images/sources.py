"""The source folder of a companion: its exact source distribution, or a checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from primebeaker.errors import ExternalError, UserError
from primebeaker.services.images.tools import stream
from primebeaker.services.stacks import Stack

__all__ = ["Source", "checkout_source", "download_source", "version_notes"]

_MOST_MEMBERS = 20_000
_MOST_BYTES = 2 * 1024**3
_SCRIPT = Path("scripts/build-images.sh")
_VERSION_ARGUMENT = re.compile(r"^ARG\s+([A-Z_]+_VERSION)=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A folder to build from.

    Args:
        folder: Holds ``scripts/build-images.sh`` and ``docker/``.
        version: What is built.
        sha256: Of the source archive; None for a checkout.
    """

    folder: Path
    version: str
    sha256: str | None = None

    @property
    def script(self) -> Path:
        """The companion's own build script."""
        return self.folder / _SCRIPT

    def document(self) -> dict[str, str]:
        """Where the source is from, for the result."""
        if self.sha256 is not None:
            return {"kind": "sdist", "sha256": self.sha256}
        return {"kind": "checkout", "path": str(self.folder)}


def checkout_source(stack: Stack, root: Path) -> Source:
    """The companion's folder in a LiteRegistry checkout, or the companion's folder itself.

    Raises:
        UserError: There is no such folder, or it lacks the build script, ``docker/`` or a version.
    """
    folder = root / stack.module
    if root.name == stack.module or _project(root).get("name") == stack.distribution:
        folder = root
    flag = "--source-root"
    for needed in (folder / _SCRIPT, folder / "docker"):
        if not needed.exists():
            raise UserError(f"{root}: {needed} does not exist", key=flag, hint=f"give a checkout with {stack.module}/")
    version = _project(folder).get("version")
    if not isinstance(version, str) or not version:
        raise UserError(f"{folder / 'pyproject.toml'} has no [project].version", key=flag)
    return Source(folder.absolute(), version)


def _project(folder: Path) -> dict[str, object]:
    try:
        return dict(tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get("project", {}))
    except (OSError, ValueError):
        return {}


def download_source(stack: Stack, version: str, work: Path) -> Source:
    """Download and unpack the source distribution of exactly this version.

    Args:
        stack: Whose distribution.
        version: The installed version.
        work: A private folder.

    Raises:
        ExternalError: pip is missing or fails, or the archive is not a safe source distribution.
    """
    if importlib.util.find_spec("pip") is None:
        raise ExternalError(
            f"{sys.executable} has no pip to download {stack.distribution} with",
            hint="install pip there, or build from a checkout with --source-root",
        )
    downloads = work / "downloads"
    downloads.mkdir(parents=True)
    # Only this distribution is taken as source: its build tools may come as wheels.
    words = ["download", "--no-deps", "--no-binary", stack.distribution, "--dest", str(downloads)]
    ended = stream([sys.executable, "-m", "pip", *words, f"{stack.distribution}=={version}"])
    if ended.code != 0:
        raise ExternalError(f"pip could not download {stack.distribution}=={version}: {ended.message}")
    archives = sorted(downloads.glob("*.tar.gz"))
    if len(archives) != 1:
        raise ExternalError(
            f"expected one .tar.gz of {stack.distribution}=={version}, pip brought "
            f"{', '.join(path.name for path in sorted(downloads.iterdir())) or 'nothing'}"
        )
    digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    folder = unpack(archives[0], work / "source")
    for needed in (folder / _SCRIPT, folder / "docker"):
        if not needed.exists():
            raise ExternalError(f"{archives[0].name} holds no {needed.relative_to(folder)}")
    return Source(folder, version, digest)


def unpack(archive: Path, target: Path) -> Path:
    """Unpack an archive of one root folder; nothing may lead outside of it.

    Raises:
        ExternalError: An absolute path, ``..``, an outward link, a device, too much, or not one root folder.
    """
    target.mkdir(mode=0o700)
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(target, members=_bounded(opened, archive), filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ExternalError(f"{archive.name} is refused: {error}") from error
    roots = list(target.iterdir())
    if len(roots) != 1 or not roots[0].is_dir():
        raise ExternalError(f"{archive.name} is refused: expected one root folder, found {len(roots)}")
    return roots[0]


def _bounded(opened: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    size = 0
    for count, member in enumerate(opened, 1):
        size += member.size
        if count > _MOST_MEMBERS or size > _MOST_BYTES:
            raise ExternalError(
                f"{archive.name} is refused: more than {_MOST_MEMBERS:,} members or {_MOST_BYTES // 1024**3} GiB"
            )
        # The data filter would strip a leading slash instead of refusing it.
        if member.name.startswith(("/", "\\")) or ".." in Path(member.name).parts:
            raise ExternalError(f"{archive.name} is refused: {member.name!r} leads outside")
        yield member


def version_notes(stack: Stack, source: Source) -> list[str]:
    """Versions that the images will hold and that differ from what is installed here."""
    try:
        literegistry: str | None = metadata.version("literegistry")
    except metadata.PackageNotFoundError:
        literegistry = None
    expected = {"LITEREGISTRY_VERSION": literegistry, "PODMAN_BEAKER_VERSION": source.version}
    found: dict[tuple[str, str], list[str]] = {}
    for dockerfile in sorted((source.folder / "docker").glob("Dockerfile*")):
        for argument, version in _VERSION_ARGUMENT.findall(dockerfile.read_text("utf-8", "replace")):
            if expected.get(argument) not in (None, version):
                found.setdefault((argument, version), []).append(dockerfile.name)
    names = {"LITEREGISTRY_VERSION": "literegistry", "PODMAN_BEAKER_VERSION": stack.distribution}
    return [
        f"{stack.name}: {', '.join(files)} install {names[argument]} {version}, here it is {expected[argument]}"
        for (argument, version), files in found.items()
    ]
