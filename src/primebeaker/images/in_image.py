"""Checks that run while an image is built, inside it: ``python3 in_image.py constraints|versions|verify …``.

The standard library alone, since it is copied into the build before anything of ours is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

__all__ = ["gpu_versions", "main", "merge_constraints", "verify"]

PROGRAMS = ("rl", "sft", "inference", "orchestrator", "vllm-router", "torchrun")
_GPU_PACKAGES = re.compile(r"torch|vllm|transformers|flash[-_]attn|nvidia[-_].*")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")


def normalized(name: str) -> str:
    """A distribution's name as the packaging rules compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_versions() -> dict[str, str]:
    """Every installed distribution with its version."""
    return {
        normalized(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
        if found.metadata["Name"]
    }


def gpu_versions(installed: dict[str, str]) -> dict[str, str]:
    """The packages of the GPU solution, which a build on top of it must not change."""
    return {name: version for name, version in sorted(installed.items()) if _GPU_PACKAGES.fullmatch(name)}


def merge_constraints(installed: dict[str, str], lock: str) -> list[str]:
    """One pin a package: what the base image has stays, everything else is as locked in the repository."""
    locked = {normalized(match["name"]): match["version"] for match in map(_PINNED.match, lock.splitlines()) if match}
    return [f"{name}=={version}" for name, version in sorted({**locked, **installed}.items())]


def verify(source: Path, before: dict[str, str], provenance: Path, *, adamw_eps: bool) -> list[str]:
    """What is wrong with the finished image; an empty list when it may be published.

    Args:
        source: The ``pyproject.toml`` the image was built from.
        before: :func:`gpu_versions` of the base image.
        provenance: The catalogue inside the image.
        adamw_eps: Whether the trainer's AdamW config must have the field ``eps``.
    """
    from primebeaker.bundled import ENVIRONMENT_NAMESPACE, MODULES

    faults: list[str] = []
    expected = tomllib.loads(source.read_text())["project"]["version"]
    found = importlib.metadata.version("primebeaker")
    if found != expected:
        faults.append(f"primebeaker {found} is installed, the source is {expected}")
    after = gpu_versions(installed_versions())
    faults += [
        f"{name} changed from {before.get(name)} to {after.get(name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    for module in sorted(MODULES):
        try:
            importlib.import_module(f"{ENVIRONMENT_NAMESPACE}.{module}")
        except Exception as error:
            faults.append(f"environment {module} cannot be imported: {type(error).__name__}: {error}")
    shown = subprocess.run(
        [sys.executable, "-m", "primebeaker.multinode", "--help"], capture_output=True, check=False, timeout=120
    )
    if shown.returncode:
        faults.append(f"python3 -m primebeaker.multinode --help ended with {shown.returncode}")
    faults += [f"{program} is not on PATH" for program in PROGRAMS if shutil.which(program) is None]
    if not provenance.is_file():
        faults.append(f"{provenance}: the catalogue is not in the image")
    if adamw_eps and "eps" not in importlib.import_module("prime_rl.configs.trainer").AdamWConfig.model_fields:
        faults.append("the trainer's AdamW config has no field eps")
    return faults


def main(words: list[str] | None = None) -> int:
    """Run one of the three commands; 1 when the image must not be published."""
    parser = argparse.ArgumentParser(prog="in_image.py")
    commands = parser.add_subparsers(dest="command", required=True)
    constraints = commands.add_parser("constraints", help="write pins for everything an install may add")
    constraints.add_argument("lock", type=Path)
    constraints.add_argument("output", type=Path)
    versions = commands.add_parser("versions", help="note the versions of the GPU packages")
    versions.add_argument("output", type=Path)
    checks = commands.add_parser("verify", help="check the finished image")
    checks.add_argument("source", type=Path)
    checks.add_argument("versions", type=Path)
    checks.add_argument("provenance", type=Path)
    checks.add_argument("--adamw-eps", action="store_true")
    given = parser.parse_args(words)
    if given.command == "constraints":
        given.output.write_text("\n".join(merge_constraints(installed_versions(), given.lock.read_text())) + "\n")
        return 0
    if given.command == "versions":
        given.output.write_text(json.dumps(gpu_versions(installed_versions())))
        return 0
    faults = verify(given.source, json.loads(given.versions.read_text()), given.provenance, adamw_eps=given.adamw_eps)
    for fault in faults:
        sys.stderr.write(f"image check: {fault}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
