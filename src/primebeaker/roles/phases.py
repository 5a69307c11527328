"""The first phases of a multi-node role: directories, setup command, programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from primebeaker.errors import UserError
from primebeaker.prime_rl.contract import Contract
from primebeaker.roles.inputs import RoleInputs

__all__ = [
    "default_directories",
    "gpus_seen",
    "needed_programs",
    "prepare_tmpdir",
    "raise_file_limit",
    "require_programs",
]

_WANTED_FILES = 65536
_RESULT_DIR = Path("/tmp/beaker-result")  # noqa: S108  named by the experiment spec
_NVIDIA_SECONDS = 10


def gpus_seen() -> int | None:
    """GPUs of this machine by ``nvidia-smi -L``, None when it does not run."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-L"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_NVIDIA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else None


def default_directories(env: MutableMapping[str, str], inputs: RoleInputs) -> None:
    """Set cache and temporary directories that are not set, and create them.

    Raises:
        UserError: One of them cannot be created.
    """
    with contextlib.suppress(OSError):
        _RESULT_DIR.mkdir(parents=True, exist_ok=True)
    env.setdefault("XDG_CACHE_HOME", str(inputs.scratch / ".cache"))
    env.setdefault("HF_HOME", f"{env['XDG_CACHE_HOME']}/huggingface")
    env.setdefault("TORCH_HOME", f"{env['XDG_CACHE_HOME']}/torch")
    env.setdefault("TMPDIR", str(inputs.tmpdir))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TMPDIR"):
        try:
            Path(env[name]).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{name} = {env[name]!r} cannot be created: {error.strerror}") from None


def prepare_tmpdir(env: Mapping[str, str], inputs: RoleInputs) -> None:
    """Empty our own temporary directory of what an earlier start left; one set by others is not ours."""
    if env["TMPDIR"] != str(inputs.tmpdir):
        return
    for entry in inputs.tmpdir.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                entry.unlink()


def raise_file_limit() -> str | None:
    """Raise the soft limit of open files; a line for the log when it stays low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < _WANTED_FILES:
        return f"warning: only {soft} files may be open at once, {_WANTED_FILES} are wanted"
    return None


def needed_programs(inputs: RoleInputs, contract: Contract, *, inference_gpus: int) -> tuple[str, ...]:
    """The programs this rank must find on its ``PATH``."""
    programs = contract.programs
    if inputs.kind == "sft":
        return (programs.torchrun,)
    leader = (programs.torchrun, programs.orchestrator, programs.router) if inputs.leads else ()
    return leader + ((programs.inference,) if inference_gpus else ())


def require_programs(names: Sequence[str], env: Mapping[str, str], *, prime_rl: bool) -> None:
    """Refuse a missing program, or a missing Prime-RL.

    Raises:
        UserError: Naming all of them.
    """
    missing = [name for name in names if shutil.which(name, path=env.get("PATH", os.defpath)) is None]
    # A setup command may just have installed it.
    importlib.invalidate_caches()
    if prime_rl and importlib.util.find_spec("prime_rl") is None:
        missing.append("the Python package prime_rl")
    if missing:
        raise UserError(
            f"not found in this image: {', '.join(missing)}", hint="use an image with Prime-RL, or --setup-command"
        )
