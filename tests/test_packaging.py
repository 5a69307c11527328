"""The distribution: one version, the archives' contents, what a base install can do."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest

import primebeaker

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version() -> None:
    assert primebeaker.__version__ == version("primebeaker") == PROJECT["version"]


def test_console_scripts() -> None:
    scripts = {
        entry.name: entry.value for entry in entry_points(group="console_scripts") if "primebeaker" in entry.value
    }
    assert scripts == PROJECT["scripts"]


def test_requirements_have_no_direct_urls() -> None:
    assert not [requirement for requirement in requires("primebeaker") or [] if "@" in requirement]


def test_pins_agree_with_what_jtc_pins() -> None:
    """The evaluation and runtime extras must be installable together."""
    runtime = PROJECT["optional-dependencies"]["runtime"]
    pinned_by_jtc = [line.split(";")[0].strip() for line in requires("jtc-core") or []]
    assert "literegistry==1.0.48" in {line.replace("[base_deployment,podman_beaker]", "") for line in runtime}
    assert any(line.startswith("literegistry==1.0.48") for line in pinned_by_jtc)
    assert any(line.startswith("literegistry-tool-client==0.1.0") for line in pinned_by_jtc)
    assert "verifiers[harbor]==0.2.1" in runtime
    assert any(line.replace(" ", "").startswith("verifiers[harbor]==0.2.1") for line in pinned_by_jtc)


def test_tool_clients_are_not_offered_again() -> None:
    assert not [name for name in dir(primebeaker) if "client" in name.lower()]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    _build("--sdist", "--wheel", "--outdir", str(folder), str(ROOT))
    return folder


def test_archives_hold_what_they_must(dist: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools/check_dist.py"), str(dist)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_check_dist_notices_a_missing_file(dist: Path, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import check_dist
    finally:
        sys.path.remove(str(ROOT / "tools"))
    (wheel,) = dist.glob("*.whl")
    faults = check_dist.wheel_faults(wheel, {"primebeaker/errors.py", "primebeaker/no_such.py"})
    assert faults == [f"{wheel.name}: misses primebeaker/no_such.py"]


def test_a_wheel_from_the_sdist_is_the_same(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(tmp_path)], check=True)
    (unpacked,) = tmp_path.iterdir()
    _build("--wheel", "--outdir", str(tmp_path / "out"), str(unpacked))
    (again,) = (tmp_path / "out").glob("*.whl")
    assert wheel.read_bytes() == again.read_bytes()


def test_base_install_runs_without_the_extras(dist: Path, tmp_path: Path) -> None:
    """The commands that need no extra work where only the base set can be imported."""
    (wheel,) = dist.glob("*.whl")
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    base = ["cyclopts", "pydantic", "tomlkit", "yaml", "literegistry_tool_client"]
    blocked = ["verifiers", "datasets", "literegistry", "starlette", "uvicorn", "jtc", "wandb", "torch"]
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"import {', '.join(base)}\n"
        "from primebeaker.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for words in (
        ["--version"],
        ["--help"],
        ["sft", "preview", "--help"],
        ["toml", "check", f"--toml={ROOT}/examples/rl/config.toml"],
        ["rl", "preview", f"--toml={ROOT}/examples/rl/config.toml", f"--mount-path={ROOT}"],
    ):
        result = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(target)},
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout


def test_import_is_light() -> None:
    """Neither ``import primebeaker`` nor the help of every group pulls in a heavy library."""
    heavy = [
        "torch",
        "datasets",
        "verifiers",
        "fastapi",
        "starlette",
        "literegistry",
        "wandb",
        "jtc",
        "pydantic",
        "yaml",
    ]
    program = (
        "import sys, primebeaker\n"
        "assert not [m for m in sys.modules if m.startswith('primebeaker.')], sys.modules\n"
        "from primebeaker.cli import main\n"
        "main(['--help'])\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def _build(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )
